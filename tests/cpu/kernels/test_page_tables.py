"""Page tables that are changed after their K/V was made, and pages that slots share (known-faults E4)."""

import copy

import numpy as np
import pytest

import qsa.reference
from qsa.kernels import cpu
from qsa.kernels.cuda import simulator
from qsa.reference import exact
from qsa.reference.geometry import step_records
from qsa.reference.kv import PagedKV, Pool, read_kv
from support.arrays import generator
from support.attention import SMALL, fill

CELLS, PAGES = 64, 16
ATTENDS = {
    "reference": qsa.reference.attend,
    "exact": exact.attend,
    "cpu exact": lambda *given: cpu.attend(*given, arithmetic="exact"),
    "cpu float": lambda *given: cpu.attend(*given, arithmetic="float"),
}
APPENDS = {"reference": qsa.reference.append_kv, "cpu": cpu.append_kv}
WRONG = {PAGES + 1: "17", PAGES: "16", -2: "-2", 2**31 - 1: "2147483647"}


def problem():
    """(q, kv, ids, steps) of one row over 64 cells in 16 pages, and an array for the output."""
    kv, _, _ = fill(generator(1), CELLS, "int8", 4, SMALL)
    q = generator(2).standard_normal((1, SMALL.n_head, SMALL.head_dim)).astype(np.float32)
    ids, steps = np.arange(CELLS, dtype=np.int32)[None], np.array([[63, 64, 16, 64]], np.int32)
    return (q, kv, ids, steps, None), np.full(q.shape, 7.0, np.float32)


def rows(count, seed=3):
    return generator(seed).standard_normal((2, count, SMALL.n_head_kv, SMALL.head_dim)).astype(np.float32)


def contents(*kvs):
    """Every byte of pools, host copies and tables."""
    pools = [pool for kv in kvs for pool in (kv.pool, kv.host) if pool is not None]
    arrays = [array for pool in pools for side in (pool.k, pool.v) for array in side[1:]]
    return [array.tobytes() for array in (*arrays, *(kv.table for kv in kvs))]


@pytest.mark.parametrize("entry", WRONG)
@pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS)
def test_attend_refuses_a_changed_table_before_it_reads(attend, entry):
    given, out = problem()
    attend(*given, out)
    out[...] = 7
    given[1].table[3] = entry
    message = rf"kv\[0\]\.table\[3\] = {entry}: the pool has 16 pages: must be from 0 to 15, or -1"
    with pytest.raises(IndexError, match=message):
        attend(*given, out)
    assert (out == 7).all()


@pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS)
def test_attend_names_the_slot_of_a_changed_table(attend):
    (q, kv, ids, steps, _), out = problem()
    other = copy.deepcopy(kv)
    other.table[0] = 99
    with pytest.raises(IndexError, match=r"kv\[1\]\.table\[0\] = 99"):
        attend(q, [kv, other], ids, steps, np.zeros(1, np.int32), out)
    assert (out == 7).all()


@pytest.mark.parametrize("attend", ATTENDS.values(), ids=ATTENDS)
def test_attend_writes_nothing_when_a_later_row_has_an_id_beyond_the_capacity(attend):
    (q, kv, ids, steps, _), _ = problem()
    q, ids, steps = np.repeat(q, 2, 0), np.repeat(ids, 2, 0), np.repeat(steps, 2, 0)
    ids[1, 5] = CELLS
    out = np.full(q.shape, 7.0, np.float32)
    with pytest.raises(IndexError, match="cell 64: the page table addresses cells 0 to 63"):
        attend(q, kv, ids, steps, None, out)
    # An id of 64 bits is not taken for its lower half.
    ids = ids.astype(np.int64)
    ids[1, 5] = 2**32
    with pytest.raises(IndexError, match="cell 4294967296"):
        attend(q, kv, ids, steps, None, out)
    assert (out == 7).all()


@pytest.mark.parametrize("entry", WRONG)
@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_append_refuses_a_changed_table_before_it_writes(append, entry):
    kv = PagedKV.new("int8", CELLS, 4, SMALL, host=True)
    kv.table[3] = entry
    before = contents(kv)
    # The first row's page is right.
    with pytest.raises(IndexError, match=rf"kv\[0\]\.table\[3\] = {entry}: the pool has 16 pages"):
        append(*rows(2), kv, step_records([0, 13]))
    assert contents(kv) == before
    with pytest.raises(IndexError, match=rf"table\[3\] = {entry}"):
        read_kv(kv, [0])


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_a_table_or_host_copy_of_another_kind_is_refused(append):
    kv = PagedKV.new("int8", CELLS, 4, SMALL, host=True)
    for table, message in (
        (np.zeros((4, 4), np.int32), r"kv\[0\]\.table: int32, 2 axes: must be int32, one entry per logical page"),
        (np.zeros(16), r"kv\[0\]\.table: float64, 1 axes"),
        (np.arange(17, dtype=np.int32) - 1, r"kv\[0\]\.host: 16 pages: the table has 17"),
    ):
        changed = copy.copy(kv)
        changed.table = table
        before = contents(kv)
        with pytest.raises(ValueError, match=message):
            append(*rows(1), changed, step_records([0]))
        assert contents(kv) == before


def shared(*tables, host=False):
    """K/V of several slots over one pool of 16 pages."""
    pool = Pool("int8", PAGES, 4, SMALL)
    copies = Pool("int8", PAGES, 4, SMALL) if host else None
    return [PagedKV(pool, np.array(table, np.int32), copies) for table in tables]


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_two_slots_that_write_one_page_are_refused(append):
    """Both write cell 31, or cells beside each other: the last would win, and the other slot's output would change."""
    kvs = shared(range(8), range(8), range(8, 16))
    before = contents(*kvs)
    for positions in ([31, 31], [31, 30]):
        with pytest.raises(ValueError, match="kv: slots 0 and 1 share page 7 and both write it"):
            append(*rows(2), kvs, step_records(positions), np.array([0, 1], np.int32))
        assert contents(*kvs) == before
    # The same K/V twice, and two pools that are one memory.
    with pytest.raises(ValueError, match="slots 1 and 2 share page 0 "):
        append(*rows(2), [kvs[2], kvs[0], kvs[0]], step_records([1, 2]), np.array([1, 2], np.int32))
    twin = Pool("int8", PAGES, 4, SMALL)
    twin.k, twin.v = kvs[0].pool.k, kvs[0].pool.v
    with pytest.raises(ValueError, match="slots 0 and 1 share page 7 "):
        append(*rows(2), [kvs[0], PagedKV(twin, kvs[1].table)], step_records([31, 31]), np.array([0, 1], np.int32))
    assert contents(*kvs) == before


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_slots_may_share_the_pages_that_one_of_them_writes_or_none(append):
    kvs = shared([0, 1, 2], [0, 1, 3])
    assert append(*rows(2), kvs, step_records([8, 9]), np.array([0, 1], np.int32))
    assert append(*rows(2), kvs, step_records([4, 9]), np.array([0, 1], np.int32))
    # A page that is not resident is no page.
    kvs = shared([0, -1], [1, -1])
    assert append(*rows(2), kvs, step_records([4, 4]), np.array([0, 1], np.int32))


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_host_copies_and_pages_of_one_table_are_not_shared_either(append):
    kvs = shared([0], [1], host=True)
    with pytest.raises(ValueError, match="slots 0 and 1 share host page 0 "):
        append(*rows(2), kvs, step_records([0, 0]), np.array([0, 1], np.int32))
    (kv,) = shared(range(4))
    kv.table[2] = 1
    before = contents(kv)
    with pytest.raises(ValueError, match=r"kv\[0\]\.table: logical pages 1 and 2 share page 1 and both are written"):
        append(*rows(2), kv, step_records([4, 8]))
    assert contents(kv) == before


def test_set_table_checks_before_it_copies():
    containers = simulator.load("device")
    kv = PagedKV.new("int8", CELLS, 4, SMALL)
    for made in (kv, containers.to_device(kv)):
        made.set_table(np.arange(PAGES)[::-1])
        assert made.table.tolist() == list(range(PAGES))[::-1]
        for table, kind, message in (
            ([*range(15), 16], IndexError, r"table\[15\] = 16: the pool has 16 pages"),
            ([-2, *range(15)], IndexError, r"table\[0\] = -2"),
            (range(15), ValueError, "table: 15 pages: must be 16"),
            ([0.5] * 16, ValueError, "table: float64"),
        ):
            with pytest.raises(kind, match=message):
                made.set_table(np.array(table))
        assert made.table.tolist() == list(range(PAGES))[::-1]


def test_the_device_takes_no_table_that_leads_out_of_the_pool():
    """What is written on the device itself cannot be checked without waiting for it; what comes from the host is."""
    containers, append = simulator.load("device"), simulator.load("append_kv").append_kv
    kv = PagedKV.new("int8", CELLS, 4, SMALL)
    on_device = containers.to_device(kv)
    kv.table[3] = PAGES + 1
    with pytest.raises(IndexError, match=r"table\[3\] = 17: the pool has 16 pages"):
        containers.to_device(kv)
    steps, slots = step_records([0, 4]), np.array([0, 1], np.int32)
    with pytest.raises(ValueError, match="kv: slots 0 and 1 are one DeviceKV"):
        append(*rows(2), [on_device, on_device], steps, slots)
    assert not on_device.pool.k.codes.any()
