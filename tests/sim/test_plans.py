"""Plans in the simulator: their launches as recorded, the cache of plans, other streams and devices."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cases.attend_cases import exact_problem
from cases.plan_cases import *  # noqa: F403
from cases.plan_cases import planned_attend
from qsa.kernels.cuda import simulator
from qsa.kernels.switches import override

attend, plans, device = (simulator.load(name) for name in ("attend", "common.plans", "device"))
planning = simulator.load("attend_exact.plan")


@pytest.fixture
def cache(monkeypatch):
    """An empty cache of plans of ``attend``."""
    made = plans.PlanCache()
    monkeypatch.setattr(attend, "_plans", made)
    return made


def test_a_plan_records_its_launch():
    """Kernel, grid, block, cluster and shared memory of one row in a cluster, and what is packed."""
    kv = device.to_device(exact_problem(80, [1], cells=160)[1])
    plan = attend.plan_attend(kv, 1, 128, arithmetic="exact")
    (launch,) = plan.launches
    assert (launch.name, launch.grid, launch.block, launch.cluster) == ("attend_exact", 4, 384, 4)
    assert launch.shared == planning.shared_bytes(32, 4, 4, 3, 4)
    assert [argument for argument in launch.args if isinstance(argument, int)] == [0, 4, 32]
    assert plan.key == (0, 0, 0) and [x.name for x in plan.operands] == ["q", "ids", "steps", "out"]


def test_a_second_call_prepares_nothing(backend, cache, monkeypatch):
    """Shapes, schedule, switch and device decide a plan; arrays do not."""
    q, kv, ids, steps = exact_problem(81, [20], cells=24)
    planned_attend(backend, None, q, device.to_device(kv), ids, steps)
    assert len(cache) == 1
    with monkeypatch.context() as patch:
        patch.setattr(planning, "prepare", None)
        planned_attend(backend, None, q, device.to_device(kv), ids, steps)
    planned_attend(backend, None, q, device.to_device(kv), ids[:, :7].copy(), steps)
    assert len(cache) == 2
    with override(split_attn=True):
        planned_attend(backend, None, q, device.to_device(kv), ids, steps)
    assert len(cache) == 3
    with simulator.configured(properties=replace(simulator.settings.properties, multiprocessors=2)):
        planned_attend(backend, None, q, device.to_device(kv), ids, steps)
    assert len(cache) == 4


def test_the_cache_has_an_end(backend, cache, monkeypatch):
    """The oldest plan goes; a plan of very many launches is not kept."""
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    monkeypatch.setattr(plans.Plan, "run", lambda *arguments: None)
    q, kv, ids, steps = exact_problem(82, [20], cells=24)
    there = device.to_device(kv)
    for cap in (20, 19, 18):
        attend.attend(q, there, ids[:, :cap].copy(), steps, arithmetic="exact")
    assert [key[2] for key in cache._plans] == [(1, 19), (1, 18)]
    many = [np.repeat(x, plans.MOST_LAUNCHES + 1, axis=0) for x in (q, ids, steps)]
    attend.attend(many[0], there, *many[1:], schedule="step", arithmetic="exact")
    assert len(cache) == 2


def test_a_plan_of_another_stream_or_device_is_refused(backend, monkeypatch):
    q, kv, ids, steps = exact_problem(83, [20], cells=24)
    there = device.to_device(kv)
    plan = attend.plan_attend(there, 1, 20, arithmetic="exact")
    launched = simulator.launches()
    other = replace(simulator.settings.properties, multiprocessors=3)
    with (
        simulator.configured(properties=other),
        pytest.raises(ValueError, match=r"made for .* \(0, 0, 0\), called with"),
    ):
        planned_attend(backend, plan, q, there, ids, steps)
    monkeypatch.setattr(plans, "stream_key", lambda stream=None: (0, stream.ptr if stream else 5, 0))
    with pytest.raises(ValueError, match=r"called with \(0, 5, 0\)"):
        attend.attend(q, there, ids, steps, plan=plan)
    with pytest.raises(ValueError, match=r"called with \(0, 77, 0\)"):
        attend.attend(q, there, ids, steps, plan=plan, stream=SimpleNamespace(ptr=77))
    assert simulator.launches() == launched
