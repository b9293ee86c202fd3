"""A solution of the FlashInfer Trace schema as a backend: its one function behind the contract.

A solution is code: it runs with the rights of whoever names it, and nothing runs it but its name as a backend. So this
file is loaded where backends are, and keeps off the judge's own arithmetic (``isolation/barrier.py``).
"""

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..cases.own_cells import OwnCells
from ..contract import Declaration, Domain, Types, UnsupportedError
from ..contract.arrays import from_numpy, is_array, to_numpy
from .definitions import Typed, named
from .schema import Solution, read_solution

LANGUAGES = ("python", "triton")


class Function:
    """The entry point of a solution: NumPy arrays in the order of the definition in, the output as a NumPy array."""

    def __init__(self, solution: Solution, which: Typed) -> None:
        self.spec, self.which = solution.spec, which
        self.device = "cpu" if "cpu" in map(str.lower, self.spec.target_hardware) else "cuda"
        # Kept as long as the function: a compiler such as Triton's reads the source again.
        self._folder = tempfile.TemporaryDirectory(prefix="qsa-solution-")
        self.run = _entry(solution, Path(self._folder.name))

    def __call__(self, given: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """The output, of ``shape``. Raises ValueError where it is not of the definition's shape and dtype."""
        name = next(iter(self.which.kind.outputs))
        dtype = _dtype(self.which.dtype(name))
        arguments = [from_numpy(given[each], "torch", self.device) for each in self.which.kind.inputs]
        if self.spec.destination_passing_style:
            # An element that is not written stays what no right output has.
            blank = np.full(shape, -(2**31) if dtype.kind == "i" else np.nan, dtype)
            result = from_numpy(blank, "torch", self.device)
            self.run(*arguments, result)
        else:
            result = self.run(*arguments)
            if isinstance(result, dict):
                result = result.get(name)
            elif isinstance(result, (list, tuple)) and len(result) == 1:
                result = result[0]
        if not is_array(result):
            raise ValueError(f"{self.spec.entry_point}: gave {type(result).__name__}: must be the tensor {name}")
        found = to_numpy(result)
        if found.shape != shape or found.dtype != dtype:
            got, right = f"{found.dtype} {list(found.shape)}", f"{dtype} {list(shape)}"
            raise ValueError(f"{self.spec.entry_point}: gave {name} {got}: must be {right}")
        return found


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def _entry(solution: Solution, folder: Path) -> Callable[..., Any]:
    """The function that a solution names. Raises ValueError that names the cause, whatever its import raises."""
    for source in solution.sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, encoding="utf-8")
    file, _, symbol = solution.spec.entry_point.partition("::")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"qsa_solution_{folder.name}", folder / file)
    if spec is None or spec.loader is None:
        raise ValueError(f"solution {solution.name!r}: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        text = f"{type(error).__name__} while importing it: {error}"
        raise ValueError(f"solution {solution.name!r}: {text}") from error
    function = getattr(module, symbol, None)
    if not callable(function):
        raise ValueError(f"solution {solution.name!r}: {file} has no function {symbol!r}")
    return function


def load(path: Path) -> Any:
    """The solution in ``path`` as a backend; its code is imported. Raises ValueError that names what does not fit."""
    solution = read_solution(path)
    if solution.spec.language not in LANGUAGES:
        language = solution.spec.language
        raise ValueError(f"solution {solution.name!r}: language {language!r}: allowed are {', '.join(LANGUAGES)}")
    which = named(solution.definition)
    try:
        import torch  # noqa: F401 - whether it is there
    except ImportError:
        raise ValueError(f"solution {solution.name!r}: gets torch tensors: install torch") from None
    return _BACKENDS[_kind(which)](Function(solution, which), which)


def _kind(which: Typed) -> str:
    return "cells" if "positions" in which.kind.inputs else which.kind.operation


class _Backend:
    """``function`` as a backend that declares the number types of its definition."""

    def __init__(self, function: Function, which: Typed, **declared: Any) -> None:
        self.function, self.which = function, which
        self.declaration = Declaration(types=Types(**which.types), **declared)  # type: ignore[arg-type]


class _Cells(_Backend):
    """Attention over given cells: own storage that keeps them as they are."""

    def cache(self, capacity: int) -> OwnCells:
        return OwnCells(capacity, "float32")

    def append(self, cache: OwnCells, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        cache.append(k, v, positions)

    def read(self, cache: OwnCells, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return cache.read(positions)

    def attend(self, q: np.ndarray, kv: OwnCells, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        positions = np.sort(kv.positions)
        k, v = kv.read(positions)
        given = {"q": q, "k": k, "v": v, "positions": positions, "ids": _padded(ids), "steps": steps}
        return self.function(given, q.shape)


class _Pools(_Backend):
    """Attention over our pools in one format."""

    def __init__(self, function: Function, which: Typed) -> None:
        format = "int8" if "k_scale" in which.kind.inputs else "fp16"
        # The definition says what these are.
        super().__init__(function, which, formats=[format], domain=Domain(absent_ids=True, absent_pages=True))

    def attend(self, q: np.ndarray, kv: PagedKV, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        pool = kv.pool
        given = {f"{name}_codes": side.codes for name, side in (("k", pool.k), ("v", pool.v))}
        given |= {f"{name}_scale": side.scale for name, side in (("k", pool.k), ("v", pool.v))}
        return self.function(given | {"q": q, "table": kv.table, "ids": _padded(ids), "steps": steps}, q.shape)


class _Scores(_Backend):
    def block_scores(self, q_idx: np.ndarray, index: Index, steps: np.ndarray) -> np.ndarray:
        return self.function({"q_idx": q_idx, "pooled": index.pooled, "steps": steps}, (len(q_idx), index.max_blocks))


class _Select(_Backend):
    def __init__(self, function: Function, which: Typed) -> None:
        rule = "cells" if "cells" in which.name.split("__")[0] else "blocks"
        super().__init__(function, which, rules=[rule])

    def select(self, scores: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return self.function({"scores": scores, "steps": steps}, (len(scores), REAL.max_width))


def _padded(ids: np.ndarray) -> np.ndarray:
    """``ids`` [rows, n] with the definition's width. Raises UnsupportedError where they are wider."""
    if ids.shape[1] > REAL.max_width:
        raise UnsupportedError(f"attend: {ids.shape[1]} ids of a row: the definition has {REAL.max_width}")
    padded = np.full((len(ids), REAL.max_width), -1, np.int32)
    padded[:, : ids.shape[1]] = ids
    return padded


_BACKENDS: dict[str, Callable[[Function, Typed], _Backend]] = {
    "cells": _Cells,
    "attend": _Pools,
    "block_scores": _Scores,
    "select": _Select,
}
