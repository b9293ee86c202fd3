"""Known faults that only large inputs show, for the CPU and a device; see ``known_faults``."""

import numpy as np
import pytest

from cases.known_faults import ACCURACY, index_queries, new_index, queries, vectors
from qsa.reference.attend import attend as attend_float64
from qsa.reference.block_scores import block_scores as block_scores_float64
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as select_float64
from support.arrays import generator, relative_error, same_bytes
from support.attention import record, store


def test_b4_more_than_65535_blocks(backend):
    rng = generator(4)
    n_kv = 4 * 65537 + 2
    index = new_index(65538)
    index.pooled[:] = rng.standard_normal(index.pooled.shape)
    q, steps = index_queries(rng, 1), step_records([n_kv - 1])
    want = block_scores_float64(q, index, steps)
    for schedule in backend.schedules["block_scores"]:
        scores = backend.block_scores(q, index, steps, schedule=schedule)
        # float32 over 4 heads of 128 products, each product near 1 and a sum near 11: 1e-4 is 2^7 roundings.
        assert np.abs(scores[0, :65537] - want[0, :65537]).max() < 1e-4, schedule
    scores[0, 65536] = 1e6
    right = select_float64(scores, steps)
    assert right[0, 2048 - 4 : 2050].tolist() == list(range(n_kv - 6, n_kv))
    for schedule in backend.schedules["select"]:
        if schedule != "registers":
            assert np.array_equal(backend.select(scores, steps, schedule=schedule), right), schedule


def test_b9_offsets_beyond_32_bits_in_the_pool(backend):
    """Pages lie on both sides of 2^31 and 2^32 codes. On the host only the pages in use take memory."""
    wide = Geometry(n_head=4, n_head_kv=2, n_rot=16)
    page_bytes = 512 * 2 * 256
    pages = 2**32 // page_bytes + 2
    rng = generator(6)
    try:
        kv = PagedKV.new("int8", 5 * 512, 512, wide, [1, pages // 2 - 1, pages // 2, pages - 2, pages - 1])
    except MemoryError:
        pytest.skip("9 GiB of address space are not to be had")
    assert kv.pool.k.codes.size > 2**32
    steps = step_records(np.arange(0, 5 * 512, 31).tolist())
    n = len(steps)
    k, v = vectors(rng, n, wide)
    q, ids = queries(rng, 1, wide), np.ascontiguousarray(steps[None, :, 0])
    near = store(k, v, "int8", 4, wide)
    kv = backend.to_device(kv)
    backend.call("append_kv", *map(backend.to_device, (k, v)), kv, backend.to_device(steps))
    want = backend.attend(q, near, np.arange(n, dtype=np.int32)[None], record(n))
    assert relative_error(want, attend_float64(q, near, np.arange(n)[None], record(n))) < ACCURACY
    for schedule in backend.schedules["attend"]:
        got = backend.call("attend", *(backend.to_device(x) if x is not kv else kv for x in (q, kv, ids, record(n))),
                           schedule=schedule, splits=7 if schedule == "split" else 1)  # fmt: skip
        assert same_bytes(backend.to_host(got), want), schedule


def test_b11_a_score_array_of_more_than_2_gib(backend):
    """More than 65,535 rows of scores, some beyond 2^31 bytes, are scored and selected; padded rows are not written."""
    rows, blocks = 65600, 8200
    small = Geometry(budget=16)
    positions = np.full(rows, -1)
    used = [0, 65535, 65536, rows - 1]
    positions[used] = 4 * 60 + 1
    steps = step_records(positions.tolist(), geometry=small)
    rng = generator(7)
    index = new_index(blocks)
    index.pooled[:60] = rng.standard_normal((60, 128))
    index.pooled[60:] = np.nan
    q = np.zeros((rows, 4, 128), np.float32)
    q[used] = index_queries(rng, len(used))
    scores = backend.xp.empty((rows, blocks), np.float32)
    assert scores.nbytes > 2**31
    q, index, records = (backend.to_device(x) for x in (q, index, steps))
    few = [backend.to_device(x) for x in (backend.to_host(q)[used], backend.to_host(index), steps[used])]
    want = backend.to_host(backend.call("block_scores", *few))
    ids = backend.xp.empty((rows, 19), np.int32)
    for schedule in backend.schedules["block_scores"]:
        if schedule in ("multi_query", "transposed"):
            continue
        given = {} if schedule is None else {"schedule": schedule}
        scores[used] = 0
        backend.call("block_scores", q, index, records, scores, **given)
        got = backend.to_host(scores[used])
        assert same_bytes(got[:, :61], want[:, :61]), schedule
    assert np.abs(got[:, :60] - block_scores_float64(*map(backend.to_host, few))[:, :60]).max() < 1e-4
    right = select_float64(got[:, :61], steps[used], geometry=small)
    for schedule in backend.schedules["select"]:
        given = {} if schedule is None else {"schedule": schedule}
        ids[...] = 7
        backend.call("select", scores, records, ids, geometry=small, **given)
        found = backend.to_host(ids)
        assert np.array_equal(found[used], right), schedule
        assert (np.delete(found, used, axis=0) == -1).all(), schedule
