"""``attend`` of the CPU kernels: the bytes of the exact arithmetic in every schedule, the float arithmetic's bounds."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.kernels import cpu
from qsa.kernels.ops import MAX_SPLITS, refusals
from qsa.reference.attend import attend as attend_float64
from qsa.reference.chunked import chunk_attention
from qsa.reference.exact import attend
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, Geometry
from qsa.reference.kv import PagedKV, read_kv
from support.arrays import generator, relative_error, same_bytes
from support.attention import SMALL, fill, record, store

SCHEDULES = ("batch", "step", "split", "multi", "prompt")
formats = pytest.mark.parametrize("fmt", EXACT_FORMATS)
EDGES = (0, 1, 63, 64, 65, 2047, 2048, 2049, 2050, 2051, 2052, 2053, 2054, 2055)


def problem(rng, widths, fmt, page_size=4, geometry=SMALL, spread=2.0):
    """(q, kv, ids, steps): a row per width over its own cells in random order, behind a shuffled page table."""
    n = max(widths) + 9
    kv, _, _ = fill(rng, n, fmt, page_size, geometry, spread=spread)
    q = rng.standard_normal((len(widths), geometry.n_head, geometry.head_dim)).astype(np.float32)
    ids = np.stack([rng.permutation(n) for _ in widths]).astype(np.int32)
    return q, kv, ids, np.concatenate([record(width) for width in widths])


@formats
def test_every_schedule_gives_the_exact_bytes_at_every_edge_of_the_width(fmt):
    q, kv, ids, steps = problem(generator(1), EDGES, fmt)
    want = attend(q, kv, ids, steps)
    for schedule in SCHEDULES:
        assert same_bytes(cpu.attend(q, kv, ids, steps, schedule=schedule), want), schedule
    for splits in (1, 2, 3, 7, 20):
        assert same_bytes(cpu.attend(q, kv, ids, steps, schedule="split", splits=splits), want), splits


@formats
def test_the_real_geometry_gives_the_exact_bytes(fmt):
    q, kv, ids, steps = problem(generator(2), (2051, 65, 0, 700), fmt, geometry=REAL)
    want = attend(q, kv, ids, steps)
    assert same_bytes(cpu.attend(q, kv, ids, steps), want)
    assert same_bytes(cpu.attend(q, kv, ids, steps, schedule="split"), want)


def test_sums_beyond_53_bits_are_exact():
    """70,000 cells of code 127 and weight near 2^31 reach 2^54, one cell adds 127 * 1, as many of code -127 take all
    but that away: float64 sums not folded into int64 every 16,384 cells leave 128, the nearest multiple of 4."""
    one_head = Geometry(n_head=2, n_head_kv=1, head_dim=64, n_rot=16)
    n, middle = 140_001, 70_000
    k, v = np.ones((n, 1, 64), np.float32), np.full((n, 1, 64), 127 * 0.999, np.float32)
    k[middle] = -30.03 / 0.97
    v[middle + 1 :] *= -1
    kv = store(k, v, "int8", 512, one_head)
    q = np.full((1, 2, 64), 0.97 / (64 * np.log2(np.e) / 8), np.float32)  # scores of 0.97 and -30.03
    ids = np.arange(n, dtype=np.int32)[None]
    want = attend(q, kv, ids, record(n))
    assert (want > 0).all()
    for schedule in ("batch", "split"):
        assert same_bytes(cpu.attend(q, kv, ids, record(n), schedule=schedule), want)


@pytest.mark.parametrize("score, unit", [(-30.6, 1), (-30.9, 0), (-31.1, 0)])
def test_the_smallest_weight_is_rounded_and_what_is_below_is_dropped(score, unit):
    """Two cells; dim 0 hears the weaker one alone, whose weight r * mu * 2^-1 is near 0.6 (mu 0.9), below 0.5, or whose
    exponent is -2."""
    k, v = np.zeros((2, 1, 64), np.float32), np.zeros((2, 1, 64), np.float32)
    k[1], v[0, 0, 1:], v[1, 0, 0] = 1, 0.9 * 127, 0.9 * 127
    kv = store(k, v, "int8", 4, Geometry(n_head=1, n_head_kv=1, head_dim=64, n_rot=16))
    q = np.full((1, 1, 64), score / (64 * np.log2(np.e) / 8), np.float32)
    got = cpu.attend(q, kv, np.arange(2, dtype=np.int32)[None], record(2))
    assert same_bytes(got, attend(q, kv, np.arange(2, dtype=np.int32)[None], record(2)))
    assert got[0, 0, 0] == unit * 127 * 2.0**-30


@given(
    st.integers(0, 2**32),
    st.sampled_from(EXACT_FORMATS),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
    st.sampled_from([1, 4, 64, 512]),
    st.sampled_from([None, 1, 2, 5, MAX_SPLITS]),
    st.integers(-150, 126),
    st.sampled_from(["none", "first", "middle", "last", "all", "random"]),
    st.booleans(),
)
def test_any_call_gives_the_exact_bytes(seed, fmt, widths, page_size, splits, exponent, absent, poison):
    """Queries from denormal to huge (scores clamped at 2^24), zero and negative scales, ids of -1, absent pages."""
    rng = generator(seed)
    q, kv, ids, steps = problem(rng, widths, fmt, page_size)
    q *= np.float32(2.0 ** max(exponent, -149))
    q[rng.random(q.shape) < 0.1] = -0.0
    if poison:
        q[0, 1, 3], q[-1, 2, 5] = np.nan, -np.inf
    for side in (kv.pool.k, kv.pool.v):
        side.scale[rng.random(side.scale.shape) < 0.2] = rng.choice([0.0, -0.0, 6e-8, -3.0, 65504.0])
    if poison:
        kv.pool.k.scale[rng.random(kv.pool.k.scale.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
    ids[rng.random(ids.shape) < 0.05] = -1
    pages = kv.table.size
    gone = {"none": [], "first": [0], "middle": [pages // 2], "last": [pages - 1], "all": np.arange(pages)}
    kv.table[gone.get(absent, np.flatnonzero(rng.random(pages) < 0.5))] = -1
    got = cpu.attend(q, kv, ids, steps, splits=splits)
    assert same_bytes(got, attend(q, kv, ids, steps))


def test_all_equal_and_zero_scores():
    rng = generator(3)
    q, kv, ids, steps = problem(rng, (130, 70), "int8")
    q[0] = 0
    kv.pool.k.codes[:] = 7
    kv.pool.k.scale[:] = 1
    assert same_bytes(cpu.attend(q, kv, ids, steps), attend(q, kv, ids, steps))


def test_a_query_that_is_not_finite_poisons_its_row_and_head_alone():
    for arithmetic in ("exact", "float"):
        q, kv, ids, steps = problem(generator(4), (90, 90, 0), "q4_0")
        clean = cpu.attend(q, kv, ids, steps, arithmetic=arithmetic)
        q[0, 1, 0], q[1, 3, 9], q[2] = np.nan, np.inf, np.nan
        got = cpu.attend(q, kv, ids, steps, arithmetic=arithmetic)
        bad = np.zeros(got.shape[:2], bool)
        bad[0, 1] = bad[1, 3] = True
        assert (got[bad].view(np.uint32) == 0x7FC00000).all()
        assert same_bytes(got[~bad], clean[~bad])
        assert not got[2].any()


def test_slots_of_mixed_formats_and_page_sizes_in_one_call():
    rng = generator(5)
    kvs = [
        fill(rng, 300, fmt, page, SMALL)[0] for fmt, page in zip((*EXACT_FORMATS, "int8"), (4, 64, 1, 4), strict=True)
    ]
    slots = np.array([2, 0, 3, 0, 1], np.int32)
    q = rng.standard_normal((5, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids = np.stack([rng.permutation(300) for _ in range(5)]).astype(np.int32)
    steps = np.concatenate([record(width) for width in (64, 299, 1, 130, 200)])
    for arithmetic in ("exact", "float"):
        got = cpu.attend(q, kvs, ids, steps, slots, schedule="multi", arithmetic=arithmetic)
        for row in range(5):
            one = slice(row, row + 1)
            alone = cpu.attend(q[one], kvs[slots[row]], ids[one], steps[one], arithmetic=arithmetic)
            assert same_bytes(got[one], alone)
    assert same_bytes(cpu.attend(q, kvs, ids, steps, slots), attend(q, kvs, ids, steps, slots))


def test_more_rows_than_one_launch_holds(monkeypatch):
    q, kv, ids, steps = problem(generator(6), (70, 3, 65, 0, 130, 9, 64), "k8v4")
    whole = {a: cpu.attend(q, kv, ids, steps, arithmetic=a) for a in ("exact", "float")}
    monkeypatch.setattr(sys.modules["qsa.kernels.cpu.attend"], "SCRATCH", 1)
    for arithmetic, want in whole.items():
        assert same_bytes(cpu.attend(q, kv, ids, steps, arithmetic=arithmetic), want)


def test_strided_arrays():
    q, kv, ids, steps = problem(generator(7), (100, 20), "int8")
    want = attend(q, kv, ids, steps)
    out = np.full((2, q.shape[1], 2 * q.shape[2]), 7, np.float32)
    strided = np.asfortranarray(q), kv, np.asfortranarray(ids), np.asfortranarray(steps)
    assert cpu.attend(*strided, out=out[..., ::2]) is not False
    assert same_bytes(np.ascontiguousarray(out[..., ::2]), want)
    assert (out[..., 1::2] == 7).all()


@pytest.mark.parametrize("fmt", [*EXACT_FORMATS, "fp16"])
@pytest.mark.parametrize("splits", [None, 1, 3, MAX_SPLITS])
def test_error_of_the_float_arithmetic(fmt, splits):
    """Against float64 on the same codes: at most 4 times the error of the plain float32 chunk kernel, which sums in
    another order, and below 1e-6: 16 roundings of 2^-24 that all point one way."""
    q, kv, ids, steps = problem(generator(8), (2051,), fmt, geometry=REAL, spread=0.5)
    want = attend_float64(q, kv, ids, steps)
    got = cpu.attend(q, kv, ids, steps, splits=splits, arithmetic="float")
    error = relative_error(got, want)
    assert 0 < error < 1e-6
    if fmt in ("int8", "fp16"):
        plain = chunk_attention(q[0], *read_kv(kv, ids[0, :2051]).values())
        assert error <= 4 * relative_error(plain[None], want)


def test_float_rows_do_not_depend_on_batch_or_schedule():
    q, kv, ids, steps = problem(generator(9), (2051, 64, 1, 0, 65, 500), "int8")
    standing = cpu.attend(q, kv, ids, steps, arithmetic="float")
    split = cpu.attend(q, kv, ids, steps, arithmetic="float", schedule="split")
    assert not same_bytes(standing, split)
    for row in range(6):
        one = slice(row, row + 1)
        for schedule in ("batch", "step", "multi", "prompt"):
            got = cpu.attend(q[one], kv, ids[one], steps[one], arithmetic="float", schedule=schedule)
            assert same_bytes(got, standing[one])
        got = cpu.attend(q[one], kv, ids[one], steps[one], arithmetic="float", schedule="split")
        assert same_bytes(got, split[one])


@pytest.mark.parametrize("splits", [None, 4])
def test_float_cells_that_are_not_selected(splits):
    """Whole chunks without a cell give no NaN; what is not selected has no weight. The bound as above."""
    q, kv, ids, steps = problem(generator(10), (400, 100, 70), "int8", page_size=1)
    ids[0, 64:192] = -1
    gone = ids[1, :100]
    kv.pool.v.scale[kv.table[gone]] = np.float16(np.nan)
    kv.table[gone] = -1
    got = cpu.attend(q, kv, ids, steps, splits=splits, arithmetic="float")
    want = attend_float64(q, kv, ids, steps)
    assert not got[1].any() and got[0].any() and got[2].any() and np.isfinite(got).all()
    assert relative_error(got, want) < 1e-6
    assert not cpu.attend(q, kv, np.full_like(ids, -1), steps, splits=splits, arithmetic="float").any()


@pytest.mark.parametrize("splits", [None, 2])
def test_float_chunks_whose_scores_lie_far_apart(splits):
    """The first chunk scores 2^400 above the last one, which weighs nothing and overflows nothing."""
    k, v = np.zeros((2, 128, 2, 64), np.float32)
    k[:64], v[:64], v[64:] = 1, 2, 5
    kv = store(k, v, "fp16", 4, SMALL)
    q = np.full((1, SMALL.n_head, 64), 400 / (64 * np.log2(np.e) / 8), np.float32)
    got = cpu.attend(q, kv, np.arange(128, dtype=np.int32)[None], record(128), splits=splits, arithmetic="float")
    assert (got == 2).all()


def test_float_scores_beyond_float32_stay_finite():
    q, kv, ids, steps = problem(generator(11), (80,), "fp16")
    q *= np.float32(3e38) / np.abs(q).max()
    assert np.isfinite(cpu.attend(q, kv, ids, steps, arithmetic="float")).all()


def test_refusals_write_nothing_and_are_counted():
    q, kv, ids, steps = problem(generator(12), (20,), "fp16")
    truth = PagedKV.new("f64", 40, geometry=SMALL)
    odd = PagedKV.new(
        "fp16", 40, geometry=Geometry(n_head=4, n_head_kv=2, head_dim=20, n_rot=4, idx_heads=2, idx_dim=32)
    )
    out = np.full_like(q, 7)
    before = refusals()
    assert cpu.attend(q, kv, ids, steps, out=out, arithmetic="exact") is False
    assert cpu.attend(q, truth, ids, steps, out=out, arithmetic="float") is False
    assert cpu.attend(q[..., :20], odd, ids, steps, arithmetic="float") is False
    assert (
        cpu.attend(q, [fill(generator(1), 40, "int8", geometry=SMALL)[0], kv], ids, steps, np.zeros(1, np.int32), out)
        is False
    )
    after = refusals()
    assert (out == 7).all()
    assert after["attend", "format"] - before.get(("attend", "format"), 0) == 3
    assert after["attend", "geometry"] - before.get(("attend", "geometry"), 0) == 1


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("bad", [-2, 30, 2**31 - 1, -(2**31)])
def test_an_id_outside_is_an_error_and_nothing_is_written(arithmetic, bad):
    q, kv, ids, steps = problem(generator(13), (20, 20), "int8", page_size=1)
    assert kv.capacity == 29
    ids[1, 19] = bad
    out = np.full_like(q, 7)
    with pytest.raises(IndexError, match=f"cell {bad}: the page table addresses cells 0 to 28"):
        cpu.attend(q, kv, ids, steps, out=out, arithmetic=arithmetic)
    assert (out == 7).all()
    ids[1, 19], ids[1, 20] = 3, bad  # behind the width: not read
    assert np.isfinite(cpu.attend(q, kv, ids, steps, arithmetic=arithmetic)).all()


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"schedule": "fast"}, "schedule = 'fast': allowed are batch, step, split, multi, prompt"),
        ({"arithmetic": "double"}, "arithmetic = 'double'"),
        ({"schedule": "split", "splits": 0}, "splits = 0: must be an integer from 1 to 20"),
        ({"schedule": "split", "splits": 21}, "splits = 21: must be an integer from 1 to 20"),
        ({"schedule": "batch", "splits": 2}, "splits = 2: schedule 'batch' takes none"),
        ({"splits": 1.5}, "splits = 1.5: must be an integer from 1 to 20"),
        ({"slots": np.ones(1, np.int32)}, "slots: 1 to 1"),
        ({"slots": np.zeros(1)}, r"slots: float64 \(1,\): must be int32 \(1,\)"),
        ({"slots": np.zeros(2, np.int32)}, r"slots: int32 \(2,\): must be int32 \(1,\)"),
    ],
)
def test_bad_arguments(keywords, message):
    q, kv, ids, steps = problem(generator(14), (9,), "int8")
    with pytest.raises(ValueError, match=message):
        cpu.attend(q, kv, ids, steps, **keywords)
    with pytest.raises(ValueError, match=r"kv: \[\]: must be a PagedKV, or a list of one or more"):
        cpu.attend(q, [], ids, steps)
    with pytest.raises(ValueError, match="q: shape"):
        cpu.attend(q[:, :3], kv, ids, steps)
    with pytest.raises(ValueError, match="ids: shape"):
        cpu.attend(q, kv, ids[:, :8], steps)
