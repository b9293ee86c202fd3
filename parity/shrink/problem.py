"""One call of ``attend`` or ``select`` as plain arrays: built, judged, written to a file and read from it.

A file is in the safetensors format; its metadata has, as JSON under the key ``qsa``, what is no array.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from qsa.golden import files
from qsa.reference.exact import attend as exact_attend
from qsa.reference.formats import FORMATS, pack_nibbles
from qsa.reference.geometry import REAL, RULES
from qsa.reference.kv import PagedKV, Pool
from qsa.reference.select import select

from ..backend import Backend
from ..checks import attend_inputs as data
from ..checks.selected import ids_comparison
from ..compare.comparison import Comparison, equal
from ..compare.localise import explain

OWN = data.OWN

KEY = "qsa"

VERSION = 1

LARGEST = 1 << 30
"""Bytes of a file that is read: far more than any that is written."""


@dataclass(frozen=True)
class AttendProblem:
    """A call of ``attend`` over one slot.

    q         float32 [rows, n_head, head_dim]; ids int32 [rows, cap], which the call gets padded to 2,051; steps int32
              [rows, 4]
    cells     int64 [n], ascending: the cells that are there
    k, v      [n, n_head_kv, head_dim]: codes int8 of the format, or values float32
    k_scale, v_scale  float32 [n, n_head_kv, groups]; no groups where the values are no codes
    pages     int64 [m, 2]: logical and physical page of every page that is there
    capacity  cells of the slot; ``page`` cells of a page; ``format`` of our pools, or ``own``
    """

    q: np.ndarray
    ids: np.ndarray
    steps: np.ndarray
    cells: np.ndarray
    k: np.ndarray
    k_scale: np.ndarray
    v: np.ndarray
    v_scale: np.ndarray
    pages: np.ndarray
    capacity: int
    page: int
    format: str
    schedule: str = "batch"
    splits: int = 1

    def arguments(self, backend: Backend) -> data.AttendInputs:
        """The arguments of the call; the cells of pages that no row selects are poisoned."""
        none = np.zeros((len(self.cells), REAL.n_head_kv, REAL.head_dim), np.float32)
        k, v = (self.k, self.v) if self.format == OWN else (none, none)
        kv: Any = backend.own_kv(self.k, self.v, self.cells, self.capacity) if self.format == OWN else self._paged()
        ids = np.full((len(self.ids), max(REAL.max_width, self.ids.shape[1])), -1, np.int32)
        ids[:, : self.ids.shape[1]] = self.ids
        return data.AttendInputs(self.q, kv, ids, self.steps, self.cells, k, v)

    def _paged(self) -> PagedKV:
        table = np.full(-(-self.capacity // self.page), -1, np.int32)
        table[self.pages[:, 0]] = self.pages[:, 1]
        kv = PagedKV(Pool(self.format, int(self.pages[:, 1].max(initial=0)) + 1, self.page), table)
        physical, at = kv.locate(self.cells)
        here = physical >= 0
        for side, codes, scale in ((kv.pool.k, self.k, self.k_scale), (kv.pool.v, self.v, self.v_scale)):
            side.codes[...] = {"int8": 127, "q4_0": 0xFF}.get(side.coding, np.nan)
            side.scale[...] = np.nan
            packed = pack_nibbles(codes) if side.coding == "q4_0" else codes
            side.codes[physical[here], :, at[here]] = packed[here]
            side.scale[physical[here], :, at[here]] = scale[here]
        return kv

    def check(self, backend: Backend) -> list[Comparison]:
        """The comparison of the call: equal bytes in the exact arithmetic, else float64 and its bound."""
        w = self.arguments(backend)
        got = backend.attend(w.q, w.kv, w.ids, w.steps, schedule=self.schedule, splits=self.splits)
        name = f"attend: {self.schedule}"
        if backend.arithmetic == "exact":
            right = exact_attend(w.q, w.kv, w.ids, w.steps)
            found = equal(name, right, got)
            return [found if found.passed else found.noted(*explain(backend, w, right, got))]
        expected = data.truth(w)
        bound, reason = data.float_bound(w, expected, backend.declaration.types)
        return [data.held(backend, name, w, expected, got, bound, reason)]

    def size(self) -> str:
        """The size in words."""
        heads = int(self.q.any(axis=(0, 2)).sum())
        n_kv = int(self.steps[:, 1].max(initial=0))
        return f"{len(self.q)} rows, {heads} heads with a query, a context of {n_kv}, {len(self.cells)} cells"


@dataclass(frozen=True)
class SelectProblem:
    """A call of ``select``: scores float32 [rows, blocks], steps int32 [rows, 4], ``rule``, ``schedule`` or None."""

    scores: np.ndarray
    steps: np.ndarray
    rule: str
    schedule: str | None = None

    def check(self, backend: Backend) -> list[Comparison]:
        """The comparison of the call: with the one right selection, as ``checks/selected.py`` holds it."""
        scores = backend.rounded("index_scores", self.scores)
        got = backend.select(scores, self.steps, self.rule, schedule=self.schedule)
        right = select(scores, self.steps, rule=self.rule)
        return [ids_comparison(backend, "select", right, got, scores, self.steps)]

    def size(self) -> str:
        """The size in words."""
        values = len(np.unique(self.scores[:, : int(self.steps[:, 2].max(initial=0))]))
        return f"{len(self.scores)} rows, {int(self.steps[:, 2].max(initial=0))} blocks, {values} different scores"


Problem = AttendProblem | SelectProblem

_KINDS: dict[str, type[Any]] = {"attend": AttendProblem, "select": SelectProblem}

_REPEATED = ("k", "k_scale", "v", "v_scale")
"""Arrays of a row for each cell: equal rows are written once."""


def save(path: str | Path, problem: Problem, about: dict[str, str]) -> int:
    """Write ``problem`` to a file; ``about`` has further words (the case, the backend). Returns its bytes. Raises
    OSError."""
    kind = next(name for name, each in _KINDS.items() if isinstance(problem, each))
    arrays, plain = {}, {}
    for name, value in asdict(problem).items():
        if not isinstance(value, np.ndarray):
            plain[name] = value
        elif name in _REPEATED and value.size:
            rows, inverse = np.unique(value.reshape(len(value), -1), axis=0, return_inverse=True)
            arrays[name] = rows.reshape(-1, *value.shape[1:])
            arrays[f"{name}.row"] = inverse.reshape(-1).astype(np.int32)
        elif name == "q":
            # Most heads have a query of 0.
            heads = np.flatnonzero(value.any(axis=(0, 2)))
            arrays[name], arrays["q.heads"] = value[:, heads], heads.astype(np.int32)
            plain["n_head"] = value.shape[1]
        else:
            arrays[name] = value
    head = {"version": VERSION, "kind": kind, **plain, "about": about}
    text = to_bytes({key: np.ascontiguousarray(value) for key, value in arrays.items()}, {KEY: json.dumps(head)})
    files.write_bytes(Path(path), text)
    return len(text)


def load(path: str | Path) -> Problem:
    """The problem of a file of :func:`save`. Raises ValueError that names the file, OSError."""
    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path}: {path.stat().st_size} bytes: {LARGEST} at most are read")
    try:
        with safe_open(path, framework="numpy") as opened:
            head = json.loads((opened.metadata() or {})[KEY])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
        kind = _KINDS[head["kind"]]
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']}: must be {VERSION}")
        for name in _REPEATED:
            if f"{name}.row" in arrays:
                arrays[name] = arrays[name][arrays.pop(f"{name}.row")]
        if "q" in arrays:
            q = np.zeros((len(arrays["q"]), head.pop("n_head"), REAL.head_dim), np.float32)
            q[:, arrays.pop("q.heads")] = arrays["q"]
            arrays["q"] = q
        plain = {name: value for name, value in head.items() if name not in ("version", "kind", "about")}
        problem = kind(**arrays, **plain)
        _check(problem)
    except (SafetensorError, KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: is no file of qsa shrink: {type(error).__name__}: {error}") from error
    return problem


def _check(problem: Problem) -> None:
    """Raises ValueError unless shapes and options of a problem fit."""
    rows = len(problem.steps)
    if problem.steps.dtype != np.int32 or problem.steps.shape != (rows, 4):
        raise ValueError(f"steps: {problem.steps.dtype} {list(problem.steps.shape)}: must be int32 [rows, 4]")
    if isinstance(problem, SelectProblem):
        if problem.rule not in RULES or problem.scores.ndim != 2 or len(problem.scores) != rows:
            raise ValueError(f"rule {problem.rule!r}, scores {list(problem.scores.shape)}: do not fit")
        return
    n = len(problem.cells)
    if problem.format not in (*FORMATS, OWN):
        raise ValueError(f"format = {problem.format!r}: allowed are {', '.join((*FORMATS, OWN))}")
    shapes = {name: getattr(problem, name).shape[:2] for name in _REPEATED}
    if any(shape != (n, REAL.n_head_kv) for shape in shapes.values()):
        raise ValueError(f"K and V: {shapes}: must begin with [{n}, {REAL.n_head_kv}]")
    if len(problem.q) != rows or len(problem.ids) != rows:
        raise ValueError(f"q and ids: {len(problem.q)} and {len(problem.ids)} rows: steps have {rows}")
