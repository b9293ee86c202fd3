"""``qsa prove``: whether the operation modules can fail. Wrong kernels and wrong outputs are put under them.

Three parts, in every arithmetic: the right kernels that mutants are made of must pass every case, every mutant must be
caught, and no case may pass with outputs of zeros, times 1.02 or with permuted heads, where these are not right.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from qsa.kernels.switches import ARITHMETICS

from .. import report, suite, wrong_outputs

SAMPLE = 8
"""Of each operation every eighth mutant, with ``--sample``."""

PROGRESS = 50
"""A line on standard error for so many mutants."""

EPILOG = """exit status: 0 when every mutant was caught, no wrong output passed and the right kernels failed nowhere;
1 when not; 2 on bad arguments"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``prove``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "prove",
        help="put wrong kernels under the suite: every one must be caught",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arithmetic", choices=ARITHMETICS, help="mutants of this arithmetic alone (default: both)")
    parser.add_argument("--operation", metavar="NAME", help="mutants of this operation alone")
    parser.add_argument(
        "--sample", action="store_true", help=f"every {SAMPLE}th mutant, and one case of each kind: under a minute"
    )
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON; - is standard output")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on an operation that no mutant has."""
    # Imported here: only this verb needs the catalogue.
    from ..prove import mutants
    from ..prove.mutant import CATALOGUE

    assert mutants.__all__
    operations = dict.fromkeys(one.operation for one in CATALOGUE)
    if arguments.operation not in (None, *operations):
        raise ValueError(f"--operation = {arguments.operation!r}: allowed are {', '.join(operations)}")
    if arguments.list:
        for one in CATALOGUE:
            print(f"{one.operation:13} {'+'.join(one.arithmetics):12} {one.name}  [{one.kind}]")
        return 0
    with report.report_writer(arguments.json, None) as write:
        return _prove(arguments, write)


def _prove(arguments: argparse.Namespace, write: Callable[[str, str], None]) -> int:
    """Run the parts of every arithmetic, each in a process of its own, print and write them; returns the exit code."""
    chosen = ARITHMETICS if arguments.arithmetic is None else (arguments.arithmetic,)
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140, highlight=False)
    started = time.perf_counter()
    with ProcessPoolExecutor(len(chosen)) as pool:
        parts = list(
            pool.map(_arithmetic, chosen, [arguments.sample] * len(chosen), [arguments.operation] * len(chosen))
        )
    failed = 0
    for part in parts:
        failed += _show(part, console)
    console.print(f"{time.perf_counter() - started:.0f} s", markup=False)
    if arguments.json:
        write(arguments.json, json.dumps({"failed": failed, "parts": parts}, indent=1, allow_nan=False) + "\n")
    return 1 if failed else 0


def _arithmetic(arithmetic: str, sample: bool, operation: str | None) -> dict[str, Any]:
    """All parts of one arithmetic, as plain values."""
    from ..prove import mutants
    from ..prove import run as prover
    from ..prove.mutant import backend_of

    assert mutants.__all__
    right = backend_of(arithmetic, {})
    cases = suite.collect(suite.OPERATION_MODULES, arithmetic, backend=right)
    wanted = [one for one in prover.chosen(arithmetic, SAMPLE if sample else 1) if operation in (None, one.operation)]
    begin = time.perf_counter()
    done: list[prover.Verdict] = []

    def on_verdict(verdict: prover.Verdict) -> None:
        done.append(verdict)
        if len(done) % PROGRESS == 0 or not verdict.caught:
            text = f": NOT CAUGHT: {verdict.mutant.name}" if not verdict.caught else ""
            print(f"{arithmetic}: {len(done)} of {len(wanted)} mutants judged{text}", file=sys.stderr, flush=True)

    verdicts = prover.prove(wanted, arithmetic, cases, on_verdict)
    middle = time.perf_counter()
    some = wrong_outputs.sample(cases) if sample else cases
    some = [case for case in some if operation is None or operation in prover.operations_of(case)]
    if sample:
        some = [case for case in some if prover.cost(case) < 1000][::4]
    counts: Counter[str] = Counter()
    passed = wrong_outputs.passing(some, right, lambda case, kind, status: counts.update([f"{kind} {status}"]))
    return {
        "arithmetic": arithmetic,
        "cases": len(cases),
        "mutants": [verdict.as_dict() for verdict in verdicts],
        "wrong_outputs": dict(counts),
        "passing": [list(each) for each in passed],
        "seconds": [round(middle - begin, 1), round(time.perf_counter() - middle, 1)],
    }


def _show(part: dict[str, Any], console: Console) -> int:
    """Print one arithmetic's part; returns how many mutants and wrong outputs were not caught."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"mutants, {part['arithmetic']} arithmetic")
    for name in ("mutant", "caught by", "measure", "bound", "in the case"):
        table.add_column(name, overflow="fold", justify="right" if name in ("measure", "bound") else "left")
    for one in sorted(part["mutants"], key=lambda one: (one["caught"], one["operation"])):
        text = [one["check"], _number(one["measure"]), _number(one["bound"]), one["case"]]
        table.add_row(one["mutant"], *(text if one["caught"] else [f"NOT CAUGHT in {one['cases']} cases", "", "", ""]))
    console.print(table)
    lost = sum(not one["caught"] for one in part["mutants"])
    console.print(
        f"{part['arithmetic']}: {len(part['mutants']) - lost} of {len(part['mutants'])} mutants caught", markup=False
    )
    total = sum(part["wrong_outputs"].values())
    counts = ", ".join(f"{name} {count}" for name, count in sorted(part["wrong_outputs"].items()))
    console.print(f"{part['arithmetic']}: wrong outputs: {total} runs of cases: {counts}", markup=False)
    for case, kind in part["passing"]:
        console.print(f"  NOT CAUGHT: {kind}: {case}", markup=False)
    console.print(f"  {part['seconds'][0]:.0f} s mutants, {part['seconds'][1]:.0f} s wrong outputs", markup=False)
    return lost + len(part["passing"])


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
