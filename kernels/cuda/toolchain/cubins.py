"""Machine code of compiled kernels, kept on disk: a process need not compile what an earlier one did.

An entry is a file named by all that can change the code: the kernel's own code with every function and constant that
it reaches, in closures and in modules of the project; the sources of ``kernels/cuda`` with what they import; the types
of the arguments; the options of the kernel; the compute capability; the versions of Python, the compiler and the tools
behind it; numba's environment variables. A function that was exchanged in a running process so has an entry of its own.
What does not end in the hash of its content counts as if there were no file.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import xxhash

from ...sources import PROJECT, content_hash, reachable, root
from .choice import compiler_name

PACKAGES = ("numba", "llvmlite", "numba-cuda", "numba-cuda-mlir", "cuda-", "nvidia-cuda-nv", "nvidia-nvjitlink")
"""Beginnings of the names of the packages that compile: the compilers and the tools that they call."""

VARIABLES = ("NUMBA_", "CUDA_HOME", "CUDA_PATH")
"""Beginnings of the names of environment variables by which the compilers compile otherwise."""

OFF = "QSA_CUDA_CACHE"
"""Environment variable that turns the disk off where it is ``0``."""


class MachineCode(NamedTuple):
    """What is loaded on a device: the code (a cubin) and the kernel's name in it."""

    code: bytes
    name: str


def folder() -> Path | None:
    """Folder of the entries, None where :data:`OFF` is ``0``: ``$QSA_CACHE/cubins``, else in a checkout
    ``build/cache/cubins``, else ``qsa-parity/cubins`` in the user's folder of caches."""
    if os.environ.get(OFF) == "0":
        return None
    chosen = os.environ.get("QSA_CACHE")
    if chosen:
        return Path(chosen) / "cubins"
    if (root() / "pyproject.toml").is_file():
        return root() / "build" / "cache" / "cubins"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qsa-parity" / "cubins"


@cache
def _sources() -> str:
    return content_hash(reachable(["kernels/cuda"]))


@cache
def _tools() -> list[str]:
    """Name and version of every installed package of :data:`PACKAGES`, and of the libraries that the system has."""
    found = {f"{d.name}=={d.version}" for d in importlib.metadata.distributions() if d.name.startswith(PACKAGES)}
    for module in ("nvvm", "nvjitlink"):
        with contextlib.suppress(Exception):  # Where a library is missing, nothing was compiled by it.
            found.add(f"{module} {importlib.import_module(f'cuda.bindings.{module}').version()}")
    return sorted(found)


def key(kernel: Any, types: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """The name of the entry of ``kernel`` for arguments of ``types`` on devices of ``capability``: 32 hex digits."""
    settings = sorted((n, v) for n, v in os.environ.items() if n.startswith(VARIABLES) and n != "NUMBA_CACHE_DIR")
    parts = {
        "code": code_hash(kernel.py_func),
        "types": [str(kind) for kind in types],
        "options": sorted((name, repr(value)) for name, value in kernel.targetoptions.items()),
        "capability": capability,
        "sources": _sources(),
        "python": [sys.implementation.cache_tag, platform.machine()],
        "compiler": compiler_name(),
        "tools": _tools(),
        "variables": settings,
    }
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode())


def code_hash(function: Any) -> str:
    """Hash of the code of ``function`` and of all that it reaches: 32 hex digits, the same in every process."""
    hasher = xxhash.xxh3_128()
    for part in _parts(function, {}):
        hasher.update(f"{len(part)} {part}\n".encode())
    return hasher.hexdigest()


def _parts(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """What ``value`` is, as texts; ``seen``: functions that were gone through, by identity, and their numbers."""
    value = getattr(value, "py_func", value)
    if isinstance(value, FunctionType):
        if id(value) in seen:
            yield f"function {seen[id(value)]}"
            return
        seen[id(value)] = len(seen)
        yield f"function {value.__module__}.{value.__qualname__}"
        yield from _code(value.__code__, value.__globals__, seen)
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents, seen)
        yield from _parts(value.__defaults__, seen)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} of {len(value)}"
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, int | float | complex | str | bytes | None):
        yield f"{type(value).__name__} {value!r}"
    else:
        # Modules, classes and the compiler's own objects; an address would differ from process to process.
        text = str(value)
        name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
        yield f"{type(value).__module__}.{type(value).__qualname__} {name} {'' if ' at 0x' in text else text}"


def _code(code: CodeType, scope: dict[str, Any], seen: dict[int, int]) -> Iterator[str]:
    yield f"code {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_argcount}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, scope, seen)
        else:
            yield from _parts(constant, seen)
    reached = [scope[name] for name in code.co_names if name in scope]
    for value in reached:
        if not isinstance(value, ModuleType):
            yield from _parts(value, seen)
        elif value.__name__.split(".")[0] == PROJECT:
            for name in code.co_names:
                if hasattr(value, name):
                    yield from _parts(getattr(value, name), seen)


def find(name: str) -> MachineCode | None:
    """The entry ``name``, or None where there is none or it is not whole."""
    where = folder()
    if where is None:
        return None
    try:
        content = (where / name).read_bytes()
    except OSError:
        return None
    body, seal = content[:-16], content[-16:]
    if len(seal) < 16 or xxhash.xxh3_128_digest(body) != seal:
        return None
    title, _, code = body.partition(b"\n")
    return MachineCode(code, title.decode())


def keep(name: str, made: MachineCode) -> None:
    """Write the entry ``name``, whole or not at all. A folder that cannot be written to is left: the code is then
    compiled again by the next process."""
    where = folder()
    if where is None:
        return
    body = made.name.encode() + b"\n" + made.code
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=where, prefix=".", delete=False) as file:
            file.write(body + xxhash.xxh3_128_digest(body))
        os.replace(file.name, where / name)
