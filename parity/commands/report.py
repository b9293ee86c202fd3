"""``qsa report diff | merge``: what changed between two reports (of ``qsa bench`` too), and one report of several.

Exit codes: 0 done, 1 something newly fails (``diff``) or the whole is no success (``merge --check``), 2 bad arguments
or files.
"""

import argparse
import sys
from typing import Any

import msgspec

from qsa.golden import files
from qsa.golden.store import read_json
from qsa.reference.validation import convert

from .. import report, report_changes


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``report``; its ``run`` default takes the parsed arguments and returns the exit code."""
    top = subparsers.add_parser("report", help="compare or merge reports of qsa parity, qsa gate and qsa bench")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser("diff", help="say what newly fails and what got slower")
    parser.add_argument("before", metavar="A.json", help="the earlier report")
    parser.add_argument("now", metavar="B.json", help="the later report")
    parser.add_argument(
        "--factor",
        type=float,
        default=report_changes.FACTOR,
        metavar="X",
        help=f"a case got slower when it took X times as long, and {report_changes.LEAST_SECONDS} s more "
        "(default %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the changes as JSON; - is standard output")
    parser.set_defaults(run=diff)
    parser = verbs.add_parser("merge", help="make one report of several that were made in one environment")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="FILE", help="the report; - is standard output")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 unless something passed, nothing failed, no run was interrupted and no shard is missing",
    )
    parser.set_defaults(run=merge)
    return top


def diff(arguments: argparse.Namespace) -> int:
    """Print what changed; returns 1 when something newly fails. Raises ValueError on bad arguments and files."""
    benches = [_bench(path) for path in (arguments.before, arguments.now)]
    if None not in benches:
        return _diff_benches(arguments, *benches)
    before, now = (report_changes.load(path) for path in (arguments.before, arguments.now))
    found = report_changes.diff(before, now, arguments.factor)
    with report.report_writer(arguments.json, None) as write:
        print("\n".join(report_changes.lines(found)))
        if arguments.json:
            write(arguments.json, report.json_text(report_changes.as_json(found)))
    return 1 if found.failed else 0


def _bench(path: str) -> Any:
    """The report of `qsa bench` in the file ``path``, None where it is none. Raises ValueError on a damaged one."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("kind") != "bench":
        return None
    # Imported here: most reports are not of it.
    from ..screen.results import Bench

    try:
        return convert(found, Bench)
    except ValueError as error:
        raise ValueError(f"{path}: is no report of qsa bench: {error}") from error


def _diff_benches(arguments: argparse.Namespace, before: Any, now: Any) -> int:
    from ..screen import changes

    found = changes.diff(before, now, arguments.factor)
    with report.report_writer(arguments.json, None) as write:
        print("\n".join(changes.lines(found)))
        if arguments.json:
            write(arguments.json, report.json_text(changes.as_json(found)))
    return 1 if found.failed else 0


def merge(arguments: argparse.Namespace) -> int:
    """Write one report of several; returns 0, or what ``--check`` asks for. Raises ValueError on reports of different
    environments, and bad files."""
    reports = [report_changes.load(path) for path in arguments.files]
    merged = report_changes.merge(reports)
    report.check_target("--out", arguments.out)
    report.write_json(arguments.out, msgspec.to_builtins(merged))
    if arguments.out != files.STDOUT:
        counts = f"{merged.passed} passed, {merged.failed} failed, {merged.unsupported} unsupported"
        print(f"{len(reports)} reports merged into {arguments.out}: {counts}")
    missing = report_changes.missing_shards(reports)
    if missing:
        print(f"qsa report: shards are missing: {', '.join(missing)}", file=sys.stderr)
    good = merged.passed and not merged.failed and not merged.interrupted and not missing
    return 0 if good or not arguments.check else 1
