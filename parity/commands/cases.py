"""``qsa cases export | check``: cases in files, for an engine that no Python reaches."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec

from .. import report, suite
from ..cases import check as checking
from ..cases import export as exporting
from ..cases import index as cases_index
from ..cases.functions import OFFERED
from ..cases.untrusted import read_json
from ..contract import Declaration, declared
from ..environment import facts
from ..trace import export as trace_export

FORMATS = ("qsa", "flashinfer-trace")
STORAGE = tuple(OFFERED)

EPILOG = f"""modules: {", ".join(exporting.MODULES)}
functions with --storage ours: {", ".join(OFFERED["ours"])}
functions with --storage own: {", ".join(OFFERED["own"])}

docs/cases.md says how to read the files. A declaration is a JSON object of the fields of docs/your-kernel.md."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``cases``; its ``run`` default takes the parsed arguments and returns the exit code."""
    cases = subparsers.add_parser("cases", help="write cases to files, and judge what an engine wrote beside them")
    verbs = cases.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser(
        "export",
        help="write inputs, expected outputs and an index",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="a new folder")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="parity modules to export (default: all of them)")
    parser.add_argument("--case", action="append", metavar="STRING", help="export this case alone; may be repeated")
    parser.add_argument("--op", action="append", metavar="NAME", help="a function the engine has; may be repeated")
    parser.add_argument("--arithmetic", metavar="exact|float", help="default: the first of the declaration, else float")
    parser.add_argument(
        "--storage", default="ours", metavar="|".join(STORAGE), help="K/V in our pools or in the engine's"
    )
    parser.add_argument("--schedules", action="store_true", help="the engine takes schedules and splits")
    parser.add_argument("--declaration", metavar="FILE", help="what the engine declares, as JSON")
    parser.add_argument("--format", default="qsa", metavar="|".join(FORMATS), help="default: qsa")
    parser.set_defaults(run=export)
    parser = verbs.add_parser("check", help="judge the outputs.safetensors beside exported cases")
    parser.add_argument("folder", metavar="DIR", help="a folder that export made")
    parser.add_argument("--case", action="append", metavar="STRING", help="judge this case alone; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML; - is standard output")
    parser.set_defaults(run=check)
    return cases


def _declaration(path: str | None, arithmetic: str | None) -> Declaration:
    """What the engine declares: the fields of the file; ``arithmetic`` unless the file has one."""
    fields = {} if path is None else read_json(Path(path), cases_index.LARGEST)
    if not isinstance(fields, dict):
        raise ValueError(f"--declaration = {path!r}: must hold a JSON object")
    if arithmetic is not None:
        fields = {"arithmetic": arithmetic} | fields
    return declared(SimpleNamespace(declaration=fields))


def _allowed(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} = {value!r}: allowed are {', '.join(allowed)}")


def export(arguments: argparse.Namespace) -> int:
    """Write the cases; returns 0. Raises ValueError on bad arguments, and OSError."""
    _allowed("--format", arguments.format, FORMATS)
    _allowed("--storage", arguments.storage, STORAGE)
    if arguments.arithmetic is not None:
        _allowed("--arithmetic", arguments.arithmetic, ("exact", "float"))
    declaration = _declaration(arguments.declaration, arguments.arithmetic)
    arithmetic = arguments.arithmetic or declaration.arithmetics[0]
    engine = exporting.Engine(arithmetic, arguments.storage, declaration, arguments.op, arguments.schedules)
    cases = _chosen(arguments, engine)
    folder = Path(arguments.folder)
    if arguments.format == "qsa":
        index = exporting.export(folder, engine, cases, _print)
        print(f"{len(index.cases)} cases in {folder}, {len(index.left_out)} left out; read docs/cases.md, then:")
        print(f"qsa cases check {folder}")
    else:
        manifest = trace_export.export(folder, engine, cases, _print)
        names = {entry.definition for entry in manifest.workloads}
        print(f"{len(manifest.workloads)} workloads of {len(names)} definitions in {folder}")
    return 0


def _chosen(arguments: argparse.Namespace, engine: exporting.Engine) -> list[suite.Case]:
    if arguments.case and arguments.modules:
        raise ValueError(f"MODULE = {' '.join(arguments.modules)!r}: not together with --case")
    if arguments.case:
        return [suite.parse(text) for text in dict.fromkeys(arguments.case)]
    nothing = engine.backend(lambda operation, arguments: None)
    return suite.collect(arguments.modules or exporting.MODULES, engine.arithmetic, False, nothing)


def _print(text: str, reason: str) -> None:
    print(f"left out  {text}  {reason}" if reason else f"written   {text}")


def check(arguments: argparse.Namespace) -> int:
    """Judge the outputs; returns 0 where at least one case passed and none failed, else 1. Raises ValueError on an
    index that does not fit, and OSError."""
    folder = Path(arguments.folder)
    index = cases_index.read(folder)
    print(f"qsa cases: {index.arithmetic} arithmetic, storage {index.storage}, {len(index.cases)} cases exported")
    print(f"declared: {_difference(index.declaration)}")
    with report.report_writer(arguments.json, arguments.junit) as write:
        tally = checking.check(folder, index, arguments.case, _show)
        environment = {"backend": "files", "arithmetic": index.arithmetic, **facts()}
        if arguments.json:
            write(arguments.json, report.json_text(report.as_json(tally, environment)))
        if arguments.junit:
            write(arguments.junit, report.as_junit(tally, environment, None, "qsa cases check"))
    counts = ", ".join(f"{tally.count(status)} {status}" for status in suite.STATUSES)
    print(counts)
    if not tally.count("passed") and not tally.count("failed"):
        print("nothing passed: no outputs.safetensors lies beside a case", file=sys.stderr)
    return tally.exit_code


def _difference(declaration: Declaration) -> str:
    """The fields of a declaration that an ordinary engine of its arithmetic does not have: bounds follow from them."""
    plain = declared(SimpleNamespace(declaration={"arithmetic": declaration.arithmetic}))
    given, usual = msgspec.to_builtins(declaration), msgspec.to_builtins(plain)
    found = {name: value for name, value in given.items() if value != usual[name] or name == "arithmetic"}
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _show(result: suite.Result) -> None:
    print(f"{result.status:12}{result.case.text}  {result.seconds:.2f} s")
    for line in result.lines(None):
        print(line)
