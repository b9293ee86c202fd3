"""The bytes of ``attend`` in the float arithmetic: every operation in the order that ``attend_float.py`` states."""

import math

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.reference.exact import scalar
from qsa.reference.formats import FORMATS, decode, rotate
from qsa.reference.geometry import Geometry
from qsa.reference.kv import read_kv
from support.arrays import generator, same_bytes
from support.attention import SMALL, fill, record

WIDTHS = (1, 7, 64, 65, 150, 259)
GEOMETRIES = {
    "small": SMALL,
    "five heads of one": Geometry(n_head=5, n_head_kv=1, head_dim=64, n_rot=16),
    "wide": Geometry(n_head=2, n_head_kv=2, head_dim=256, n_rot=16),
}


def exp2(x):
    """float32 2^x, rounded once."""
    return scalar.scale(*scalar.exp2(x))


def by_eight(total, x, y):
    """total [m] + x [n] times y [n, m]: of eight products at a time the first four are added, then the last four, then
    both sums; all float32."""
    for first in range(0, len(x), 8):
        low, high = (
            sum((x[i] * y[i] for i in range(begin + 1, begin + 4)), x[begin] * y[begin]) for begin in (first, first + 4)
        )
        total = total + (low + high)
    return total


def piece(q, k, v):
    """(top, mass, sums [dim]) of a query [dim] over the cells of a piece, K and V [cells, dim]; all float32."""
    factor = np.float32(np.log2(np.e) / np.sqrt(len(q)))
    scores = by_eight(np.zeros(len(k), np.float32), q, k.T) * factor
    scores = np.clip(scores, -scalar.SCORE_LIMIT, scalar.SCORE_LIMIT).astype(np.float32)
    weights, mass = exp2(scores - scores.max()), np.float32(0)
    for weight in weights:
        mass += weight
    # Behind the last cell come cells of weight 0, up to a multiple of eight.
    missing = -len(v) % 8
    weights, v = np.pad(weights, (0, missing)), np.pad(v, ((0, missing), (0, 0)))
    return scores.max(), mass, by_eight(np.zeros(len(q), np.float32), weights, v)


def values(codes, scale):
    """float32 [cells, heads, dim] of what cells hold; that of fp16 has no scales."""
    return (decode(codes, scale) if scale.size else codes).astype(np.float32)


def attended(q, k, v, length):
    """The attention of a query [dim] over K and V [cells, dim], in pieces of ``length`` cells."""
    pieces = [piece(q, k[i : i + length], v[i : i + length]) for i in range(0, len(k), length)]
    highest = max(top for top, _, _ in pieces)
    total, out = np.float32(0), np.zeros(len(q), np.float32)
    for top, mass, sums in pieces:
        weight = exp2(top - highest)
        total += mass * weight
        out = out + sums * weight
    return out / total


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt != "f64"])
@pytest.mark.parametrize("splits", [None, 2])
def test_every_sum_is_made_in_the_stated_order(fmt, geometry, splits):
    g, rng = GEOMETRIES[geometry], generator(11)
    kv, _, _ = fill(rng, 300, fmt, geometry=g, spread=1.0)
    q = 3 * rng.standard_normal((len(WIDTHS), g.n_head, g.head_dim)).astype(np.float32)
    ids = np.stack([rng.permutation(300) for _ in WIDTHS]).astype(np.int32)
    steps = np.concatenate([record(width) for width in WIDTHS])
    got = cpu.attend(q, kv, ids, steps, splits=splits, arithmetic="float")
    rotated = [side.coding == "q4_0" for side in (kv.pool.k, kv.pool.v)]
    for row, width in enumerate(WIDTHS):
        cells = read_kv(kv, ids[row, :width])
        k, v = values(cells.k_codes, cells.k_scale), values(cells.v_codes, cells.v_scale)
        length = 64 if splits is None else 64 * math.ceil(math.ceil(width / 64) / splits)
        for head in range(g.n_head):
            query, kv_head = q[row, head], head // g.group
            out = attended(rotate(query) if rotated[0] else query, k[:, kv_head], v[:, kv_head], length)
            assert same_bytes(got[row, head], rotate(out) if rotated[1] else out), (width, head)
