"""Known faults of ``append_index`` and ``block_scores``; see ``known_faults``."""

import numpy as np
import pytest

from cases.known_faults import index_queries, new_index, raw_keys
from qsa.reference.append_index import append_index as append_index_float64
from qsa.reference.block_scores import block_scores as block_scores_float64
from qsa.reference.geometry import REAL, step_records
from support.arrays import generator, same_bytes


def lane_sum(x):
    """Sum of [128] float32 in the order of the lanes: groups of four, then halves."""
    four = x.reshape(32, 4)
    sums = ((four[:, 0] + four[:, 1]) + four[:, 2]) + four[:, 3]
    while sums.size > 1:
        sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
    return sums[0]


def normed(x):
    """Norm of a key with weights of one, each step rounded to float32."""
    mean = lane_sum(x * x) / np.float32(128)
    return x * (np.float32(1) / np.sqrt(mean + np.float32(REAL.eps)))


def poisoned(index):
    """``index`` with NaN in all its keys."""
    for name in ("tail", "dead", "pooled"):
        getattr(index, name).fill(np.nan)
    return index


def test_a2_every_step_of_a_key_is_rounded_to_float32(backend):
    """Every bit of a cell's key and of a block's key. Steps in float64 would be up to 0.4 ulp off."""
    raw = raw_keys(generator(20), 4)
    index = backend.append_index(raw, step_records(range(4)), new_index(2))
    assert same_bytes(index.dead, normed(raw[0]))
    assert same_bytes(index.pooled[0], normed((((raw[0] + raw[1]) + raw[2]) + raw[3]) * np.float32(0.25)))
    # The input tells the two apart.
    double = raw[0].astype(np.float64)
    double /= np.sqrt((double * double).mean() + REAL.eps)
    assert not same_bytes(index.dead, double.astype(np.float32))


def test_a5_blocks_completed_one_cell_at_a_time_equal_a_batch(backend):
    raw = raw_keys(generator(2), 8)
    batch = backend.append_index(raw, step_records(range(8)), new_index(4))
    single = new_index(4)
    for pos in range(8):
        single = backend.append_index(raw[pos : pos + 1], step_records([pos]), single)
    assert same_bytes(batch.pooled, single.pooled) and batch.pooled[:2].any()
    # The value itself: mean, norm, rotation at the block's first cell; 1e-5 for float32 over 128 terms.
    mean = raw[:4].astype(np.float64).mean(axis=0)
    assert np.abs(batch.pooled[0] - mean / np.sqrt((mean * mean).mean() + REAL.eps)).max() < 1e-5


def test_a6_one_block_and_one_query(backend):
    """The score of a block that has just been completed, and of the spare block behind it, by every schedule."""
    rng = generator(21)
    raw, q, steps = raw_keys(rng, 4), index_queries(rng, 1), step_records([3])
    index = backend.append_index(raw, step_records(range(4)), new_index(2))
    right = new_index(2, dtype=np.float64)
    append_index_float64(raw, step_records(range(4)), right)
    want = block_scores_float64(q, right, steps)
    assert want[0].min() > 1
    for schedule in backend.schedules["block_scores"]:
        scores = backend.block_scores(q, index, steps, schedule=schedule)
        # float32 over 4 heads of 128 products and a key of as many: 1e-4 is 2^7 roundings of a sum near 11.
        assert np.abs(scores - want).max() < 1e-4, schedule


def test_a11_position_0_is_multiplied_by_mscale(backend):
    """YaRN of factor 2 scales the rotated dims of the dead key and of the first pooled key too."""
    raw = raw_keys(generator(22), 4)
    mscale = np.float32(0.1 * np.log(2) + 1)
    plain = backend.append_index(raw, step_records(range(4)), new_index(2))
    scaled = backend.append_index(raw, step_records(range(4)), new_index(2, mscale=float(mscale)))
    for key, scaled_key in ((plain.dead, scaled.dead), (plain.pooled[0], scaled.pooled[0])):
        assert same_bytes(scaled_key[: REAL.n_rot], key[: REAL.n_rot] * mscale)
        assert same_bytes(scaled_key[REAL.n_rot :], key[REAL.n_rot :])


def test_c4_a_block_completed_again_after_a_rejected_draft(backend):
    """After 6 cells, 3 drafts complete block 1 and are rejected; 3 other cells follow: no trace of them is left.

    The third draft opens block 2 and overwrites cell 4 in the tail, so the tail is restored with the rejection.
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


def test_c5_a_chunk_shorter_than_a_block(backend):
    """A chunk of positions 5 and 6 leaves block 1 as it was until position 7. Nothing behind the chunk is read.

    The two rows score block 0 and the dead key.
    """
    rng = generator(23)
    raw, q = raw_keys(rng, 8), index_queries(rng, 2)
    index = backend.append_index(raw[:5], step_records(range(5)), poisoned(new_index(3)))
    first = index.pooled[0].copy()
    chunk = np.full((6, REAL.idx_dim), np.nan, np.float32)
    chunk[:2] = raw[5:7]
    index = backend.append_index(chunk[:2], step_records([5, 6]), index)
    assert same_bytes(index.pooled[0], first) and np.isnan(index.pooled[1:]).all()
    assert same_bytes(index.tail, raw[4:7])
    steps = step_records([5, 6])
    for schedule in backend.schedules["block_scores"]:
        scores = backend.block_scores(q, index, steps, schedule=schedule)
        assert np.isfinite(scores[:, :2]).all() and (scores[:, 1] > 9e8).all(), schedule
    index = backend.append_index(raw[7:], step_records([7]), index)
    whole = backend.append_index(raw, step_records(range(8)), new_index(3))
    assert same_bytes(index.pooled[:2], whole.pooled[:2])


def test_c12_rejected_drafts_over_the_open_blocks_raw_keys(backend):
    """From position 6 on 5 drafts are rejected. They overwrite entries 0 to 2 of the tail, the open block's cells.

    Complete blocks stay as they are. With the tail restored, what follows is as if the drafts had never been.
    """
    rng = generator(24)
    kept, drafts, others = raw_keys(rng, 6), raw_keys(rng, 5), raw_keys(rng, 2)
    index = backend.append_index(kept, step_records(range(6)), new_index(4))
    tail, pooled = index.tail[:2].copy(), index.pooled[0].copy()
    assert same_bytes(tail, kept[4:])
    index = backend.append_index(drafts, step_records(range(6, 11)), index)
    assert same_bytes(index.tail, drafts[2:]) and same_bytes(index.pooled[0], pooled)
    index.tail[:2] = tail
    index = backend.append_index(others, step_records([6, 7]), index)
    clean = backend.append_index(np.concatenate([kept, others]), step_records(range(8)), new_index(4))
    assert same_bytes(index.pooled[:2], clean.pooled[:2]) and same_bytes(index.dead, clean.dead)


@pytest.mark.parametrize("window", [5, 6, 7, 8])
def test_c13_a_window_over_several_blocks(backend, window):
    """A window from position 6 completes a block of cells of the tail and its own, then one or two of its own alone."""
    rng = generator(25)
    raw = raw_keys(rng, 6 + window)
    start = backend.append_index(raw[:6], step_records(range(6)), poisoned(new_index(5)))
    together = backend.append_index(raw[6:], step_records(range(6, 6 + window)), start)
    want = poisoned(new_index(5))
    for block in range((6 + window) // 4):
        cells = raw[4 * block : 4 * block + 4]
        right = new_index(5)
        for pos in range(4):
            right = backend.append_index(cells[pos : pos + 1], step_records([4 * block + pos]), right)
        want.pooled[block] = right.pooled[block]
    assert same_bytes(together.pooled, want.pooled)
    opened = (6 + window) % 4
    assert same_bytes(together.tail[:opened], raw[6 + window - opened :])
