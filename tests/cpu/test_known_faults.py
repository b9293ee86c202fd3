"""Faults that kernels like ours have had, each with the smallest input that shows it and the right value.

The letters are those of the list the project keeps: A are faults of one engine and its forks, B and C of others. Every
backend is held to the same tests; a row whose subject is one backend's own machinery is tested beside that.
"""

import numpy as np
import pytest
from attention import SMALL, generator, record, relative_error, same_bytes, store

from qsa.parity.backend import Backend
from qsa.reference.attend import attend as attend_float64
from qsa.reference.block_scores import block_scores as block_scores_float64
from qsa.reference.geometry import REAL, RULES, Geometry, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as select_float64

ACCURACY = 1e-6
"""Relative to float64 on the same codes; the project's bound for ordinary inputs, 16 roundings of 2^-24."""


@pytest.fixture(params=["exact", "cpu"])
def backend(request):
    """A backend in the exact arithmetic, called with NumPy arrays."""
    return Backend(request.param)


def queries(rng, rows, geometry=SMALL):
    """Normal queries [rows, n_head, head_dim] float32."""
    return rng.standard_normal((rows, geometry.n_head, geometry.head_dim)).astype(np.float32)


def cells(rng, n, page_size=4, geometry=SMALL):
    """A PagedKV of ``n`` normal int8 cells behind a shuffled page table."""
    k, v = rng.standard_normal((2, n, geometry.n_head_kv, geometry.head_dim)).astype(np.float32)
    return store(k, v, "int8", page_size, geometry, rng)


def new_index(blocks):
    """An Index of the real geometry with a norm weight of ones."""
    return Index(blocks, np.ones(REAL.idx_dim, np.float32))


def raw_keys(rng, rows):
    """Normal raw indexer keys [rows, idx_dim] float32."""
    return rng.standard_normal((rows, REAL.idx_dim)).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
def test_a1_the_rank_of_a_tied_block_counts_ties_alone(backend, rule):
    """2,052 distinct scores: no tie anywhere, so a rank that mixes ties with greater ones drops a block."""
    scores = generator(1).permutation(2052).astype(np.float32)[None]
    steps = step_records([4 * 2052 + 1], rule)
    assert np.array_equal(backend.select(scores, steps, rule), select_float64(scores, steps, rule=rule))


@pytest.mark.parametrize("rule", RULES)
def test_a4_the_tail_is_selected_when_every_score_is_zero(backend, rule):
    steps = step_records([2052], rule)
    index = new_index(514)
    scores = backend.block_scores(np.zeros((1, 4, 128), np.float32), index, steps)
    assert scores[0, 513] == np.float32(1e9) and not scores[0, :513].any()
    ids = backend.select(scores[:, :513], steps, rule)[0, : steps[0, 3]]
    first = 2048 if rule == "blocks" else 2050
    assert ids.tolist() == [*range(first), 2052]


def test_a5_blocks_completed_one_cell_at_a_time_equal_a_batch(backend):
    raw = raw_keys(generator(2), 8)
    batch = backend.append_index(raw, step_records(range(8)), new_index(4))
    single = new_index(4)
    for pos in range(8):
        single = backend.append_index(raw[pos : pos + 1], step_records([pos]), single)
    assert same_bytes(batch.pooled, single.pooled) and batch.pooled[:2].any()
    # The value itself: mean, norm, rotation at the block's first cell; 1e-5 for float32 over 128 terms.
    mean = raw[:4].astype(np.float64).mean(axis=0)
    normed = mean / np.sqrt((mean * mean).mean() + REAL.eps)
    assert np.abs(batch.pooled[0] - normed).max() < 1e-5


@pytest.mark.parametrize("place", ["first", "middle", "last", "all"])
def test_a7_a_page_that_is_not_resident_is_not_read(backend, place):
    rng = generator(3)
    kv, q = cells(rng, 12, 1), queries(rng, 1)
    gone = {"first": [0], "middle": [5], "last": [11], "all": list(range(12))}[place]
    for side in (kv.pool.k, kv.pool.v):
        side.scale[kv.table[gone]] = np.nan
    kv.table[gone] = -1
    got = backend.attend(q, kv, np.arange(12, dtype=np.int32)[None], record(12))
    if place == "all":
        assert not got.any()
        return
    left = np.setdiff1d(np.arange(12), gone).astype(np.int32)[None]
    assert same_bytes(got, backend.attend(q, kv, left, record(left.size)))
    assert np.isfinite(got).all() and got.any()


def test_a8_an_absent_cell_takes_no_weight_as_a_cell_of_score_zero_would(backend):
    """Two cells, one absent, the other with q.k = -10: the result is its value, not nearly 0."""
    ones = np.ones((2, SMALL.n_head_kv, SMALL.head_dim), np.float32)
    kv = store(-ones, 3 * ones, "int8", 1, SMALL)
    kv.table[0] = -1
    q = np.full((1, SMALL.n_head, SMALL.head_dim), 10 / 8, np.float32)
    got = backend.attend(q, kv, np.array([[0, 1]], np.int32), record(2))
    # One cell has all the weight: what remains is one rounding each of mass, sum and quotient.
    assert np.abs(got / (127 * kv.pool.v.scale[1, 0, 0, 0].astype(np.float64)) - 1).max() < 3 * 2.0**-24


def test_b4_more_than_65535_blocks(backend):
    rng = generator(4)
    n_kv = 4 * 65537 + 2
    index = new_index(65538)
    index.pooled[:] = rng.standard_normal(index.pooled.shape)
    q = rng.standard_normal((1, 4, 128)).astype(np.float32)
    steps = step_records([n_kv - 1])
    scores = backend.block_scores(q, index, steps)
    want = block_scores_float64(q, index, steps)
    # float32 over 4 heads of 128 products, each product near 1 and a sum near 11: 1e-4 is 2^7 roundings.
    assert np.abs(scores[0, 65530:65537] - want[0, 65530:65537]).max() < 1e-4
    scores[0, 65536] = 1e6
    ids = backend.select(scores, steps)
    assert np.array_equal(ids, select_float64(scores, steps))
    assert ids[0, 2048 - 4 : 2050].tolist() == list(range(n_kv - 6, n_kv))


def test_b5_what_was_never_written_is_never_weighed(backend):
    """729 selected cells of 2,112, the rest and the ids behind the width full of poison."""
    rng = generator(5)
    kv, q = cells(rng, 2112), queries(rng, 1)
    chosen = np.sort(rng.permutation(2112)[:729])
    ids = np.full((1, 2112), 2**31 - 1, np.int32)
    ids[0, :729] = chosen
    want = backend.attend(q, kv, ids, record(729))
    page, place = kv.locate(np.setdiff1d(np.arange(2112), chosen))
    for side in (kv.pool.k, kv.pool.v):
        side.scale[page, :, place] = np.nan
    assert same_bytes(backend.attend(q, kv, ids, record(729)), want)
    assert relative_error(want, attend_float64(q, kv, ids, record(729))) < ACCURACY


def test_b9_offsets_beyond_32_bits_in_the_pool(backend):
    """Pages on both sides of 2^31 and 2^32 codes; the pool is reserved, and only the pages used are touched."""
    if hasattr(backend.module, "to_device"):
        pytest.skip("the backend would copy the 8 GiB of address space")
    wide = Geometry(n_head=4, n_head_kv=2, head_dim=256, n_rot=16)
    page_bytes = 512 * 2 * 256
    pages = 2**32 // page_bytes + 2
    rng = generator(6)
    try:
        kv = PagedKV.new("int8", 5 * 512, 512, wide, [1, pages // 2 - 1, pages // 2, pages - 2, pages - 1])
    except MemoryError:
        pytest.skip("9 GiB of address space are not to be had")
    assert kv.pool.k.codes.size > 2**32
    n = 5 * 512
    steps = step_records(np.arange(0, n, 31).tolist())
    k, v = rng.standard_normal((2, len(steps), 2, 256)).astype(np.float32)
    backend.append_kv(k, v, kv, steps)
    q, ids = queries(rng, 1, wide), steps[None, :, 0]
    got = backend.attend(q, kv, ids, record(len(steps)))
    assert same_bytes(
        got,
        backend.attend(
            q, store(k, v, "int8", 4, wide), np.arange(len(steps), dtype=np.int32)[None], record(len(steps))
        ),
    )


def test_b11_a_score_array_of_more_than_2_gib(backend):
    """Rows past 2^31 bytes, and more than 65,535 of them; only the rows in use are touched."""
    if hasattr(backend.module, "to_device"):
        pytest.skip("the backend would copy the 2 GiB of address space")
    rows, blocks = 65600, 8200
    scores = np.empty((rows, blocks), np.float32)
    assert scores.nbytes > 2**31
    positions = np.full(rows, -1)
    used = [0, 65535, 65536, rows - 1]
    positions[used] = 4 * 60 + 1
    small = Geometry(budget=16)
    steps = step_records(positions.tolist(), geometry=small)
    scores[used, :61] = generator(7).standard_normal((4, 61))
    ids = backend.module.select(scores, steps, np.empty((rows, 19), np.int32), geometry=small)
    assert np.array_equal(ids[used], select_float64(scores[used, :61], steps[used], geometry=small))
    assert (np.delete(ids, used, axis=0) == -1).all()


def test_c1_a_tie_at_the_cut_goes_to_the_lower_index(backend):
    """n_kv = 2052 under ``cells``: 513 blocks, the last two equal and lowest; the later one loses its last cell."""
    scores = np.arange(513, 0, -1, dtype=np.float32)[None]
    scores[0, [100, 300]] = 0.5
    steps = step_records([2051], "cells")
    for _ in range(3):
        got = backend.select(scores, steps, "cells")[0]
        assert got.tolist() == [cell for cell in range(2052) if cell != 4 * 300 + 3]


def test_c2_strided_arrays(backend):
    rng = generator(8)
    kv, q = cells(rng, 200), queries(rng, 3)
    ids = np.stack([rng.permutation(200) for _ in range(3)]).astype(np.int32)
    steps = np.concatenate([record(width) for width in (150, 64, 7)])
    want = backend.attend(q, kv, ids, steps)
    turned = [np.asfortranarray(x) for x in (q, ids, steps)]
    assert same_bytes(backend.attend(turned[0], kv, turned[1], turned[2]), want)
    scores = rng.standard_normal((3, 600)).astype(np.float32)
    records = step_records([2399, 2102, 5])
    wide = np.full((3, 1200), np.float32(9))
    wide[:, ::2] = scores
    assert np.array_equal(backend.select(wide[:, ::2], records), select_float64(scores, records))


def test_c3_five_cells_in_a_capacity_of_a_million(backend):
    rng = generator(9)
    table = np.full(1 << 18, -1, np.int32)
    table[[7, (1 << 18) - 1]] = [1, 0]
    kv = PagedKV.new("int8", 1 << 20, geometry=SMALL, table=table)
    ids = np.array([[28, 29, 31, (1 << 20) - 4, (1 << 20) - 1]], np.int32)
    k, v = rng.standard_normal((2, 5, 2, 64)).astype(np.float32)
    backend.append_kv(k, v, kv, step_records(ids[0].tolist()))
    q = queries(rng, 1)
    few = backend.attend(q, store(k, v, "int8", 4, SMALL), np.arange(5, dtype=np.int32)[None], record(5))
    for schedule, splits in (("batch", 1), ("split", 1), ("split", 20)):
        if backend.name != "exact" or schedule == "batch":
            assert same_bytes(backend.attend(q, kv, ids, record(5), schedule=schedule, splits=splits), few)


def test_c4_a_block_completed_again_after_a_rejected_draft(backend):
    """6 cells, 3 drafts that complete block 1 are rejected, 3 others follow: as if the drafts had never been.

    The third draft opens block 2 and takes the place of cell 4 in the tail, so the tail is put back with the rejection.
    """
    rng = generator(10)
    kept, drafts, others = raw_keys(rng, 6), raw_keys(rng, 3), raw_keys(rng, 3)
    index = backend.append_index(kept, step_records(range(6)), new_index(5))
    tail = index.tail.copy()
    index = backend.append_index(drafts, step_records(range(6, 9)), index)
    index.tail[:] = tail
    index = backend.append_index(others, step_records(range(6, 9)), index)
    clean = backend.append_index(np.concatenate([kept, others]), step_records(range(9)), new_index(5))
    for name in ("pooled", "dead"):
        assert same_bytes(getattr(index, name), getattr(clean, name))
    assert same_bytes(index.tail[:1], clean.tail[:1]) and not same_bytes(drafts, others)


def test_c11_more_close_scores_than_any_bin_holds(backend):
    """100,000 scores within 1e-3 of each other, the best of them last."""
    rng = generator(11)
    scores = (1 + 1e-3 * rng.random((1, 100_000))).astype(np.float32)
    scores[0, -600:] += np.float32(1e-3)
    steps = step_records([399_999])
    assert np.array_equal(backend.select(scores, steps), select_float64(scores, steps))


def test_c14_a_padded_row_is_not_read(backend):
    """3 rows in a call of 4: the padded row's ids, query and scores are poison."""
    rng = generator(12)
    kv, q = cells(rng, 64), queries(rng, 4)
    ids = np.stack([rng.permutation(64) for _ in range(4)]).astype(np.int32)
    steps = np.concatenate([record(64), record(9), record(33), step_records([-1])])
    want = backend.attend(q[:3], kv, ids[:3], steps[:3])
    q[3], ids[3] = np.nan, 2**30
    got = backend.attend(q, kv, ids, steps)
    assert same_bytes(got[:3], want) and not got[3].any()
    scores = np.full((2, 9), np.nan, np.float32)
    scores[0] = 1
    assert backend.select(scores, step_records([37, -1]))[:, :40].tolist() == [[*range(38), -1, -1], [-1] * 40]


def test_c16_a_row_alone_and_among_33(backend):
    rng = generator(13)
    kv, q = cells(rng, 300), queries(rng, 33)
    ids = np.stack([rng.permutation(300) for _ in range(33)]).astype(np.int32)
    steps = np.concatenate([record(width) for width in (299, *rng.integers(0, 300, 32).tolist())])
    for schedule in ("batch",) if backend.name == "exact" else ("batch", "split"):
        together = backend.attend(q, kv, ids, steps, schedule=schedule, splits=20)
        alone = backend.attend(q[:1], kv, ids[:1], steps[:1], schedule=schedule, splits=20)
        assert same_bytes(together[:1], alone)


def test_c17_the_second_page(backend):
    rng = generator(14)
    kv, q = cells(rng, 65, 64), queries(rng, 1)
    ids = np.arange(65, dtype=np.int32)[None]
    got = backend.attend(q, kv, ids, record(65))
    assert relative_error(got, attend_float64(q, kv, ids, record(65))) < ACCURACY
    assert not same_bytes(got, backend.attend(q, kv, ids, record(64)))


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_c18_an_odd_number_of_rows(backend, rows):
    rng = generator(15)
    index = backend.append_index(raw_keys(rng, 40), step_records(range(40)), new_index(11))
    q = rng.standard_normal((rows, 4, 128)).astype(np.float32)
    steps = step_records(range(40 - rows, 40))
    scores = backend.block_scores(q, index, steps)
    kv, heads = cells(rng, 40), queries(rng, rows)
    ids = backend.select(scores, steps)
    out = backend.attend(heads, kv, ids, steps)
    for row in range(rows):
        one, blocks = slice(row, row + 1), steps[row, 2] + 1
        assert same_bytes(scores[row, :blocks], backend.block_scores(q[one], index, steps[one])[0, :blocks])
        assert ids[row, : steps[row, 3]].tolist() == list(range(steps[row, 1]))
        assert same_bytes(out[one], backend.attend(heads[one], kv, ids[one], steps[one]))
