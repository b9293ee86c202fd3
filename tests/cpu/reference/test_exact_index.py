"""Indexer keys, block scores and selection in the exact arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.append_index import append_index as append_float64
from qsa.reference.block_scores import block_scores as scores_float64
from qsa.reference.exact import append_index, block_scores, select
from qsa.reference.exact.select import selection_key
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.layers.rope import rope_table
from qsa.reference.select import select as select_sorted
from support.arrays import generator, same_bytes

f32 = np.float32


def raw_keys(n, seed=1):
    return generator(seed).standard_normal((n, REAL.idx_dim)).astype(f32)


def filled(n, seed=1, dtype=f32, **options):
    rng = generator(seed + 1000)
    index = Index(n // 4 + 1, 1 + 0.1 * rng.standard_normal(REAL.idx_dim), dtype=dtype, **options)
    (append_index if dtype == f32 else append_float64)(raw_keys(n, seed), step_records(range(n)), index)
    return index


def test_keys_by_hand():
    """The rule a second time, scalar by scalar in float32, for one block and the dead key."""
    raw = raw_keys(4)
    index = filled(4, pos_base=100)

    def key(x, position):
        lanes = [(((x[4 * i] ** 2) + x[4 * i + 1] ** 2) + x[4 * i + 2] ** 2) + x[4 * i + 3] ** 2 for i in range(32)]
        for stride in (16, 8, 4, 2, 1):
            lanes = [lanes[i] + lanes[i + stride] for i in range(stride)]
        inverse = f32(1) / np.sqrt(lanes[0] / f32(128) + f32(1e-6))
        x = [x[i] * inverse * index.weight[i] for i in range(128)]
        table = rope_table([position], 64, 1e7)[0]
        for i in range(32):
            a, b = x[i], x[i + 32]
            x[i], x[i + 32] = a * table[i] - b * table[32 + i], b * table[i] + a * table[32 + i]
        return np.array(x, f32)

    pooled = (((raw[0] + raw[1]) + raw[2]) + raw[3]) * f32(0.25)
    assert same_bytes(index.pooled[0], key(pooled, 100))
    assert same_bytes(index.dead, key(raw[0], 0))
    assert same_bytes(index.tail, raw[:3])


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_windows_give_the_bytes_of_single_rows(windows):
    n = sum(windows)
    raw, one, many = raw_keys(n), filled(1), filled(1)
    one = Index(n // 4 + 1, one.weight)
    many = Index(n // 4 + 1, one.weight)
    for pos in range(n):
        append_index(raw[pos, None], step_records([pos]), one)
    start = 0
    for window in windows:
        append_index(raw[start : start + window], step_records(range(start, start + window)), many)
        start += window
    for name in ("tail", "dead", "pooled"):
        assert same_bytes(getattr(one, name), getattr(many, name))


def test_keys_follow_float64():
    """Relative to the keys' size of 1: mean, norm and rotation round some ten times, 2^-24 each, on values to 4."""
    exact, truth = filled(2100), filled(2100, dtype=np.float64)
    assert np.abs(exact.pooled[:525] - truth.pooled[:525]).max() < 4e-6
    assert np.abs(exact.dead - truth.dead).max() < 4e-6


def test_the_dead_key_takes_part_in_yarn():
    """At position 0 the rotation is mscale times the identity, not nothing."""
    plain, scaled = filled(1), filled(1, mscale=1.5)
    assert same_bytes(scaled.dead[:64], plain.dead[:64] * f32(1.5))
    assert same_bytes(scaled.dead[64:], plain.dead[64:])


def test_unused_rows_append_nothing_and_blocks_beyond_are_refused():
    index = filled(4)
    before = index.tail.copy()
    append_index(np.full((1, 128), np.nan, f32), step_records([-1]), index)
    assert same_bytes(index.tail, before)
    with pytest.raises(ValueError, match="n_bid = 2: the index holds 2 blocks"):
        append_index(raw_keys(4), step_records([4, 5, 6, 7]), index)
    with pytest.raises(ValueError, match="raw: shape"):
        append_index(raw_keys(1)[:, :64], step_records([4]), index)
    with pytest.raises(ValueError, match="weight: shape"):
        Index(4, np.ones(64))


def queries(rows, seed=2):
    return generator(seed).standard_normal((rows, 4, 128)).astype(f32)


def test_scores_follow_float64_and_rows_do_not_meet():
    """A dot of 128 products of size 1 rounds to about 128 * 2^-24 * 4; heads add four of them."""
    index, truth = filled(2100), filled(2100, dtype=np.float64)
    q, steps = queries(4), step_records([2096, 2097, 2098, 2099])
    got = block_scores(q, index, steps)
    assert np.abs(got[:, :524] - scores_float64(q, truth, steps)[:, :524]).max() < 2e-4
    for row in range(4):
        assert same_bytes(got[row], block_scores(q[row, None], index, steps[row, None])[0])
    # Row 3 ends a block: no cell is in the tail, so its spare block has no bonus.
    assert (got[:3, 524] >= 1e9).all() and got[3, 525] < 1e3
    assert np.isneginf(got[:3, 525]).all()


def test_scores_past_the_row_and_unused_rows_are_left_alone():
    index = filled(40)
    out = np.full((2, 11), 7, f32)
    block_scores(queries(2), index, step_records([17, -1]), out)
    assert (out[0, 5:] == 7).all() and (out[0, :5] != 7).all() and (out[1] == 7).all()


def test_relu_keeps_nan_and_makes_minus_zero_plus_zero():
    index = filled(12)
    index.pooled[1] = np.nan
    index.pooled[2] = 0
    q = np.repeat(-np.abs(queries(1)), 4, axis=0)[:1]
    got = block_scores(q, index, step_records([12]))[0]
    assert got[1].view(np.uint32) == 0x7FC00000
    assert got[2].view(np.uint32) == 0


def test_order_of_the_heads_is_fixed():
    """Heads of 2^24, 1, 1, 1: from the first on, every 1 is lost; from the last on, 2 of them arrive."""
    index = filled(4)
    index.pooled[0] = 0
    index.pooled[0, 0] = 1
    q = np.zeros((1, 4, 128), f32)
    q[0, :, 0] = [2**24, 1, 1, 1]
    assert block_scores(q, index, step_records([3]))[0, 0] == 2**24
    assert block_scores(q[:, ::-1], index, step_records([3]))[0, 0] == 2**24 + 4


score_lists = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, 3e38]), max_size=40)


@given(score_lists)
def test_keys_order_scores_as_the_rule_does(scores):
    scores = np.array(scores, f32)
    order = sorted(range(len(scores)), key=lambda i: (np.isnan(scores[i]), 0 if np.isnan(scores[i]) else -scores[i], i))
    assert np.argsort(-selection_key(scores).astype(np.int64), kind="stable").tolist() == order


@given(st.integers(0, 2**32), st.integers(2030, 2300), st.sampled_from(["blocks", "cells"]), st.integers(1, 3000))
def test_select_is_the_stable_sort(seed, n_kv, rule, levels):
    scores = generator(seed).integers(0, levels, (1, 600)).astype(f32)
    steps = step_records([n_kv - 1], rule)
    got = select(scores, steps, rule=rule)
    assert np.array_equal(got, select_sorted(scores, steps, rule=rule))
    chosen = got[0, : steps[0, 3]]
    assert (np.diff(chosen) > 0).all() and (got[0, steps[0, 3] :] == -1).all()
    tail = np.arange(n_kv // 4 * 4, n_kv)
    assert np.isin(tail, chosen).all()


def test_the_rules_differ_first_at_2052_cells():
    scores = -np.arange(600, dtype=f32)[None]
    for n_kv in (2047, 2048, 2049, 2050, 2051):
        rows = [select(scores, step_records([n_kv - 1], rule), rule=rule) for rule in ("blocks", "cells")]
        assert np.array_equal(*rows) and rows[0].max() == n_kv - 1
    blocks, cells = (select(scores, step_records([2051], rule), rule=rule)[0] for rule in ("blocks", "cells"))
    assert (blocks >= 0).sum() == 2048 and (cells >= 0).sum() == 2051
    # The 513th block is cut: its first three cells stay.
    assert cells[2047:].tolist() == [2047, 2048, 2049, 2050]


def test_ties_go_to_the_lower_index_and_nan_is_last():
    scores = np.full((1, 600), 1, f32)
    scores[0, 100] = np.nan
    scores[0, 101] = -np.inf
    ids = select(scores, step_records([4 * 514 - 1]))[0]
    # 514 blocks, 512 wanted: the NaN and the -inf block are the two left out.
    assert not np.isin([400, 404], ids).any()
    ids = select(scores, step_records([4 * 515 - 1]))[0]
    # 515 blocks: of the equal ones, the last is left out as well.
    assert not np.isin([400, 404, 4 * 514], ids).any() and np.isin(4 * 513, ids)


def test_select_refuses_what_it_cannot_do():
    scores = np.zeros((1, 600), f32)
    with pytest.raises(ValueError, match="rule = 'best'"):
        select(scores, step_records([5]), rule="best")
    with pytest.raises(ValueError, match="not the record of 2052 cells under 'cells'"):
        select(scores, step_records([2051]), rule="cells")
    with pytest.raises(ValueError, match="there are 600 scores"):
        select(scores, step_records([4000]))
    with pytest.raises(ValueError, match="ids: shape"):
        select(scores, step_records([2051]), np.zeros((1, 2047), np.int32))
