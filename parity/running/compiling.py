"""Compilation of the CPU kernels as a step of its own, so that no case and no prompt is booked with it.

numba compiles a kernel at its first call and keeps it in its cache. What is compiled is noted beside that cache, so
that a warm command need not ask numba, whose import takes longer than many a run.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import llvmlite.binding
import xxhash

from qsa.golden import files
from qsa.kernels.sources import content_hash, reachable, root

from .. import progress
from ..suite import ON_OPERATIONS, Case

FOLDERS = ("kernels/cpu", "kernels", "reference")
"""Folders whose files can change a compiled kernel: those of the kernels, and what they import."""

VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_DEBUG", "NUMBA_BOUNDSCHECK")
"""Environment variables by which numba compiles otherwise."""

ATTENTION = ("attend", "corners")
"""Operations of cases that call no kernel but attention."""


def jobs_of(cases: Iterable[Case], arithmetic: str) -> list[str] | None:
    """The jobs of ``qsa.kernels.cpu.warm`` that the ``cases`` need; None: all of them, as a whole model does."""
    found = set()
    for case in cases:
        # One that `qsa shrink` made smaller has no recipe: any operation may be in it.
        if case.module not in (*ON_OPERATIONS, "shrunk"):
            return None
        op = case.recipe.get("op", case.recipe.get("family"))
        if op in ATTENTION or case.module in ("verify-batch", "shrunk"):
            found.add(f"attend {arithmetic}")
        if op not in ATTENTION:
            found.add("cells")
    return sorted(found)


def missing(jobs: Collection[str] | None) -> list[str] | None:
    """Those of ``jobs`` (None: all) whose kernels are not in the cache; None: nothing is known of all of them."""
    noted = _noted()
    if jobs is None:
        return [] if noted.get("all") else None
    return [job for job in jobs if job not in noted.get("jobs", ())]


def compile_missing(command: str, jobs: Collection[str] | None = None) -> float:
    """Compile the kernels of ``jobs`` (None: all) that are missing, in parallel processes, and show it on standard
    error; returns the seconds that it took, 0 when nothing was missing.

    command  the command that needs them, for the reader
    """
    wanted = missing(jobs)
    if wanted == []:
        return 0.0
    started = time.monotonic()
    # Imported here: it brings numba.
    from qsa.kernels.cpu import warm

    names = list(warm.JOBS) if wanted is None else wanted
    work = progress.Work(command)
    work.begin(f"compiling kernels, {len(names)} parts", len(names))
    if not sys.stderr.isatty():
        print(f"{command}: compiling kernels, {len(names)} parts", file=sys.stderr, flush=True)
    with progress.shown(command, work=work):
        warm.warm(jobs=names, on_job=lambda name, seconds: work.advance())
    _note(names, wanted is None or set(names) == set(warm.JOBS))
    seconds = time.monotonic() - started
    print(f"{command}: kernels compiled in {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def _place() -> Path:
    """The file in which it is noted what is compiled: where numba's cache lies, so that both go together."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if folder:
        return Path(folder) / "qsa-compiled.json"
    beside = root() / "kernels" / "cpu" / "__pycache__"
    if os.access(beside if beside.is_dir() else beside.parent, os.W_OK):
        return beside / "qsa-compiled.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qsa-parity" / "compiled.json"


def _key() -> dict[str, Any]:
    """What a compiled kernel depends on beside the sources."""
    return {
        "python": f"{sys.implementation.cache_tag} {platform.machine()}",
        "versions": [importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")],
        "processor": [llvmlite.binding.get_host_cpu_name(), *sorted(llvmlite.binding.get_host_cpu_features().items())],
        "variables": [os.environ.get(name, "") for name in VARIABLES],
        "folder": str(root()),
    }


def _files() -> str:
    """Hash of names, times and sizes of the sources: equal as long as nobody has written to one."""
    hasher = xxhash.xxh3_128()
    for folder in FOLDERS:
        for path in sorted((root() / folder).rglob("*.py") if folder != "kernels" else (root() / folder).glob("*.py")):
            status = path.stat()
            hasher.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return hasher.hexdigest()


def _sources() -> str:
    """Hash of the sources' content, as kernels/cpu/common/jit.py ties the cache to it; takes a fraction of a second."""
    return content_hash(reachable(["kernels/cpu"]))


def _noted() -> dict[str, Any]:
    """What was noted under today's key and sources; empty when that is nothing."""
    try:
        noted = json.loads(_place().read_text(encoding="utf-8"))
        if noted["key"] != json.loads(json.dumps(_key())):
            return {}
        if noted["files"] != _files():
            if noted["sources"] != _sources():
                return {}
            # Written to, and the same again: the next command need not read them.
            _write({**noted, "files": _files()})
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return noted


def _note(jobs: Collection[str], whole: bool) -> None:
    noted = _noted()
    every = {*noted.get("jobs", ()), *jobs}
    _write(
        {
            "key": _key(),
            "files": _files(),
            "sources": _sources(),
            "jobs": sorted(every),
            "all": whole or noted.get("all", False),
        }
    )


def _write(noted: dict[str, Any]) -> None:
    # Where nothing can be written every command asks numba again, which costs time and nothing else.
    with contextlib.suppress(OSError):
        files.write(_place(), json.dumps(noted, indent=1) + "\n")
