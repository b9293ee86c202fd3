"""The exact attention: bytes that no schedule changes, and errors no worse than those of float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.attend import attend as attend_float64
from qsa.reference.attend import selected_cells
from qsa.reference.chunked import chunk_attention
from qsa.reference.exact import attend
from qsa.reference.formats import EXACT_FORMATS, rotate
from qsa.reference.geometry import REAL
from support.arrays import generator, relative_error, same_bytes
from support.attention import SMALL, fill, record, store

formats = pytest.mark.parametrize("fmt", EXACT_FORMATS)


@given(st.integers(0, 2**32), st.sampled_from(EXACT_FORMATS), st.integers(1, 300), st.integers(1, 40))
def test_bytes_do_not_depend_on_order_or_cut(seed, fmt, width, splits):
    rng = generator(seed)
    kv, _, _ = fill(rng, width + 8, fmt, geometry=SMALL, spread=2)
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32) * np.float32(
        2.0 ** rng.integers(-9, 9)
    )
    ids = rng.permutation(width + 8)[None, :width].astype(np.int32)
    whole = attend(q, kv, ids, record(width))
    assert same_bytes(whole, attend(q, kv, rng.permuted(ids, axis=1), record(width), splits=splits))


@formats
def test_bytes_do_not_depend_on_the_rows_of_the_call(fmt):
    rng = generator(1)
    kv, _, _ = fill(rng, 200, fmt, geometry=SMALL)
    widths = [0, 1, 63, 64, 65, 199]
    q = rng.standard_normal((6, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.stack([rng.permutation(200) for _ in widths]).astype(np.int32)
    steps = np.concatenate([record(width) for width in widths])
    together = attend(q, kv, ids, steps)
    for row in range(6):
        assert same_bytes(together[row], attend(q[row, None], kv, ids[row, None], steps[row, None])[0])
    assert not together[0].any() and together[1].any()


@formats
@pytest.mark.parametrize("page_size", [1, 4, 64, 512])
def test_bytes_do_not_depend_on_pages(fmt, page_size):
    rng = generator(2)
    k, v = rng.standard_normal((2, 600, SMALL.n_head_kv, SMALL.head_dim)).astype(np.float32)
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.sort(rng.permutation(600)[:300])[None].astype(np.int32)
    plain = attend(q, store(k, v, fmt, 4, SMALL), ids, record(300))
    assert same_bytes(plain, attend(q, store(k, v, fmt, page_size, SMALL, rng), ids, record(300)))


@formats
@pytest.mark.parametrize("width", [1, 63, 64, 65, 2047, 2048, 2049, 2050, 2051, 2052, 2053, 2054, 2055])
def test_error_at_the_real_geometry(fmt, width):
    """Against float64 on the same codes: at most 4 times a float32 chunk kernel's error, and below 1e-6."""
    rng = generator(width)
    kv, _, _ = fill(rng, width, fmt)
    q = rng.standard_normal((1, REAL.n_head, REAL.head_dim)).astype(np.float32)
    ids = np.arange(width, dtype=np.int32)[None]
    truth = attend_float64(q, kv, ids, record(width))
    k, v = selected_cells(kv, ids[0], width).values()
    turned = rotate(q[0]) if fmt == "q4_0" else q[0]
    plain = chunk_attention(turned, k, v)
    plain = plain if fmt == "int8" else rotate(plain)
    error = relative_error(attend(q, kv, ids, record(width)), truth)
    # A width of 1 has weight 1 on one cell: float32 rounds once or not at all there, the exact form once more.
    assert error <= max(4 * relative_error(plain, truth[0]), 2.0**-23)
    assert error < 1e-6


@pytest.mark.parametrize("factor", [0.01, 8, 64])
def test_error_of_flat_and_of_peaked_scores(factor):
    """Within 4 times a float32 chunk kernel's error too; measured: 0.3 times (flat) to 2.5 times (peaked)."""
    rng = generator(11)
    kv, _, _ = fill(rng, 2051, "int8")
    q = rng.standard_normal((1, REAL.n_head, REAL.head_dim)).astype(np.float32) * np.float32(factor)
    ids = np.arange(2051, dtype=np.int32)[None]
    truth = attend_float64(q, kv, ids, record(2051))
    k, v = selected_cells(kv, ids[0], 2051).values()
    error = relative_error(attend(q, kv, ids, record(2051)), truth)
    assert error <= 4 * relative_error(chunk_attention(q[0], k, v), truth[0])


def test_width_of_65000():
    """Past 2^15 cells one float64 product could pass 2^53 were it not cut; equal weights and codes of 127 get there."""
    n = 65_000
    k = np.zeros((n, SMALL.n_head_kv, SMALL.head_dim), np.float32)
    v = np.full_like(k, 127)
    kv = store(k, v, "int8", 512, SMALL)
    q = np.ones((1, SMALL.n_head, SMALL.head_dim), np.float32)
    ids = np.arange(n, dtype=np.int32)[None]
    whole = attend(q, kv, ids, record(n))
    # Every weight is 2^30 times the same power, every code 127, scale 1: the mean is 127 to the bit.
    assert (whole == 127).all()
    rng = generator(4)
    kv, _, _ = fill(rng, n, "int8", 64, SMALL)
    q = rng.standard_normal(q.shape).astype(np.float32)
    whole = attend(q, kv, ids, record(n))
    assert same_bytes(whole, attend(q, kv, rng.permuted(ids, axis=1), record(n), splits=20))
    assert relative_error(whole, attend_float64(q, kv, ids, record(n))) < 1e-6


def test_zero_scales_and_equal_scores():
    rng = generator(6)
    k, v = rng.standard_normal((2, 70, SMALL.n_head_kv, SMALL.head_dim)).astype(np.float32)
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.arange(70, dtype=np.int32)[None]
    zero_k = store(np.zeros_like(k), v, "int8", geometry=SMALL)
    mean = np.repeat(selected_cells(zero_k, ids[0], 70).values()[1].mean(axis=0), SMALL.group, axis=0)
    # Equal scores: weights are equal integers, so what is left is the rounding of mu, of the sum and of the division.
    assert relative_error(attend(q, zero_k, ids, record(70))[0], mean) < 2e-7
    assert not attend(q, store(k, np.zeros_like(v), "int8", geometry=SMALL), ids, record(70)).any()
    assert not attend(np.zeros_like(q), store(k, np.zeros_like(v), "q4_0", geometry=SMALL), ids, record(70)).any()


@formats
def test_signs_of_zero_do_not_matter(fmt):
    rng = generator(7)
    kv, _, _ = fill(rng, 30, fmt, geometry=SMALL)
    ids = np.arange(30, dtype=np.int32)[None]
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    q[..., ::2] = 0
    negative = q.copy()
    negative[..., ::2] = -0.0
    assert same_bytes(attend(q, kv, ids, record(30)), attend(negative, kv, ids, record(30)))


@pytest.mark.parametrize("exponent", [-149, -130, -60, 60, 120])
def test_huge_tiny_and_subnormal_queries(exponent):
    """Finite and right at both ends: tiny queries give the mean of V; huge ones the V of the best cell."""
    rng = generator(8)
    kv, _, _ = fill(rng, 50, "int8", geometry=SMALL)
    ids = np.arange(50, dtype=np.int32)[None]
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim))
    q = np.ldexp(np.sign(q) * np.clip(np.abs(q), 0.5, 1.5), exponent).astype(np.float32)
    got = attend(q, kv, ids, record(50))
    assert same_bytes(got, attend(q, kv, ids[:, ::-1], record(50), splits=3))
    if exponent < 0:
        truth = attend_float64(q, kv, ids, record(50))
        assert relative_error(got, truth) < 1e-6
        return
    k, v = selected_cells(kv, ids[0], 50).values()
    scores = np.einsum("hd,nhd->hn", q[0].astype(np.float64), np.repeat(k, SMALL.group, axis=1))
    # Beyond 2^24 the scores are clamped, so cells above the clamp share; below -2^24 none counts.
    share = scores > 0
    if exponent == 120:
        want = np.stack([np.repeat(v, SMALL.group, axis=1)[share[h], h].mean(axis=0) for h in range(SMALL.n_head)])
        assert relative_error(got[0], want) < 2e-7


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@formats
def test_a_query_that_is_not_finite_poisons_its_row_and_head_alone(fmt, bad):
    rng = generator(9)
    kv, _, _ = fill(rng, 40, fmt, geometry=SMALL)
    q = rng.standard_normal((3, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.tile(np.arange(40, dtype=np.int32), (3, 1))
    steps = np.concatenate([record(40), record(40), record(0)])
    clean = attend(q, kv, ids, steps)
    dirty = q.copy()
    dirty[1, 2, 17] = bad
    dirty[2] = bad
    got = attend(dirty, kv, ids, steps)
    assert (got[1, 2].view(np.uint32) == 0x7FC00000).all()
    got[1, 2] = clean[1, 2]
    assert same_bytes(got, clean)


def test_cells_that_are_not_resident_are_not_selected():
    rng = generator(10)
    kv, _, _ = fill(rng, 64, "int8", geometry=SMALL, shuffle=False)
    q = rng.standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.arange(64, dtype=np.int32)[None]
    for gone in ([0], [7], [15], [0, 7, 15], range(16)):
        kept = np.array([i for i in range(64) if i // 4 not in gone], np.int32)
        want = attend(q, kv, kept[None], record(len(kept))) if len(kept) else np.zeros_like(q)
        holes = store(np.ones((64, 2, 64), np.float32), np.ones((64, 2, 64), np.float32), "int8", geometry=SMALL)
        holes.pool = kv.pool
        holes.table[list(gone)] = -1
        assert same_bytes(attend(q, holes, ids, record(64)), want)
        masked = np.where(np.isin(ids, kept), ids, -1)
        assert same_bytes(attend(q, kv, masked, record(64)), want)


@formats
def test_an_output_of_zero_has_one_sign(fmt):
    """The best cell has V scale 0 in the first group, the other one is 2^-150 times as heavy: its negative V rounds to
    0, on the way through a rotation where there is one."""
    k, v = np.zeros((2, 2, SMALL.n_head_kv, SMALL.head_dim), np.float32)
    k[0], k[1] = 8, -8
    v[1] = -1
    q = np.ones((1, SMALL.n_head, SMALL.head_dim), np.float32)
    got = attend(q, store(k, v, fmt, geometry=SMALL), np.array([[0, 1]], np.int32), record(2))
    assert not got.view(np.uint32).any()


def test_slots_read_their_own_pools():
    rng = generator(12)
    kvs = [fill(rng, 30 + 10 * i, fmt, geometry=SMALL)[0] for i, fmt in enumerate(EXACT_FORMATS)]
    q = rng.standard_normal((4, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.tile(np.arange(30, dtype=np.int32), (4, 1))
    steps = np.concatenate([record(w) for w in (30, 12, 29, 7)])
    slots = np.array([2, 0, 1, 2], np.int32)
    got = attend(q, kvs, ids, steps, slots)
    for row, slot in enumerate(slots):
        assert same_bytes(got[row], attend(q[row, None], kvs[slot], ids[row, None], steps[row, None])[0])


def test_bad_arguments_are_named():
    rng = generator(13)
    kv, _, _ = fill(rng, 8, "int8", geometry=SMALL)
    q = np.zeros((1, SMALL.n_head, SMALL.head_dim), np.float32)
    ids = np.arange(8, dtype=np.int32)[None]
    with pytest.raises(ValueError, match=r"splits = 2\.5: must be an integer of at least 1"):
        attend(q, kv, ids, record(8), splits=2.5)
    with pytest.raises(ValueError, match="splits = 0"):
        attend(q, kv, ids, record(8), splits=0)
    with pytest.raises(ValueError, match=r"q: shape \(1, 3, 64\)"):
        attend(q[:, :3], kv, ids, record(8))
    with pytest.raises(ValueError, match="ids: shape"):
        attend(q, kv, ids[:, :7], record(8))
    with pytest.raises(ValueError, match="steps: int64"):
        attend(q, kv, ids, record(8).astype(np.int64))
    with pytest.raises(IndexError, match="cell 8"):
        attend(q, kv, ids + 1, record(8))
    with pytest.raises(ValueError, match="slots: missing"):
        attend(q, [kv, kv], ids, record(8))
    with pytest.raises(ValueError, match="slots: 2 to 2"):
        attend(q, [kv, kv], ids, record(8), [2])
    half = fill(rng, 8, "fp16", geometry=SMALL)[0]
    with pytest.raises(ValueError, match="format 'fp16'"):
        attend(q, half, ids, record(8))
