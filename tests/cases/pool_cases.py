"""Tests of slots with a pool each, for the simulator and a device: one launch for each format, whatever their number.

The fixture ``backend`` is a :class:`support.backend.Backend`.
"""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest

from cases.attend_cases import FORMATS, exact_problem, random_kv
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference import exact
from qsa.reference.kv import Side
from support.arrays import bits

KERNEL, WRITE = "attend_exact", "write_pools_kernel"


def several(seed, count, formats=("int8",), rows=5, width=6):
    """(q, kvs, ids, steps, slots) of ``rows`` rows over ``count`` slots, the last of them among the rows'."""
    rng = np.random.default_rng(seed)
    pages = (4, 1, 8, 2)
    kvs = [random_kv(rng, formats[i % len(formats)], 24, pages[i % len(pages)]) for i in range(count)]
    q, _, ids, steps = exact_problem(seed + 1, [width] * rows, cells=24)
    slots = rng.integers(0, count, rows).astype(np.int32)
    slots[0] = count - 1
    return q, kvs, ids, steps, slots


class Calls:
    """Calls over ``kvs``, with a plan or without, of the same arrays."""

    def __init__(self, backend, q, kvs, ids, steps, slots, planned=False):
        self.backend, self.arguments = backend, (q, ids, steps, slots)
        self.kvs, self.there = kvs, backend.to_device(kvs)
        self.q, self.ids, self.steps, self.slots = (backend.to_device(x) for x in self.arguments)
        self.options = {"arithmetic": "exact"}
        if planned:
            options = {"with_slots": True, "arithmetic": "exact"}
            self.options = {"plan": backend.module.plan_attend(self.there, len(q), ids.shape[1], **options)}

    def run(self, there=None):
        """The output, full of NaN before."""
        out = self.backend.to_device(np.full(self.q.shape, np.nan, np.float32))
        there = self.there if there is None else there
        assert self.backend.module.attend(self.q, there, self.ids, self.steps, self.slots, out, **self.options) is out
        return self.backend.to_host(out)

    def check(self, kvs=None, there=None):
        """Bytes of the reference, and the launches that were made: name -> times."""
        before = Counter(launches())
        got = self.run(there)
        q, ids, steps, slots = self.arguments
        kvs = self.kvs if kvs is None else kvs
        named = (slots >= 0) & (slots < len(kvs))
        wanted = exact.attend(q[named], kvs, ids[named], steps[named], slots[named])
        np.testing.assert_array_equal(bits(got[named]), bits(wanted))
        assert np.isnan(got[~named]).all()
        return Counter(launches()) - before


@pytest.fixture(autouse=True)
def tables(backend, monkeypatch):
    """Tables and plans of each test alone: the allocator gives an address of an earlier test again, whose plan would
    know the table of these addresses and write none."""
    module = backend.load("common.pool_tables")
    fresh = module.PoolTables()
    fresh.open(backend.load("toolchain.compiler").current_device())
    monkeypatch.setattr(module, "TABLES", fresh)
    backend.load("attend")._plans.clear()
    return fresh


@pytest.fixture(params=[False, True], ids=["no plan", "plan"])
def planned(request):
    """Whether calls have a plan."""
    return request.param


@pytest.mark.parametrize("count", [1, 4, 5, 16, 70])
def test_slots_of_one_format_take_one_launch(backend, planned, count):
    """More than four by a table, which is written once for these pools."""
    calls = Calls(backend, *several(100 + count, count), planned)
    assert calls.check()[KERNEL] == 1
    assert calls.check() == Counter({KERNEL: 1})


@pytest.mark.parametrize("count", [2, 3, 12])
def test_mixed_formats_take_a_launch_each(backend, planned, count):
    """Rows of slots that are none of them are left unwritten."""
    q, kvs, ids, steps, slots = several(120 + count, count, FORMATS, rows=7)
    slots[:] = [0, 1, count - 1, -1, count, 0, 1]
    calls = Calls(backend, q, kvs, ids, steps, slots, planned)
    assert calls.check()[KERNEL] == min(count, 3)
    assert calls.check() == Counter({KERNEL: min(count, 3)})


def test_rows_of_no_slot_are_left_unwritten(backend):
    q, kvs, ids, steps, slots = several(140, 6)
    slots[:] = [-1, 5, 6, 1 << 20, -(1 << 31)]
    Calls(backend, q, kvs, ids, steps, slots).check()


def test_every_schedule_reads_the_table(backend):
    """Several blocks of a row by way of the scratch and, where the device has them, in clusters; a row at a time."""
    q, kvs, ids, steps, slots = several(141, 5, rows=2, width=20)
    wanted = exact.attend(q, kvs, ids, steps, slots)
    arrays = [backend.to_device(x) for x in (q, kvs, ids, steps, slots)]
    for options in ({"schedule": "step"}, {"schedule": "split", "splits": 2}, {"schedule": "prompt"}):
        out = backend.module.attend(*arrays, arithmetic="exact", **options)
        np.testing.assert_array_equal(bits(backend.to_host(out)), bits(wanted))


def test_a_replaced_pool_table_or_side_of_a_slot_is_seen(backend, planned):
    """Of the same DeviceKV, by the next call; a call with the pools of before is right again, too."""
    q, kvs, ids, steps, slots = several(150, 5)
    slots[:] = [4, 0, 2, 4, 1]
    calls = Calls(backend, q, kvs, ids, steps, slots, planned)
    calls.check()
    there, kv = calls.there[4], kvs[4]
    other = random_kv(np.random.default_rng(151), "int8", 24, kv.pool.page_size)
    wanted, before = backend.to_device(other), (there.pool, kv.pool)
    there.table, kv.table = wanted.table, other.table
    calls.check()
    there.pool.v = Side("int8", wanted.pool.v.codes, wanted.pool.v.scale)
    kv.pool.v = other.pool.v
    calls.check()
    there.pool, kv.pool = wanted.pool, other.pool
    assert calls.check()[WRITE] == 1
    there.pool, kv.pool = before
    calls.check()


def test_other_slots_of_the_same_shapes_are_seen(backend, planned):
    """Calls that differ in their pools alone, one after the other: each has a table, which is written once."""
    q, kvs, ids, steps, slots = several(160, 8)
    calls = Calls(backend, q, kvs, ids, steps, slots, planned)
    turned = [kvs[i] for i in (1, 2, 3, 4, 5, 6, 7, 0)], [calls.there[i] for i in (1, 2, 3, 4, 5, 6, 7, 0)]
    kinds = [kv.pool.page_size for kv in kvs]
    assert kinds != [kv.pool.page_size for kv in turned[0]]
    assert calls.check()[WRITE] == 1
    assert calls.check(*turned)[WRITE] == 1
    for given in ((None, None), turned) * 2:
        assert calls.check(*given) == Counter({KERNEL: 1})


def test_page_tables_are_read_on_the_device(backend):
    """Their contents change without another table of pools."""
    q, kvs, ids, steps, slots = several(170, 5)
    calls = Calls(backend, q, kvs, ids, steps, slots)
    calls.check()
    kv, there = kvs[slots[0]], calls.there[slots[0]]
    kv.table[:] = kv.table[::-1].copy()
    there.set_table(kv.table)
    assert calls.check() == Counter({KERNEL: 1})


def test_the_tables_keep_no_pool_alive(backend):
    """Another pool in its place is another one."""
    calls = Calls(backend, *several(180, 5))
    calls.check()
    seen = [weakref.ref(x) for kv in calls.there for x in (kv, kv.pool.k.codes, kv.table)]
    calls.there = None
    gc.collect()
    assert all(x() is None for x in seen)
    for seed in (181, 183):
        Calls(backend, *several(seed, 5)).check()


def test_plans_of_other_rows_share_a_table(backend):
    """Of the same slots: the second plan writes nothing."""
    q, kvs, ids, steps, slots = several(190, 5)
    calls = Calls(backend, q, kvs, ids, steps, slots)
    calls.check()
    few = Calls(backend, q[:2], kvs, ids[:2], steps[:2], slots[:2])
    few.there = calls.there
    assert few.check() == Counter({KERNEL: 1})
