"""``append_kv``, ``append_index``, ``block_scores`` and ``select`` of the CPU kernels: the bytes of the references."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.kernels import cpu
from qsa.kernels.cpu.common.scalar import float_to_half, half_to_float
from qsa.kernels.ops import OPERATIONS
from qsa.reference import exact
from qsa.reference.append_kv import append_kv
from qsa.reference.geometry import REAL, RULES, Geometry, step_records
from qsa.reference.index import INDEX_FORMATS, Index, written
from qsa.reference.kv import PagedKV
from support.arrays import generator
from support.attention import SMALL

FORMATS = ("int8", "q4_0", "k8v4", "fp16")
TINY = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16, idx_heads=3, idx_dim=64, budget=32)


def kv_bytes(kv):
    """Every byte of the pool and of the host copy."""
    pools = [pool for pool in (kv.pool, kv.host) if pool is not None]
    return [array.tobytes() for pool in pools for side in (pool.k, pool.v) for array in (side.codes, side.scale)]


def index_bytes(index):
    """Every byte that ``append_index`` writes."""
    return [getattr(index, name).tobytes() for name in written(index)]


def new_index(rng, blocks, geometry=REAL, format="fp32"):
    """An Index of random norm weights."""
    return Index(blocks, rng.standard_normal(geometry.idx_dim).astype(np.float32), geometry, format=format)


def test_float16_in_bits():
    """All 65,536 patterns to float32, and float32 to float16 at every midpoint and beside it, as NumPy has them."""
    every = np.arange(65536, dtype=np.uint16)
    wide = every.view(np.float16).astype(np.float32)
    ours = np.array([half_to_float(bits) for bits in every], np.float32)
    assert ((ours.view(np.uint32) == wide.view(np.uint32)) | np.isnan(wide)).all() and np.isnan(
        ours[np.isnan(wide)]
    ).all()
    finite = np.sort(wide[np.isfinite(wide)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    x = np.concatenate(
        [finite, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), [65520, np.inf, 1e-30]]
    )
    x = x.astype(np.float32)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).view(np.uint16)
    assert np.array_equal([float_to_half(one) for one in x], want)


@given(
    st.integers(0, 2**32), st.sampled_from(FORMATS), st.sampled_from([1, 4, 64]), st.booleans(), st.integers(-30, 13)
)
def test_append_kv_writes_the_reference_bytes(seed, fmt, page_size, host, exponent):
    rng = generator(seed)
    pages = -(-100 // page_size)
    table = np.where(rng.random(pages) < 0.3, -1, rng.permutation(pages))
    ours = PagedKV.new(fmt, 100, page_size, SMALL, table, host)
    want = copy.deepcopy(ours)
    k, v = (rng.standard_normal((2, 40, 2, 64)) * 2.0**exponent).astype(np.float32)
    k[rng.random(k.shape) < 0.1] = 0
    v[3], v[4, 0, :7] = 0, np.float32(1.5)
    k[5:7], v[5:7] = 0, 0
    k[5, :, 1], v[6, :, 3] = 2, -3  # rotated: both signs of one magnitude, a tie for q4_0's scale
    steps = step_records(np.where(rng.random(40) < 0.2, -1, rng.permutation(100)[:40]))
    k[steps[:, 0] < 0] = np.nan
    assert cpu.append_kv(k, v, ours, steps) is True
    append_kv(k, v, want, steps)
    assert kv_bytes(ours) == kv_bytes(want)


def test_append_kv_to_several_slots():
    rng = generator(1)
    ours = [PagedKV.new(fmt, 20, geometry=SMALL, host=True) for fmt in FORMATS]
    want = copy.deepcopy(ours)
    k, v = rng.standard_normal((2, 8, 2, 64)).astype(np.float32)
    slots, steps = np.array([3, 1, 0, 2, 3, 3, 0, 1], np.int32), step_records([5, 5, 5, 5, -1, 6, 19, 0])
    assert cpu.append_kv(k, v, ours, steps, slots) is True
    append_kv(k, v, want, steps, slots)
    assert [kv_bytes(kv) for kv in ours] == [kv_bytes(kv) for kv in want]


FAULTS = [(fmt, fault) for fmt in FORMATS for fault in ("nan", "inf", "huge", "beyond", "twice", "shape")]


@pytest.mark.parametrize("fmt,fault", FAULTS)
def test_append_kv_that_fails_writes_nothing(fmt, fault):
    rng = generator(2)
    kv = PagedKV.new(fmt, 20, geometry=SMALL, host=True)
    k, v = rng.standard_normal((2, 3, 2, 64)).astype(np.float32)
    positions = [0, 1, {"beyond": 20, "twice": 1}.get(fault, 2)]
    if fault in ("nan", "inf", "huge"):
        v[2, 1, 33] = {"nan": np.nan, "inf": -np.inf, "huge": 3e38}[fault]
    before = kv_bytes(kv)
    k = k[:, :1] if fault == "shape" else k
    with pytest.raises(ValueError) as ours:
        cpu.append_kv(k, v, kv, step_records(positions))
    assert kv_bytes(kv) == before
    with pytest.raises(ValueError) as reference:
        append_kv(k, v, kv, step_records(positions))
    assert str(ours.value) == str(reference.value)


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(-20, 20),
    st.sampled_from(INDEX_FORMATS),
)
def test_append_index_writes_the_exact_bytes_at_any_cut(seed, windows, exponent, format):
    rng = generator(seed)
    ours = new_index(rng, 20, TINY, format)
    want = copy.deepcopy(ours)
    raw = (rng.standard_normal((sum(windows), TINY.idx_dim)) * 2.0**exponent).astype(np.float32)
    exact.append_index(raw, step_records(range(len(raw))), want)
    start = 0
    for rows in windows:
        part = slice(start, start + rows)
        padded = np.concatenate([raw[part], np.full((1, TINY.idx_dim), np.nan, np.float32)])
        assert cpu.append_index(padded, step_records([*range(start, start + rows), -1]), ours) is True
        start += rows
    assert index_bytes(ours) == index_bytes(want)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_keys_that_are_not_finite_are_encoded_as_such(wrong):
    """Of pooled keys and of the dead key; a zero key and subnormal ones beside them."""
    rng = generator(4)
    ours = new_index(rng, 20, TINY, "int16")
    ours.weight[:] = 1e-38
    want = copy.deepcopy(ours)
    raw = rng.standard_normal((16, TINY.idx_dim)).astype(np.float32)
    raw[0, 3], raw[4:8], raw[8:12] = wrong, 0, 2.0**-140
    with np.errstate(invalid="ignore"):
        exact.append_index(raw, step_records(range(16)), want)
    assert cpu.append_index(raw, step_records(range(16)), ours) is True
    assert index_bytes(ours) == index_bytes(want)
    assert ours.pooled_exponent[:4].tolist()[:2] == [32767, 0] and ours.dead_exponent[0] == 32767
    assert ours.pooled_exponent[3] < -120


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(-1, 900), min_size=1, max_size=9),
    st.booleans(),
    st.sampled_from(INDEX_FORMATS),
    st.sampled_from([-250, -140, -60, 0, 60, 120]),
)
def test_block_scores_give_the_exact_bytes(seed, positions, special, format, exponent):
    rng = generator(seed)
    index = new_index(rng, 230, TINY, format)
    # Keys of very different sizes, encoded ones near every end of float32.
    power = np.ldexp(1.0, np.clip(exponent + rng.integers(-9, 9, (231, 1)), -148, 124))
    keys = (rng.standard_normal((231, TINY.idx_dim)) * power).astype(np.float32)
    q = (rng.standard_normal((len(positions), 3, 64)) * 2.0 ** rng.integers(-20, 20)).astype(np.float32)
    if special:
        q[0, 1, 2], q[-1, 0, 5], keys[7, 3] = np.nan, np.inf, -np.inf
        keys[9], q[-1, 2] = -0.0, 0.0
    index.set_pooled(slice(None), keys[:230])
    index.set_dead(keys[230])
    steps = step_records(positions)
    out = np.full((len(q), 230), 7, np.float32)
    want = exact.block_scores(q, index, steps, out.copy())
    assert cpu.block_scores(q, index, steps, out) is out
    assert out.tobytes() == want.tobytes()
    strided = np.full((230, len(q)), 7, np.float64).T
    cpu.block_scores(np.asfortranarray(q), index, np.asfortranarray(steps), strided)
    assert strided.astype(np.float32).tobytes() == want.tobytes()


@pytest.mark.parametrize("format", INDEX_FORMATS)
def test_block_scores_of_more_rows_than_one_work_item(format):
    rng = generator(3)
    index = new_index(rng, 80, TINY, format)
    index.set_pooled(slice(None), rng.standard_normal(index.pooled.shape))
    q = rng.standard_normal((150, 3, 64)).astype(np.float32)
    steps = step_records(rng.integers(-1, 300, 150))
    assert cpu.block_scores(q, index, steps).tobytes() == exact.block_scores(q, index, steps).tobytes()


@pytest.mark.parametrize("dims", [128, 512])
def test_the_largest_sums_of_encoded_keys(dims):
    """Every product at its largest, of one sign: nothing overflows on the way to the one rounding."""
    geometry = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16, idx_heads=3, idx_dim=dims, budget=32)
    index, q = Index(40, np.ones(dims), geometry, format="int16"), np.full((1, 3, dims), -32639, np.float32)
    index.set_pooled(slice(None), np.full((40, dims), -32639))
    q[0, 1, ::2], q[0, 2] = 32639, -32513 + np.arange(dims) % 3
    steps = step_records([158])
    got = cpu.block_scores(q, index, steps)
    assert got.tobytes() == exact.block_scores(q, index, steps).tobytes() and got[0, 0] > dims * 2.0**30


def test_encoded_keys_of_too_many_dims_are_refused():
    geometry = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16, idx_heads=3, idx_dim=544, budget=32)
    index = Index(4, np.ones(544), geometry, format="int16")
    assert cpu.block_scores(np.ones((1, 3, 544), np.float32), index, step_records([7])) is False


SPECIAL = (0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e9, 1e-45, -1e-45, 1.0, np.nextafter(np.float32(1), 2))


@given(
    st.integers(0, 2**32),
    st.sampled_from(RULES),
    st.integers(0, 900),
    st.sampled_from([1, 2, 8, 64, 10**9]),
    st.booleans(),
)
def test_select_gives_the_exact_ids(seed, rule, n_kv, levels, special):
    rng = generator(seed)
    rows = np.array([n_kv - 1, -1, max(-1, n_kv - 7), 3])
    steps = step_records(rows, rule, TINY)
    scores = (rng.integers(0, levels, (4, 230)) / 7 - levels // 14).astype(np.float32)
    if special:
        chosen = rng.random(scores.shape) < 0.3
        scores[chosen] = rng.choice(np.array(SPECIAL, np.float32), chosen.sum())
    want = exact.select(scores, steps, rule=rule, geometry=TINY)
    assert np.array_equal(cpu.select(scores, steps, rule=rule, geometry=TINY), want)
    assert np.array_equal(cpu.select(scores[:1], steps[:1], rule=rule, geometry=TINY), want[:1])
    ids = np.full((40, 4), 9, np.int64).T
    assert cpu.select(np.asfortranarray(scores), steps, ids, rule=rule, geometry=TINY) is ids
    assert np.array_equal(ids[:, : want.shape[1]], want) and (ids[:, want.shape[1] :] == -1).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pattern", ["distinct", "close", "equal", "zeros", "digits"])
def test_select_over_a_quarter_of_a_million_blocks(rule, pattern):
    """``close``: all within 1e-3, so nearly all keys share two digits; ``digits``: differ in the last alone."""
    rng = generator(4)
    blocks = 262144 + 3
    scores = {
        "distinct": lambda: rng.permutation(blocks).astype(np.float32),
        "close": lambda: (1 + rng.random(blocks) * 1e-3).astype(np.float32),
        "equal": lambda: np.full(blocks, 2.5, np.float32),
        "zeros": lambda: rng.choice(np.float32([0.0, -0.0]), blocks),
        "digits": lambda: (np.uint32(0x3F800000) + rng.integers(0, 1024, blocks, np.uint32)).view(np.float32),
    }[pattern]()[None]
    steps = step_records([4 * blocks + 1], rule)
    assert np.array_equal(cpu.select(scores, steps, rule=rule), exact.select(scores, steps, rule=rule))


def test_float64_arrays_are_refused_and_bad_arguments_are_errors():
    index = Index(9, np.ones(64, np.float32), TINY, np.float64)
    assert cpu.append_index(np.ones((1, 64), np.float32), step_records([0]), index) is False
    assert cpu.block_scores(np.ones((1, 3, 64), np.float32), index, step_records([0])) is False
    assert not index.dead.any()
    kv = PagedKV.new("f64", 9, geometry=SMALL)
    assert cpu.append_kv(*np.ones((2, 1, 2, 64), np.float32), kv, step_records([0])) is False
    good = Index(9, np.ones(64, np.float32), TINY)
    with pytest.raises(ValueError, match="n_bid = 9"):
        cpu.append_index(np.ones((1, 64), np.float32), step_records([35]), good)
    with pytest.raises(ValueError, match="pos = 36"):
        cpu.append_index(np.ones((1, 64), np.float32), np.array([[36, 0, 0, 0]], np.int32), good)
    with pytest.raises(ValueError, match="n_bid = 9"):
        cpu.block_scores(np.ones((1, 3, 64), np.float32), good, step_records([35]))
    with pytest.raises(ValueError, match="rule = 'best'"):
        cpu.select(np.ones((1, 9), np.float32), step_records([35]), rule="best")
    with pytest.raises(ValueError, match="not the record"):
        cpu.select(np.ones((1, 600), np.float32), step_records([2051], "cells"), rule="blocks")


def test_a_schedule_is_a_name_and_no_more():
    """Every schedule of the table is taken, whatever the rows, and gives the same bytes; any other is an error."""
    rng = generator(40)
    index = new_index(rng, 40)
    index.pooled[:], index.dead[:] = rng.standard_normal((40, REAL.idx_dim)), rng.standard_normal(REAL.idx_dim)
    q, steps = rng.standard_normal((9, 4, 128)).astype(np.float32), step_records(range(140, 149))
    small = Geometry(budget=32)
    scores, records = cpu.block_scores(q, index, steps), step_records(range(140, 149), geometry=small)
    ids = cpu.select(scores, records, geometry=small)
    for schedule in OPERATIONS["block_scores"].schedules:
        assert cpu.block_scores(q, index, steps, schedule=schedule).tobytes() == scores.tobytes(), schedule
    for schedule in OPERATIONS["select"].schedules:
        got = cpu.select(scores, records, geometry=small, schedule=schedule)
        assert got.tobytes() == ids.tobytes(), schedule
    with pytest.raises(ValueError, match="schedule = 'fast': allowed are warp, "):
        cpu.block_scores(q, index, steps, schedule="fast")
    with pytest.raises(ValueError, match="schedule = 'fast': allowed are registers, "):
        cpu.select(scores, records, geometry=small, schedule="fast")
