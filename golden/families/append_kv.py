"""Goldens of the K/V append: codes and scales of every format, where they land, and the host's copy.

Every cell of the pools is poisoned beforehand (codes at the limit, NaN scales or values), so that a stray write shows.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.reference.exact import append_kv
from qsa.reference.formats import FORMATS, GROUP, rotate
from qsa.reference.geometry import REAL, step_records
from qsa.reference.kv import PagedKV, Pool, read_kv

from .. import inputs
from ..recipe import ROWS, TAILS, Recipe, check
from ..record import Produced
from .attend import PAGES

VALUES = ("bell", "ties", "tiny", "zero", "extremes")

ALLOWED = {
    "format": ("int8", "q4_0", "k8v4", "fp16"),
    "values": VALUES,
    "context": range(64, 2**17 + 1),
    "slots": range(1, 5),
    "rows": range(1, 9),
    "tail": TAILS,
    "page": PAGES,
    "seed": range(2**63),
}

APART = 13
"""Cells by which each slot's context is shorter than the one before: their offsets in blocks and pages differ."""


Draw = Callable[[int], np.ndarray]
"""below -> int64 [rows, dims] drawn from 0 to below - 1."""


def _ties(draw: Draw, coding: str) -> np.ndarray:
    """Values half-way between two codes (or two float16), and one value in a group that makes the scale 2^-6."""
    if coding == "fp16":
        return (1 + (2 * draw(1023) + 1) / 2048) * np.where(draw(2) > 0, 1, -1)
    top = 127 if coding == "int8" else 8
    halves = (draw(2 * top - 2) - (top - 1) + 0.5).reshape(len(draw(1)), -1, GROUP[coding])
    # Of either sign: a q4_0 scale takes that of the largest magnitude.
    halves[..., 5] = np.where(np.arange(halves.shape[1]) % 2, top, -top)
    return halves * 2.0**-6


def _zero(draw: Draw, coding: str) -> np.ndarray:
    """Zeros of both signs throughout, but for one group of 64 dims in four."""
    values = np.where(draw(2) > 0, 0.0, -0.0).reshape(len(draw(1)), -1, 64)
    values[:, ::4] = (draw(257) - 128).reshape(values.shape)[:, ::4] / 32
    return values


def _extremes(draw: Draw, coding: str) -> np.ndarray:
    """Eighths of 2^15; every group of 32 dims has the limit of one sign or of both, or of one sign twice."""
    values = (draw(15) - 7).reshape(len(draw(1)), -1, 32)
    number = np.arange(values.shape[1])
    values[..., 3] = np.where(number % 4 == 1, -8, 8)
    values[..., 30] = np.where(number % 4 == 3, 8, -8)
    return values * 2.0**12


def _values(seed: int, stream: str, kind: str, coding: str, rows: int) -> np.ndarray:
    """float32 [rows, n_head_kv, head_dim] of one kind, for a side kept in ``coding``."""
    dims = REAL.n_head_kv * REAL.head_dim
    shape = (rows, REAL.n_head_kv, REAL.head_dim)
    if kind in ("bell", "tiny"):
        values = inputs.bell(seed, stream, rows, dims).reshape(shape)
        # Down to scales among the subnormals of float16, and below the least.
        down = 16 + np.arange(rows) if kind == "tiny" else np.zeros(rows)
        return values * np.exp2(-down).astype(np.float32)[:, None, None]

    def draw(below: int) -> np.ndarray:
        return inputs.integers(seed, f"{stream}.{below}", rows, dims, below)

    make = {"ties": _ties, "zero": _zero, "extremes": _extremes}[kind]
    values = make(draw, coding).reshape(shape).astype(np.float32)
    # A q4_0 side is rotated before it is coded. The values have few bits: both rotations are exact and cancel out.
    return rotate(values) if coding == "q4_0" else values


def _poison(pool: Pool) -> None:
    for side in (pool.k, pool.v):
        side.codes[:] = {"int8": 127, "q4_0": 0xFF, "fp16": np.nan}[side.coding]
        side.scale[:] = np.nan


def _written(pool: Pool) -> np.ndarray:
    """Cells int64 [n] of the pool, page * page_size + offset, of which something is no longer poison."""
    changed = np.zeros((pool.n_pages, pool.page_size), bool)
    for side in (pool.k, pool.v):
        mark = side.scale if side.scale.shape[-1] else side.codes
        changed |= ~np.isnan(mark).all(axis=(1, 3))
    return np.flatnonzero(changed)


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``append_kv``: dict of ``k``, ``v`` [rows, 2, 256] float32, ``kv`` (a list of PagedKV with host
    copies), ``steps`` [rows, 4] int32, ``slots`` [rows] int32.

    recipe  format, values, context, slots, rows, tail, page, seed: the rows go to the slots in turn; slot s holds
            context + tail - 13 s cells already. Values: ``bell``-shaped; ``ties`` between codes; ``tiny``, with scales
            among the subnormals; ``zero`` groups; ``extremes`` of one sign or both. Pages are shuffled; of the pages
            that a slot's rows touch the last is not resident when there are several.

    Raises CaseError, naming the parameter, on a recipe outside :data:`ALLOWED`.
    """
    check("append_kv", recipe, ALLOWED)
    seed, rows, page, format = (recipe[key] for key in ("seed", "rows", "page", "format"))
    k, v = (
        _values(seed, f"append_kv.{side}", recipe["values"], coding, rows)
        for side, coding in zip("kv", FORMATS[format], strict=True)
    )
    slots = (np.arange(rows) % recipe["slots"]).astype(np.int32)
    start = recipe["context"] + recipe["tail"] - APART * slots
    positions = start + np.arange(rows) // recipe["slots"]
    kvs = []
    for slot in range(recipe["slots"]):
        touched = np.unique(positions[slots == slot] // page)
        touched = touched[:-1] if len(touched) > 1 else touched
        table = np.full(int(positions.max()) // page + 1, -1, np.int32)
        # One page more than is touched, so that the pool has cells where nothing belongs.
        table[touched] = inputs.permutation(seed, f"append_kv.pages{slot}", len(touched) + 1)[:-1]
        pool, host = Pool(format, len(touched) + 1, page), Pool(format, len(table), page)
        _poison(pool)
        _poison(host)
        kvs.append(PagedKV(pool, table, host))
    return {"k": k, "v": v, "kv": kvs, "steps": step_records(positions), "slots": slots}


def produce(recipe: Recipe, compute: Callable[..., Any] = append_kv) -> Produced:
    """Inputs ``k``, ``v``, ``steps``, ``slots``; outputs ``k_codes``, ``k_scale``, ``v_codes``, ``v_scale`` of the
    rows' cells [rows, 2, x] read through the page tables (0 where not resident; fp16 has no scales), the same from host
    copies as ``host_...``, and ``written``, ``host_written`` int64 [n, 2]: (slot, cell of the pool) of all that is not
    poison.

    ``compute`` takes the values of :func:`make_inputs` by name and gives True or the list of PagedKV that it wrote.
    """
    given = make_inputs(recipe)
    steps, slots = given["steps"], given["slots"]
    hashed = {key: given[key] for key in ("k", "v", "steps", "slots")}
    result = compute(**given)
    kvs = given["kv"] if result is True else result
    hosts = [PagedKV(kv.host, np.arange(kv.host.n_pages)) for kv in kvs]
    outputs = {}
    for prefix, sources in (("", kvs), ("host_", hosts)):
        rows = [read_kv(sources[slot], steps[[row], 0]) for row, slot in enumerate(slots)]
        for name in ("k_codes", "k_scale", "v_codes", "v_scale"):
            array = np.concatenate([getattr(cells, name) for cells in rows])
            if array.shape[-1]:
                outputs[prefix + name] = array
        written = [_written(source.pool) for source in sources]
        outputs[f"{prefix}written"] = np.concatenate(
            [np.stack([np.full(len(cells), slot), cells], axis=1) for slot, cells in enumerate(written)]
        )
    return Produced(hashed, outputs, {})


def grid() -> Iterator[dict[str, Any]]:
    """Recipes in which every pair of values of format, values, context, slots, rows and tail occurs."""
    for i, format in enumerate(ALLOWED["format"]):
        for j, values in enumerate(VALUES):
            for k, slots in enumerate((1, 3)):
                yield {
                    "format": format,
                    "values": values,
                    "context": (1024, 4096, 16384)[(i + j) % 3],
                    "slots": slots,
                    "rows": ROWS[(i + 2 * j) % 3],
                    "tail": TAILS[(i + j + 2 * k) % 4],
                    "page": PAGES[(i + 2 * j + k) % 4],
                    "seed": 7,
                }
