"""``qsa evidence run | show | check | merge``: records of runs on real devices.

Exit status: 0 done and nothing failed, 1 something failed (``check``: in a record of today's sources; with ``--strict``
also when evidence is stale, incomplete or missing), 2 bad arguments or files.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from qsa.golden import device_records as evidence
from qsa.golden import files, sources
from qsa.golden.store import json_text

from ..bench import switch_table
from ..evidence import run as evidence_run
from ..report import check_target

SHOWN = 6
"""Changed files, or failures of a step, that are printed by name; of the rest only the number is."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``evidence``; its ``run`` default takes the parsed arguments and returns the exit code."""
    top = subparsers.add_parser("evidence", help="record, show and judge runs on a real device")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser("run", help="run the sections on this machine's device and write a record")
    known = ", ".join(evidence_run.SECTIONS)
    parser.add_argument("--sections", nargs="+", metavar="NAME", help=f"SECTION or SECTION/STEP; sections: {known}")
    parser.add_argument("--out", metavar="FILE", help="the record (default: the repository's, by device and date)")
    parser.add_argument("--merge", action="store_true", help="add to the record that FILE already holds")
    parser.add_argument("--seconds", type=float, metavar="N", help="start nothing, and stop all, after so many seconds")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="steps at a time, but for the benchmark's")
    parser.add_argument("--list", action="store_true", help="print the steps and run nothing")
    parser.set_defaults(run=run)
    parser = verbs.add_parser("show", help="print records")
    parser.add_argument("files", nargs="*", metavar="FILE", help="records (default: the newest of the repository)")
    parser.set_defaults(run=show)
    parser = verbs.add_parser("check", help="say whether the records speak of today's kernels, and what failed in them")
    parser.add_argument("--folder", default=str(evidence.FOLDER), help="folder of the records")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every device's newest is fresh and whole")
    parser.set_defaults(run=check)
    parser = verbs.add_parser("merge", help="make one record of several of the same device and sources")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="FILE", help="the record; - is standard output")
    parser.set_defaults(run=merge)
    return top


def _base(path: Path, merge: bool) -> Any:
    """The record that the file already holds, or None. Raises ValueError when it would be lost."""
    if not path.is_file():
        return None
    if not merge:
        raise ValueError(f"--out = {str(path)!r}: exists: --merge adds to it, or give another name")
    return evidence.load(path)


def run(arguments: argparse.Namespace) -> int:
    """Run the sections; returns 1 when a step failed or was not started."""
    if arguments.seconds is not None and not arguments.seconds > 0:
        raise ValueError(f"--seconds = {arguments.seconds}: must be above 0")
    if arguments.jobs < 1:
        raise ValueError(f"--jobs = {arguments.jobs}: must be 1 or more")
    plan = evidence_run.chosen(arguments.sections)
    if arguments.list:
        for section, steps in plan.items():
            for step in steps:
                print(f"{section}/{step.name:28} {step.seconds:4.0f} s  {step.text}")
        return 0
    if arguments.out == files.STDOUT:
        raise ValueError("--out = '-': a record is written after every step: allowed is the name of a file")
    if arguments.out:
        # Before the child looks for a device, which takes seconds.
        evidence.check_name(Path(arguments.out).stem)
        _base(Path(arguments.out), arguments.merge)
        check_target("--out", arguments.out)
    facts = evidence_run.device_facts()
    path = Path(arguments.out or evidence.FOLDER / f"{evidence.default_name(evidence.Device(**facts['device']))}.json")
    base = _base(path, arguments.merge)
    print(
        f"qsa evidence: {facts['device']['name']}, driver {facts['driver']}; record {os.path.relpath(path)}", flush=True
    )
    failed = 0

    def on_step(section: str, step: evidence.Step) -> None:
        nonlocal failed
        failed += step.status == "failed"
        print(f"{step.status:12}{section}/{step.name}  {step.seconds:.0f} s", flush=True)
        for line in filter(None, [*step.reason.splitlines(), *_summary(step.results).splitlines()]):
            print(f"  {line}", flush=True)

    try:
        evidence_run.run(plan, path, facts, base, arguments.seconds, arguments.jobs, on_step)
    except KeyboardInterrupt:
        print(f"qsa evidence: interrupted: {os.path.relpath(path)} holds what was finished", file=sys.stderr)
        return 130
    print(f"{failed} steps failed; {os.path.relpath(path)} written")
    return 1 if failed else 0


def show(arguments: argparse.Namespace) -> int:
    """Print records as tables; returns 1 when there is none."""
    found = [evidence.load(path, any_file_name=True) for path in arguments.files] or evidence.records()[-1:]
    if not found:
        print("missing: there is no evidence")
        return 1
    console = Console(width=None if os.isatty(1) else 150, markup=False, highlight=False)
    today = sources.fingerprint()
    for record in found:
        device = record.device
        console.print(
            f"{record.name}: {device.name}, compute capability {device.compute_capability}, "
            f"{record.contract}, {record.date}, {'stale' if evidence.stale(record, today) else 'fresh'}\n"
            f"kernels {record.sources['kernels']}, reference {record.sources['reference']}\n"
            + ", ".join(f"{name} {version}" for name, version in sorted(record.versions.items()))
        )
        console.print(_steps(record))
        missing = evidence_run.not_recorded(record)
        if missing:
            console.print(f"not recorded: {', '.join(missing)}", soft_wrap=True)
        if evidence.rows(record):
            console.print(_timings(record))
        for line in switch_table.lines(switch_table.from_json(evidence.switches(record))):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _steps(record: Any) -> Table:
    """The table of a record's steps."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("step", "status", "seconds", "driver", "what"):
        table.add_column(header, justify="right" if header == "seconds" else "left", overflow="fold")
    for section, found in record.sections.items():
        for step in found.steps:
            what = "\n".join(filter(None, (step.reason, _summary(step.results))))
            table.add_row(f"{section}/{step.name}", step.status, f"{step.seconds:.0f}", step.driver, what)
    return table


def _summary(results: Any) -> str:
    """A step's results as text: counts, verdicts, failures, reasons of what is unsupported."""
    # A benchmark's `unsupported` is no number: it holds the reasons.
    parts = [f"{results[status]} {status}" for status in evidence.STATUSES if isinstance(results.get(status), int)]
    lines = [", ".join(parts), *results.get("verdict", ())]
    failures = results.get("failures", ())
    lines += [f"{failure['case']}: {failure['reason']}" for failure in failures[:SHOWN]]
    if len(failures) > SHOWN:
        lines.append(f"and {results['failed'] - SHOWN} more")
    lines += [f"unsupported, {times} times: {reason}" for reason, times in results.get("reasons", {}).items()]
    return "\n".join(filter(None, lines))


def _timings(record: Any) -> Table:
    """The table of a record's benchmark."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("case", "contract", "median µs", "p10", "p90", "limit µs", "share", "limit"):
        table.add_column(
            header, justify="left" if header in ("case", "contract", "limit") else "right", overflow="fold"
        )
    for row in evidence.rows(record).values():
        numbers = ["wrong result", "-", "-", "-", "-"]
        if row["correct"]:
            numbers = [f"{row[key]:.2f}" for key in ("median_us", "p10_us", "p90_us", "limit_us")]
            numbers.append(f"{100 * row['share']:.0f} %")
        table.add_row(row["case"], row["contract"], *numbers, row["limit"])
    return table


def check(arguments: argparse.Namespace) -> int:
    """Print for every record whether it is fresh, which of its steps failed and which it does not hold; then a verdict
    on every device by its newest record, as the gate does.

    Returns 1 when a step of a fresh record failed, unless a later record of the device and of the same sources holds it
    as passed; a failure with other sources does not count today. Steps that are not recorded, stale records and
    missing ones are printed and fail nothing, unless with ``--strict``: then 1 also when there is no record, or the
    newest of a device is stale or does not hold every step.
    """
    found, today = evidence.records(arguments.folder), sources.fingerprint()
    fresh = []
    for record in found:
        changed = evidence.stale(record, today)
        if not changed:
            fresh.append(record)
        print(f"{'stale' if changed else 'fresh':8}{record.name}  {record.device.name}, {record.date}")
        lines = changed[:SHOWN]
        if len(changed) > SHOWN:
            lines.append(f"and {len(changed) - SHOWN} more")
        for word, steps in (("failed", _failed(record)), ("not recorded", evidence_run.not_recorded(record))):
            if steps:
                lines.append(f"{word}: {', '.join(steps)}")
        for line in lines:
            print(f"        {line}")
    if not found:
        print("missing: there is no evidence of a run on a device")
    whole = bool(found)
    for device, record in evidence.newest(found).items():
        if record not in fresh:
            whole = False
            print(f"{device}: STALE: {record.name} is of other sources than today's; `make gpu` there records anew")
            continue
        failed, missing = len(_failed(record)), len(evidence_run.not_recorded(record))
        whole = whole and not missing
        print(f"{device}: fresh: {record.name}, {failed} steps failed, {missing} not recorded")
    standing = _standing(fresh)
    for device, step, name in standing:
        print(f"{device}: {step} failed in {name}, and no later record of these sources holds it as passed")
    return 1 if standing or (arguments.strict and not whole) else 0


def _failed(record: Any) -> list[str]:
    return [name for name, _ in evidence.failed(record)]


def _standing(fresh: Iterable[Any]) -> list[tuple[str, str, str]]:
    """(device, step, record) of what failed in records of today's sources, the oldest first, and never passed since."""
    last: dict[tuple[str, str], tuple[str, str]] = {}
    for record in fresh:
        for section, found in record.sections.items():
            for step in found.steps:
                if step.status in ("passed", "failed"):
                    key = record.device.name, f"{section}/{step.name}"
                    last[key] = step.status, record.name
    return [(*key, name) for key, (status, name) in last.items() if status == "failed"]


def merge(arguments: argparse.Namespace) -> int:
    """Make one record of several. Raises ValueError when that would overwrite any other record than one of them."""
    to_stdout = arguments.out == files.STDOUT
    path = Path(arguments.files[0] if to_stdout else arguments.out)
    evidence.check_name(path.stem)
    records = [evidence.load(name, any_file_name=True) for name in arguments.files]
    if path.exists() and not any(path.samefile(name) for name in arguments.files):
        raise ValueError(f"--out = {arguments.out!r}: exists: name it among the records to merge, or give another name")
    check_target("--out", arguments.out)
    first, *others = records
    for other in others:
        first = evidence.merged(first, other)
    record = evidence.renamed(first, path.stem)
    if to_stdout:
        files.write_report(files.STDOUT, json_text(msgspec.to_builtins(evidence.check(record, path, record.name))))
        return 0
    evidence.write(path, record)
    print(f"{len(arguments.files)} records merged into {os.path.relpath(path)}")
    return 0
