"""How K and V are stored: ``append_kv`` into pools of ours, or a backend's own ``cache``, ``append`` and ``read``.

In the exact arithmetic the codes are bytes. In the float arithmetic, and in own storage, the values that are read back
are held to the values given: the error of storage is judged apart from that of the kernel.
"""

from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.reference.append_kv import append_kv as reference_append
from qsa.reference.formats import rotate
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import Cells, PagedKV, read_kv

from ..backend import Backend
from ..compare.comparison import Comparison, equal, error, relative_error
from ..contract import OwnKV
from .attend_inputs import OWN

AXES = ("cell", "kv head", "dim")

PIECE = 32
"""Dims whose error is held together where codes have scales: the smallest group of a format."""


def given_kv(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, v) float32 [rows, kv heads, dim]. A group of zeros has scale 0; a very large and a very small group have
    scales at the ends of fp16."""
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    k, v = (inputs.bell(seed, f"accuracy.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    k[0, 0, :64], v[0, 1, 64:128], k[0, 1, :64], v[0, 0, :] = 0, 2.0**16, 2.0**-22, 0
    return k, v


def append_kv(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of an append: to the bytes of the reference, or as values."""
    rows, seed = recipe["rows"], recipe["seed"]
    if recipe["format"] == OWN:
        return _own(backend, rows, seed)
    k, v = given_kv(rows, seed)
    if recipe["format"] == "fp16":
        # 2^16 is beyond fp16.
        v[0, 1, 64:128] = 2.0**15
    steps, cells = step_records(np.arange(rows)), np.arange(rows)
    given, expected = (PagedKV.new(recipe["format"], rows, 4) for _ in range(2))
    reference_append(k, v, expected, steps)
    got = backend.append_kv(k, v, given, steps)
    ours, theirs = read_kv(expected, cells), read_kv(got, cells)
    if backend.arithmetic == "exact":
        return [
            equal(f"append_kv: {name}", getattr(ours, name), getattr(theirs, name), AXES, "codes are exact to the bit")
            for name in ("k_codes", "k_scale", "v_codes", "v_scale")
            # fp16 has no scales.
            if getattr(ours, name).size or getattr(theirs, name).size
        ]
    return [stored_values(name, name, x, ours, theirs, given.pool.format) for name, x in (("k", k), ("v", v))]


def stored_values(name: str, side: str, x: np.ndarray, ours: Cells, theirs: Cells, format: str) -> Comparison:
    """The error of the stored values of ``side``, k or v, in pieces of 32 dims, against that of the reference's codes.

    A zero group stored under a scale of -0, or codes under a scale of 0, are equal values in other bytes.
    """
    number = "kv".index(side)
    right, got = ours.values()[number], theirs.values()[number]
    coded = format == "q4_0" or (format == "k8v4" and side == "v")
    x = rotate(x.astype(np.float64)) if coded else x.astype(np.float64)
    pieces = (*x.shape[:-1], x.shape[-1] // PIECE, PIECE)
    x, right, got = (array.reshape(pieces) for array in (x, right, got))
    bound = 1.05 * relative_error(x, right) + 2.0**-11
    # What the reference stores as 0 or cannot reach is held to the reference itself.
    lost = ~np.isfinite(bound) | (relative_error(x, right) >= 1)
    truth = np.where(lost[..., None], right, x)
    bound = np.where(lost, 2.0**-11, bound)
    reason = (
        "1.05 x the error of the reference's codes in the same 32 dims (a code may round the other way near a half)"
    )
    return error(f"append_kv: {name}", truth, got, bound, f"{reason}, and 2^-11: a rounding of the scale to fp16")


def _own(backend: Backend, rows: int, seed: int) -> list[Comparison]:
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    k, v = (inputs.bell(seed, f"accuracy.{side}", rows, shape[1] * shape[2]).reshape(shape) for side in "kv")
    k[0, 0, :], v[rows // 2, 1, :] = 0, 0
    positions = np.arange(rows)
    gaps = 3 * positions[::-1] + 1
    found = []
    for at, pieces, text in (
        (positions, 1, "at once"),
        (positions, min(3, rows), "in pieces"),
        (gaps, min(3, rows), "at other positions, the last first"),
    ):
        stored = backend.own_kv(k, v, at, int(at.max()) + 2, pieces)
        found += storage_error(backend, stored, k, v, at, text)
    # A draft that is rolled back leaves its cells, and the next tokens are written over them.
    twice = np.concatenate([positions, positions])
    drafts = np.concatenate([v, k]), np.concatenate([k, v])
    stored = backend.own_kv(*drafts, twice, rows + 1, 2)
    again = storage_error(backend, stored, drafts[0][rows:], drafts[1][rows:], positions, "written again")
    return found + again


def storage_error(
    backend: Backend, stored: OwnKV, k: np.ndarray, v: np.ndarray, positions: np.ndarray, text: str
) -> list[Comparison]:
    """The values read back against those given [n, kv heads, dim], each vector held to the declared error."""
    bound = backend.declaration.storage_error
    assert bound is not None
    values = read_kv(stored.paged, positions).values()
    reason = f"declared: storage_error {bound:.3g} ({backend.declaration.types.kv})"
    return [
        error(f"append: {name}, {text}", given.astype(np.float64), got, bound, reason, AXES)
        for name, given, got in zip("kv", (k, v), values, strict=True)
    ]


def unchanged(backend: Backend, stored: OwnKV, cells: np.ndarray) -> Comparison:
    """What own storage reads after a call against what it read before."""
    before = np.stack(read_kv(stored.paged, cells).values())
    after = np.stack(backend.read_own(stored.handle, cells))
    return equal("attend: own storage", before, after, ("side", *AXES), "attention reads K and V, and writes neither")
