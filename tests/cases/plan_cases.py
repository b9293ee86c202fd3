"""Tests of plans, for the simulator and a device: the bytes of ``reference.exact``, whatever changed since a plan was
made; what a plan does not fit is refused.

The fixture ``backend`` is a :class:`support.backend.Backend`.
"""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from cases.append_cases import make_index, poisoned, same_index, same_kv, vectors
from cases.attend_cases import SMALL, exact_problem, random_kv
from qsa.kernels import ops
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference import exact
from qsa.reference.geometry import REAL, Geometry, step_records
from qsa.reference.index import INDEX_FORMATS
from qsa.reference.kv import PagedKV, Side
from support.arrays import bits


def same(backend, got, wanted):
    np.testing.assert_array_equal(bits(backend.to_host(got)), bits(wanted))


def planned_attend(backend, plan, q, kv, ids, steps):
    """The output of a call with a plan (None: of one without)."""
    out = backend.to_device(np.full(q.shape, np.nan, np.float32))
    arrays = [backend.to_device(x) for x in (q, ids, steps)]
    options = {} if plan is not None else {"arithmetic": "exact"}
    assert backend.module.attend(arrays[0], kv, *arrays[1:], None, out, plan=plan, **options) is out
    return out


@pytest.fixture(params=["plan", "no plan"])
def plan_of(request, backend):
    """Function that makes a plan of ``attend`` for K/V, rows and cap; None where calls go without one."""

    def make(kv, rows, cap, **options):
        if request.param == "no plan":
            return None
        return backend.module.plan_attend(kv, rows, cap, arithmetic="exact", **options)

    return make


def test_one_plan_serves_other_arrays_and_contents(backend, plan_of):
    """Other queries, ids, widths and page tables at other addresses, and the same arrays with other contents."""
    q, kv, ids, steps = exact_problem(50, [20], cells=24)
    there = backend.to_device(kv)
    plan = plan_of(there, 1, 20)
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))
    q, _, ids, steps = exact_problem(51, [7], cells=24, cap=20)
    kv.table[:] = kv.table[::-1]
    backend.write(there.table, kv.table)
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))


def test_a_replaced_pool_table_or_side_is_seen(backend, plan_of):
    """Of the same DeviceKV: the descriptors in the packed arguments follow."""
    q, kv, ids, steps = exact_problem(52, [20], cells=24)
    other = random_kv(np.random.default_rng(53), "int8", 24)
    there, wanted = backend.to_device(kv), backend.to_device(other)
    plan = plan_of(there, 1, 20)
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))
    there.table = wanted.table
    kv.table = other.table
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))
    there.pool.k = Side("int8", wanted.pool.k.codes, wanted.pool.k.scale)
    kv.pool.k = other.pool.k
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))
    there.pool = wanted.pool
    kv.pool = other.pool
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))


def test_another_size_of_page_and_table_is_seen(backend, plan_of):
    q, kv, ids, steps = exact_problem(54, [20], cells=24)
    there = backend.to_device(kv)
    plan = plan_of(there, 1, 20)
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))
    other = random_kv(np.random.default_rng(55), "int8", 40, page_size=8)
    same(
        backend,
        planned_attend(backend, plan, q, backend.to_device(other), ids, steps),
        exact.attend(q, other, ids, steps),
    )


def test_pools_are_freed_beside_their_plan(backend, plan_of):
    """Neither a plan nor the cache keeps K/V, queries or outputs alive; a new pool in their place is another one."""
    q, kv, ids, steps = exact_problem(56, [20], cells=24)
    there = backend.to_device(kv)
    plan = plan_of(there, 1, 20)
    out = planned_attend(backend, plan, q, there, ids, steps)
    seen = [weakref.ref(x) for x in (there, there.pool.k.codes, there.table, out)]
    del there, out
    gc.collect()
    assert [x() is None for x in seen] == [True] * 4
    for seed in range(57, 60):
        # The allocator gives the freed memory away again.
        kv = random_kv(np.random.default_rng(seed), "int8", 24)
        got = planned_attend(backend, plan, q, backend.to_device(kv), ids, steps)
        same(backend, got, exact.attend(q, kv, ids, steps))


def test_a_plan_of_several_slots(backend):
    """Five slots of one format take one launch; each call names their rows."""
    rng = np.random.default_rng(60)
    kvs = [random_kv(rng, "int8", 24) for _ in range(5)]
    q, _, ids, steps = exact_problem(61, [6, 5, 4], cells=24)
    there = backend.to_device(kvs)
    plan = backend.module.plan_attend(there, 3, 6, arithmetic="exact")
    assert len(plan.launches) == 1 and plan.operands[4].name == "slots"
    arrays = [backend.to_device(x) for x in (q, ids, steps)]
    for slots in (np.array([4, 0, 2], np.int32), np.array([1, 1, 3], np.int32)):
        out = backend.module.attend(arrays[0], there, *arrays[1:], backend.to_device(slots), plan=plan)
        same(backend, out, exact.attend(q, kvs, ids, steps, slots))
    with pytest.raises(ValueError, match="4 arrays: must be 5"):
        backend.module.attend(arrays[0], there, *arrays[1:], plan=plan)


@pytest.mark.parametrize(("schedule", "count"), [("step", 2), ("batch", 1), ("split", 1)])
def test_schedules_are_chosen_in_the_plan(backend, schedule, count):
    q, kv, ids, steps = exact_problem(62, [20, 9], cells=24)
    there = backend.to_device(kv)
    plan = backend.module.plan_attend(there, 2, 20, schedule=schedule, arithmetic="exact")
    assert len(plan.launches) == count
    same(backend, planned_attend(backend, plan, q, there, ids, steps), exact.attend(q, kv, ids, steps))


def test_a_plan_of_the_float_arithmetic(backend):
    """With a scratch of its own; the bits of a call without a plan."""
    q, kv, ids, steps = exact_problem(63, [70, 5], cells=96)
    there = backend.to_device(kv)
    arrays = [backend.to_device(x) for x in (q, ids, steps)]
    plan = backend.module.plan_attend(there, 2, 70, arithmetic="float")
    wanted = backend.module.attend(arrays[0], there, *arrays[1:], arithmetic="float")
    got = backend.module.attend(arrays[0], there, *arrays[1:], plan=plan)
    np.testing.assert_array_equal(bits(backend.to_host(got)), bits(backend.to_host(wanted)))


def test_refusals_of_plans_are_counted(backend):
    """As those of the operation, before anything is launched."""
    module, launched = backend.module, launches()
    k8v4 = backend.to_device(exact_problem(64, [1], "k8v4", cells=24)[1])
    odd = backend.to_device(PagedKV.new("int8", 4, geometry=Geometry(n_head=13, n_head_kv=1)))
    index = backend.to_device(make_index(np.random.default_rng(65), Geometry(idx_heads=2)))
    refused = [
        ("attend", "format", lambda: module.plan_attend(k8v4, 1, 20, schedule="split", arithmetic="exact")),
        ("attend", "geometry", lambda: module.plan_attend(odd, 1, 20, arithmetic="exact")),
        ("block_scores", "geometry", lambda: module.plan_block_scores(index, 1)),
        ("select", "capacity", lambda: module.plan_select(1, 1 << 20, schedule="registers")),
    ]
    for operation, reason, call in refused:
        before = ops.refusals().get((operation, reason), 0)
        assert call() is False
        assert ops.refusals()[operation, reason] == before + 1
    assert launches() == launched


def test_a_plan_refuses_what_it_was_not_made_for(backend):
    """Another operation, shape, dtype, layout, format, geometry, and arguments that it decides; nothing is launched."""
    module = backend.module
    q, kv, ids, steps = exact_problem(66, [20], cells=24)
    there = backend.to_device(kv)
    plan = module.plan_attend(there, 1, 20, arithmetic="exact")
    q, ids, steps = (backend.to_device(x) for x in (q, ids, steps))
    index = backend.to_device(make_index(np.random.default_rng(67)))
    k8v4 = backend.to_device(random_kv(np.random.default_rng(67), "k8v4", 24))
    wide = backend.to_device(random_kv(np.random.default_rng(67), "int8", 24, geometry=replace(SMALL, budget=16)))
    launched = launches()
    for message, call in (
        ("must be what plan_attend returned", lambda: module.attend(q, there, ids, steps, plan=7)),
        ("must be a plan of block_scores", lambda: module.block_scores(q, index, steps, plan=plan)),
        ("must be a plan of select", lambda: module.select(q, steps, plan=plan)),
        ("must be a plan of append_kv", lambda: module.append_kv(q, q, there, steps, plan=plan)),
        ("must be a plan of append_index", lambda: module.append_index(q, steps, index, plan=plan)),
        ("kv is a list", lambda: module.plan_attend([there, there], 1, 20, with_slots=False)),
        ("schedule = 'batch'", lambda: module.attend(q, there, ids, steps, schedule="batch", plan=plan)),
        ("arithmetic = 'exact'", lambda: module.attend(q, there, ids, steps, arithmetic="exact", plan=plan)),
        ("k8v4", lambda: module.attend(q, k8v4, ids, steps, plan=plan)),
        ("budget=16", lambda: module.attend(q, wide, ids, steps, plan=plan)),
        ("ids: int32", lambda: module.attend(q, there, ids[:, :19], steps, plan=plan)),
        ("steps: int64", lambda: module.attend(q, there, ids, steps.astype(np.int64), plan=plan)),
        ("q: float32", lambda: module.attend(q[:0], there, ids, steps, plan=plan)),
        ("q: list", lambda: module.attend([1], there, ids, steps, plan=plan)),
        ("5 arrays: must be 4", lambda: module.attend(q, there, ids, steps, steps[:, 0].copy(), plan=plan)),
        ("rows = -1", lambda: module.plan_attend(there, -1, 20)),
        ("cap = 5.0", lambda: module.plan_attend(there, 1, 5.0)),
        ("cap = 3: must be 2051 or more", lambda: module.plan_select(1, 1000, 3)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert launches() == launched


def test_the_cache_checks_what_a_key_does_not_hold(backend):
    """A call like an earlier one, but for a dtype, a layout or an address."""
    q, kv, ids, steps = exact_problem(68, [20], cells=24)
    there = backend.to_device(kv)
    planned_attend(backend, None, q, there, ids, steps)
    q, ids, steps = (backend.to_device(x) for x in (q, ids, steps))
    shifted = backend.to_device(np.zeros(q.size + 1, np.float32))[1:].reshape(q.shape)
    launched = launches()
    for message, arguments in (
        ("q: float64", (q.astype(np.float64), there, ids, steps)),
        ("must be C-contiguous", (q, there, backend.to_device(np.zeros((1, 40), np.int32))[:, ::2], steps)),
        ("multiple of 16", (shifted, there, ids, steps)),
    ):
        if "C-contiguous" in message and arguments[2].flags.c_contiguous:
            arguments = (arguments[0], there, backend.xp.zeros((20, 2), np.int32).T[:1], steps)
        with pytest.raises(ValueError, match=message):
            backend.module.attend(*arguments, arithmetic="exact")
    assert launches() == launched


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("schedule", [None, "prompt"])
def test_plans_of_scores_and_selection(backend, schedule, format):
    """Of two windows over two indices: keys, records and outputs are read anew."""
    module, rng = backend.module, np.random.default_rng(69)
    indices = [make_index(rng, blocks=12, format=format) for _ in range(2)]
    score = module.plan_block_scores(backend.to_device(indices[0]), 2, schedule=schedule)
    select = module.plan_select(2, 12)
    for index, positions in zip(indices, ([33, 34], [40, 41]), strict=True):
        index.set_pooled(slice(None), rng.standard_normal(index.pooled.shape).astype(np.float32))
        index.set_dead(rng.standard_normal(index.dead.shape).astype(np.float32))
        q, steps = rng.standard_normal((2, 4, 128)).astype(np.float32), step_records(positions)
        wanted = exact.block_scores(q, index, steps)
        there = backend.to_device(steps)
        got = module.block_scores(backend.to_device(q), backend.to_device(index), there, plan=score)
        blocks = positions[0] // 4
        np.testing.assert_array_equal(bits(backend.to_host(got)[:, :blocks]), bits(wanted[:, :blocks]))
        ids = module.select(got, there, plan=select)
        np.testing.assert_array_equal(backend.to_host(ids), exact.select(wanted, steps))


def test_a_plan_of_another_index_format_is_refused(backend):
    """Both of scores and of appends, in both directions: nothing is launched."""
    module, rng = backend.module, np.random.default_rng(72)
    there = {format: backend.to_device(make_index(rng, format=format)) for format in INDEX_FORMATS}
    q, raw, steps = (
        backend.to_device(x)
        for x in (np.zeros((1, 4, 128), np.float32), np.zeros((1, 128), np.float32), step_records([9]))
    )
    for planned, given in (("fp32", "int16"), ("int16", "fp32")):
        plans = module.plan_block_scores(there[planned], 1), module.plan_append_index(there[planned], 1)
        launched = launches()
        with pytest.raises(ValueError, match=r"arrays: must be|index\.pooled"):
            module.block_scores(q, there[given], steps, plan=plans[0])
        with pytest.raises(ValueError, match=r"arrays: must be|index\.dead"):
            module.append_index(raw, steps, there[given], plan=plans[1])
        assert launches() == launched


@pytest.mark.parametrize("format", INDEX_FORMATS)
def test_plans_of_the_appends(backend, format):
    """Of two calls over two slots and indices, at other positions."""
    module, rng = backend.module, np.random.default_rng(70)
    kvs, indices = [poisoned("k8v4", 12) for _ in range(2)], [make_index(rng, format=format) for _ in range(2)]
    plans = (
        module.plan_append_kv(backend.to_device(kvs[0]), 3),
        module.plan_append_index(backend.to_device(indices[0]), 3),
    )
    for kv, index, positions in zip(kvs, indices, ([0, 1, 2], [4, 5, 6]), strict=True):
        k, v, steps = vectors(rng, 3), vectors(rng, 3), step_records(positions)
        raw = rng.standard_normal((3, REAL.idx_dim)).astype(np.float32)
        moved, moved_index = backend.to_device(kv), backend.to_device(index)
        k_there, v_there, raw_there, steps_there = (backend.to_device(x) for x in (k, v, raw, steps))
        assert module.append_kv(k_there, v_there, moved, steps_there, plan=plans[0]) is True
        assert module.append_index(raw_there, steps_there, moved_index, plan=plans[1]) is True
        exact.append_kv(k, v, kv, steps)
        exact.append_index(raw, steps, index)
        same_kv(backend, kv, moved)
        same_index(backend, index, moved_index)


def test_the_slot_table_follows_a_replaced_pool(backend):
    """``append_kv`` writes to the arrays that a slot has now, through the table at the address that it had."""
    rng = np.random.default_rng(71)
    kv, other = poisoned("int8", 12), poisoned("int8", 12)
    there, wanted = backend.to_device(kv), backend.to_device(other)
    k, v, steps = vectors(rng, 2), vectors(rng, 2), step_records([3, 4])
    arrays = [backend.to_device(x) for x in (k, v)]
    assert backend.module.append_kv(*arrays, there, backend.to_device(steps)) is True
    device = backend.load("device.containers")
    table = device.slot_table([there])
    there.pool = wanted.pool
    assert backend.module.append_kv(*arrays, there, backend.to_device(steps)) is True
    assert device.slot_table([there]) is table
    exact.append_kv(k, v, other, steps)
    same_kv(backend, other, there)
