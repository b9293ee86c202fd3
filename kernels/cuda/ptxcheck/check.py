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
    ``missing``: texts it should hold and does not; ``stack`` and ``spills`` in bytes a lane; ``shared`` static bytes.
    """

    inexact: tuple[str, ...]
    missing: tuple[str, ...]
    stack: int
    spills: int
    registers: int
    shared: int


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
            inexact_instructions(ptx), tuple(text for text in row.expect if text not in ptx), **accounts[target]
        )
        for target, ptx in texts.items()
    }
    if known:
        kept = {"key": key, "reports": [[target, asdict(report)] for target, report in found.items()]}
        known.write_text(json.dumps(kept))
    return found


def _report(fields):
    return Report(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
