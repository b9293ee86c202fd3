"""The verdict on every kernel for one target, by the compiler that ``QSA_COMPILER`` names, as a Markdown table.

A compilation runs in a process of its own, which may break without ending the others.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from ...sources import content_hash, reachable
from ..toolchain.choice import COMPILERS, VARIABLE, chosen, compiler_name
from . import check, registry

PATIENCE = 10.0
"""Seconds after which a compilation that runs on says so."""


@dataclass(frozen=True)
class Verdict:
    """One kernel. ``error``: why it does not compile, else empty and the others hold: ``inexact`` instructions and
    ``missing`` texts where the row's contract forbids them, what it does too ``early`` (``check.early``), ``spilled``
    whether it takes more stack or spills than its row allows, ``registers``, ``stack`` and ``spills`` (bytes a lane),
    ``seconds`` of the compilation to PTX."""

    name: str
    error: str = ""
    inexact: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    spilled: bool = False
    registers: int = 0
    stack: int = 0
    spills: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether it compiles and keeps its row's contract."""
        return not (self.error or self.inexact or self.missing or self.early or self.spilled)


def verdict(name: str, target: tuple[int, int]) -> Verdict:
    """:class:`Verdict` of the row ``name`` for ``target``, compiled in this process."""
    from ..toolchain.compiler import compile_ptx

    row = next(row for _, row in registry.registered() if row.name == name)
    begin = monotonic()
    try:
        ptx = compile_ptx(row.kernel, row.signature, target)
        seconds = round(monotonic() - begin, 1)
        found = check.assemble(ptx, target, row.kernel.targetoptions.get("max_registers"))
    except Exception as error:  # A compiler may raise anything; the table says what.
        return Verdict(name, error=_one_line(error), seconds=round(monotonic() - begin, 1))
    stack, spills = row.spilled.get(target, (0, 0))
    return Verdict(
        name,
        inexact=check.inexact_instructions(ptx) if row.exact else (),
        missing=tuple(text for text in row.expect if text not in ptx),
        early=check.early(row, ptx, target),
        spilled=row.hot and (found["stack"] > stack or found["spills"] > spills),
        registers=found["registers"],
        stack=found["stack"],
        spills=found["spills"],
        seconds=seconds,
    )


def _one_line(error: Exception) -> str:
    """The kind of an error and its first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


def verdicts(
    names: Sequence[str], target: tuple[int, int], kept: dict[str, Verdict], done: Callable[[Verdict], None]
) -> list[Verdict]:
    """Of every row in ``names``, in order; those in ``kept`` are taken from there. ``done`` is called with each new
    one. A process that breaks counts as an error of its kernel."""
    found, pool = [], None
    for number, name in enumerate(names, 1):
        if name in kept:
            found.append(kept[name])
            continue
        print(f"{number} of {len(names)}: {name}", file=sys.stderr, flush=True)
        pool = pool or ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        begin, future = monotonic(), pool.submit(verdict, name, target)
        while True:
            try:
                one = future.result(PATIENCE)
            except NotYet:
                print(f"  {name}: {monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
                continue
            except BrokenProcessPool:
                one, pool = Verdict(name, error="the process of the compiler ended"), None
            break
        found.append(one)
        done(one)
    if pool:
        pool.shutdown()
    return found


def lines(found: Sequence[Verdict]) -> list[str]:
    """The table, a line for each verdict, and one that counts them."""
    text = ["| kernel | verdict | registers | stack | spills | s |", "|---|---|---|---|---|---|"]
    for one in found:
        if one.error:
            text.append(f"| `{one.name}` | does not compile: {one.error} | | | | {one.seconds:.0f} |")
            continue
        faults = [f"inexact: {', '.join(one.inexact)}"] * bool(one.inexact)
        faults += [f"lacks {', '.join(one.missing)}"] * bool(one.missing) + ["spills"] * one.spilled
        faults += [f"before it waits: {', '.join(one.early)}"] * bool(one.early)
        sizes = f"{one.registers} | {one.stack} | {one.spills} | {one.seconds:.0f}"
        text.append(f"| `{one.name}` | {'; '.join(faults) or 'passed'} | {sizes} |")
    compiled = sum(not one.error for one in found)
    passed = sum(one.passed for one in found)
    return [*text, "", f"{compiled} of {len(found)} compile, {passed} pass."]


def _target(text: str) -> tuple[int, int]:
    allowed = {f"sm_{major}{minor}": (major, minor) for major, minor in check.TARGETS}
    if text not in allowed:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed are {', '.join(allowed)}")
    return allowed[text]


def _read(path: Path, key: str) -> dict[str, Verdict]:
    """The verdicts of a file that this command wrote for the same sources, compiler and target; {} of another."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    rows = kept["verdicts"] if kept.get("key") == key else []
    found = {}
    for row in rows:
        inexact, missing, early = (tuple(row[field]) for field in ("inexact", "missing", "early"))
        found[row["name"]] = replace(Verdict(**row), inexact=inexact, missing=missing, early=early)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m qsa.kernels.cuda.ptxcheck``: prints the table; 0 when every kernel passes, else 1, and 2 on bad
    arguments, a compiler or a ptxas that is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m qsa.kernels.cuda.ptxcheck",
        description=f"Compile the CUDA kernels without a GPU, with the compiler that {VARIABLE} names "
        f"({', '.join(COMPILERS)}), and print what its PTX holds and what ptxas makes of it.",
    )
    parser.add_argument("--target", type=_target, default=(9, 0), help="compute capability; default: sm_90")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="rows of the PTX list; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the verdicts, and take over those it holds")
    arguments = parser.parse_args(argv)
    try:
        chosen()
        names = [row.name for _, row in registry.registered() if row.minimum <= arguments.target]
    except (ImportError, ValueError) as error:
        parser.error(str(error))
    unknown = sorted(set(arguments.kernels or ()) - set(names))
    if unknown:
        parser.error(f"--kernels: {', '.join(unknown)}: allowed are {', '.join(names)}")
    if check.find_ptxas() is None:
        parser.error("ptxas is missing (extra cuda12 or cuda13)")
    sources = content_hash(reachable(["kernels/cuda"]))
    key = f"{sources} {compiler_name()} {arguments.target}"
    kept = _read(arguments.json, key) if arguments.json else {}

    def done(one):
        kept[one.name] = one
        if arguments.json:
            text = json.dumps({"key": key, "verdicts": [asdict(row) for row in kept.values()]}, indent=1)
            arguments.json.write_text(text + "\n")

    found = verdicts(arguments.kernels or names, arguments.target, kept, done)
    print(f"{compiler_name()}, sm_{arguments.target[0]}{arguments.target[1]}", *lines(found), sep="\n")
    return 0 if all(one.passed for one in found) else 1
