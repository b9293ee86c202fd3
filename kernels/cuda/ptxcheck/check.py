"""What the compiler and ptxas make of a kernel, read without a GPU: PTX text, stack, spills, registers.

Results are kept in a folder by a hash of all sources that the kernels can read, so unchanged sources are not compiled
again.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ...sources import content_hash, reachable
from ..toolchain.constants import OVERLAPPING
from ..toolchain.host import waits_for_earlier
from ..toolchain.ptx_rows import PtxRow

TARGETS = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
"""Compute capabilities that kernels are compiled for; (7, 5) where a kernel has a form for it."""

PROCESSES = 2
"""ptxas processes at a time."""

_INSTRUCTION = re.compile(r"\s*\{?\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)")
# ptxas itself contracts a product and a sum that name no rounding.
_INEXACT = re.compile(
    r"^fma\.|^mad\..*f(?:16|32)|^(?:add|sub|mul)\.(?!rn\.).*f(?:16|32)|^div\.full|\.approx|\.ftz|\.f64"
)


@dataclass(frozen=True)
class Report:
    """One kernel for one target. ``inexact``: its fused, fusible, approximate, flushing or float64 instructions;
    ``missing``: texts it should hold and does not; ``stack`` and ``spills`` in bytes a lane; ``shared`` static bytes;
    ``early``: what a kernel that waits for earlier launches does before that (:func:`before_wait`).
    """

    inexact: tuple[str, ...]
    missing: tuple[str, ...]
    stack: int
    spills: int
    registers: int
    shared: int
    early: tuple[str, ...] = ()


@cache
def find_ptxas() -> Path | str | None:
    """Path of ptxas, from the wheels or the PATH; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(root).glob("*/bin/ptxas")):
            return path
    return shutil.which("ptxas")


def instructions(ptx: str) -> list[str]:
    """Names of all instructions in PTX text, those of inline assembly included."""
    lines = [part for line in ptx.splitlines() if not line.lstrip().startswith((".", "//")) for part in line.split(";")]
    names = (_INSTRUCTION.match(line) for line in lines)
    return [match[1] for match in names if match and "." in match[1]]


def inexact_instructions(ptx: str) -> tuple[str, ...]:
    """Instructions, sorted, that an exact kernel must not hold."""
    return tuple(sorted({name for name in instructions(ptx) if _INEXACT.search(name)}))


WAIT = "griddepcontrol.wait"
_LABEL = re.compile(r"^\s*([$\w]+):")
_BRANCH = re.compile(r"^(@!?%p\d+\s+)?bra(?:\.uni)?\s+([$\w]+)$")
_ACCESS = re.compile(r"(?:ld|ldu|st|red|atom|cp|prefetch|tex|tld4|suld|sust)\.")
_OWN_MEMORY = re.compile(r"\.(?:param|shared|local|const)\b")


def before_wait(ptx: str) -> tuple[str, ...]:
    """What the kernel of ``ptx`` can do on some path without having waited for earlier launches: accesses to memory
    that others see, its end, and jumps by a table, which are not followed; sorted. One that waits in time gives ()."""
    body = ptx[ptx.index("{", ptx.index(".entry")) + 1 :]
    statements: list[str] = []
    labels: dict[str, int] = {}
    for line in body.splitlines():
        line = line.split("//")[0]
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(statements)
            line = line[label.end() :]
        if not line.lstrip().startswith("."):
            statements += [part.strip(" \t{}") for part in line.split(";") if part.strip(" \t{}")]
    found, seen, todo = set(), set(), [0]
    while todo:
        at = todo.pop()
        while at not in seen:
            seen.add(at)
            if at == len(statements):
                found.add("end")
                break
            name = re.sub(r"^@!?%p\d+\s+", "", statements[at])
            branch = _BRANCH.match(statements[at])
            if name == WAIT and name == statements[at]:
                break
            if branch:
                todo.append(labels[branch[2]])
                if not branch[1]:
                    break
            elif re.match(r"(ret|exit)\b|brx|call", name):
                found.add(name.split()[0])
                if name == statements[at]:
                    break
            elif _ACCESS.match(name) and (name.startswith("cp.") or not _OWN_MEMORY.search(name.split()[0])):
                found.add(name.split()[0])
            at += 1
    return tuple(sorted(found))


def assemble(ptx: str, target: tuple[int, int], max_registers: int | None = None) -> dict[str, int]:
    """ptxas's account of ``ptx``: stack, spills, registers, shared. Raises RuntimeError with its message."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        cap = [f"-maxrregcount={max_registers}"] if max_registers else []
        command = [str(find_ptxas()), "-v", f"-arch=sm_{target[0]}{target[1]}", *cap, str(source), "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ptxas for sm_{target[0]}{target[1]}: {done.stderr}")

    def total(pattern):
        return sum(int(number) for number in re.findall(pattern, done.stderr))

    return {
        "stack": total(r"(\d+) bytes stack frame"),
        "spills": total(r"(\d+) bytes spill (?:stores|loads)"),
        "registers": total(r"Used (\d+) registers"),
        "shared": total(r"(\d+) bytes smem"),
    }


def early(row: PtxRow, ptx: str, target: tuple[int, int]) -> tuple[str, ...]:
    """:func:`before_wait` of a row's kernel that waits for earlier launches, on targets that can; () of every other,
    whose PTX must not hold a word of it."""
    if waits_for_earlier(row.kernel) and target >= OVERLAPPING:
        return before_wait(ptx)
    return ("griddepcontrol",) if "griddepcontrol" in ptx else ()


def reports(row: PtxRow, folder: Path | str | None = None) -> dict[tuple[int, int], Report]:
    """:class:`Report` of ``row`` for every target from its minimum on: target -> report. ``folder`` keeps them."""
    from ..toolchain.compiler import NAME, compile_ptx

    targets = [target for target in TARGETS if target >= row.minimum]
    known = Path(folder, f"{row.name}.json") if folder else None
    sources = content_hash(reachable(["kernels/cuda"]))
    key = hashlib.sha256(f"{sources} {NAME} {row.signature} {targets}".encode()).hexdigest()
    if known and known.exists():
        kept = json.loads(known.read_text())
        if kept["key"] == key:
            return {tuple(target): _report(fields) for target, fields in kept["reports"]}
    texts = {target: compile_ptx(row.kernel, row.signature, target) for target in targets}
    cap = row.kernel.targetoptions.get("max_registers")
    with ThreadPoolExecutor(PROCESSES) as pool:
        accounts = dict(zip(targets, pool.map(lambda t: assemble(texts[t], t, cap), targets), strict=True))
    found = {
        target: Report(
            inexact_instructions(ptx),
            tuple(text for text in row.expect if text not in ptx),
            **accounts[target],
            early=early(row, ptx, target),
        )
        for target, ptx in texts.items()
    }
    if known:
        kept = {"key": key, "reports": [[target, asdict(report)] for target, report in found.items()]}
        known.write_text(json.dumps(kept))
    return found


def _report(fields):
    return Report(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
