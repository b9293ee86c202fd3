"""Timings of the CUDA operations beside the limit of each, after their results were checked.

    python -m qsa.parity.bench.operations [--json FILE] [--cases TEXT ...] [--list]

The report holds ``rows`` (:class:`qsa.golden.device_records.Row`), ``limits`` (empty launch in microseconds, copy in
GB/s), ``clocks`` under load at the start and the end, and ``unsupported`` (case -> reason). It is written after every
case. A row of a wrong result has no times.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from qsa.golden import case
from qsa.golden.store import write_json
from qsa.kernels.cuda.toolchain.compiler import array_module

from ..evidence.process import impersonal
from . import device, limits, script, timing
from .operation_cases import cases, prepare


def measure(text: str) -> dict[str, Any] | str:
    """The row of the case ``text``, or the reason (str) for which there is none."""
    ready = prepare(text)
    if ready.call() is False:
        return "refused"
    name, limit = ready.limit
    if not ready.correct():
        return timing.wrong(text, name)
    clock = timing.cold if case.parse(text)[1]["cache"] == "cold" else timing.hot
    return timing.row(text, clock(ready.call), name, clock(limit))


def clocks_under_load() -> dict[str, Any]:
    """:func:`device.clocks` while the device copies memory: an idle device lowers its clocks."""
    runtime, (move, _) = array_module().cuda.runtime, limits.copy()
    with ThreadPoolExecutor(1) as pool:
        clocks = pool.submit(device.clocks, runtime.deviceGetPCIBusId(runtime.getDevice()))
        while not clocks.done():
            for _ in range(20):
                move()
            runtime.deviceSynchronize()
    return clocks.result()


def measured_limits() -> dict[str, float]:
    """Dict of ``empty_us`` and ``copy_gb_s``, read and written bytes counted."""
    move, nbytes = limits.copy()
    return {
        "empty_us": round(timing.hot(limits.empty).median, 3),
        "copy_gb_s": round(nbytes / timing.hot(move, launches=2, replays=10).median / 1e3, 1),
    }


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    if not row["correct"]:
        return f"{'WRONG':>9} {row['case']}"
    share = f"{100 * row['share']:3.0f} % of {row['limit']}"
    return f"{row['median_us']:9.2f} ({row['p10_us']:.2f} to {row['p90_us']:.2f}) {share}  {row['case']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns 0 when every result was right, 1 when one was wrong or could not be measured."""
    parser = script.parser("operations", __doc__)
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="these case strings alone")
    parser.add_argument("--list", action="store_true", help="print the case strings and run nothing")
    arguments = parser.parse_args(argv)
    known = cases()
    for text in arguments.cases or ():
        if text not in known:
            parser.error(f"case {text!r}: --list names them")
    if arguments.list:
        print("\n".join(known))
        return 0
    report: dict[str, Any] = {
        "rows": [],
        "limits": measured_limits(),
        "clocks": {"start": clocks_under_load()},
        "unsupported": {},
    }
    broken = False
    for text in arguments.cases or known:
        try:
            found = measure(text)
        except Exception as error:
            # Any error ends its own case alone; the others are measured.
            found, broken = impersonal(f"{type(error).__name__}: {error}"), True
        if isinstance(found, str):
            report["unsupported"][text] = found
            print(f"{'-':>9} {text}: {found}", flush=True)
        else:
            report["rows"].append(found)
            print(line(found), flush=True)
        if arguments.json:
            write_json(arguments.json, report)
    report["clocks"]["end"] = clocks_under_load()
    if arguments.json:
        write_json(arguments.json, report)
    return 1 if broken or not all(row["correct"] for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
