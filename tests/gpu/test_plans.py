"""Plans on a device: the simulator's cases, streams, a captured plan, and what a call costs the host."""

import threading
import time

import numpy as np
import pytest

from cases.attend_cases import exact_problem
from cases.plan_cases import *  # noqa: F403
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference import exact
from support.arrays import bits

pytestmark = pytest.mark.gpu


def test_a_plan_belongs_to_its_stream(backend):
    import cupy

    q, kv, ids, steps = exact_problem(90, [20], cells=24)
    there, arrays = backend.to_device(kv), [backend.to_device(x) for x in (q, ids, steps)]
    stream = cupy.cuda.Stream(non_blocking=True)
    plan = backend.module.plan_attend(there, 1, 20, arithmetic="exact", stream=stream)
    launched = launches()
    with pytest.raises(ValueError, match="made for"):
        backend.module.attend(arrays[0], there, *arrays[1:], plan=plan)
    assert launches() == launched
    cupy.cuda.Device().synchronize()
    with stream:
        got = backend.module.attend(arrays[0], there, *arrays[1:], plan=plan)
    stream.synchronize()
    np.testing.assert_array_equal(bits(got.get()), bits(exact.attend(q, kv, ids, steps)))


def test_a_thread_that_never_used_the_device_can_launch(backend):
    """The plan was compiled and loaded in another thread."""
    q, kv, ids, steps = exact_problem(91, [20], cells=24)
    there, arrays = backend.to_device(kv), [backend.to_device(x) for x in (q, ids, steps)]
    plan, out = backend.module.plan_attend(there, 1, 20, arithmetic="exact"), backend.xp.empty_like(arrays[0])
    answers = []

    def run():
        answers.append(backend.module.attend(arrays[0], there, *arrays[1:], None, out, plan=plan))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [out] or answers[0] is out
    np.testing.assert_array_equal(bits(out.get()), bits(exact.attend(q, kv, ids, steps)))


def test_an_engine_can_launch_the_record_itself(backend):
    """With what a launch shows, through the driver and past our Python: the arguments of the last call."""
    from cuda.bindings import driver

    q, kv, ids, steps = exact_problem(92, [20, 9, 4], cells=24)
    there, arrays = backend.to_device(kv), [backend.to_device(x) for x in (q, ids, steps)]
    plan, out = backend.module.plan_attend(there, 3, 20, arithmetic="exact"), backend.xp.empty_like(arrays[0])
    backend.module.attend(arrays[0], there, *arrays[1:], None, out, plan=plan)
    out.fill(0)
    (launch,) = plan.launches
    assert launch.cluster == 1
    handle = driver.CUfunction(launch.function.handle)
    sizes = (*launch.grid, *launch.block, launch.shared)
    (status,) = driver.cuLaunchKernel(handle, *sizes, plan.key[1], launch.parameters, 0)
    assert int(status) == 0
    np.testing.assert_array_equal(bits(out.get()), bits(exact.attend(q, kv, ids, steps)))


def test_a_call_costs_the_host_a_part_of_what_preparing_it_costs(backend):
    """Side by side: a call whose plan is found, and one whose plan is made anew."""
    q, kv, ids, steps = exact_problem(93, [20], cells=24)
    there, arrays = backend.to_device(kv), [backend.to_device(x) for x in (q, ids, steps)]
    out, module = backend.xp.empty_like(arrays[0]), backend.load("attend")

    def seconds(before):
        times = []
        for _ in range(50):
            before()
            begin = time.perf_counter()
            module.attend(arrays[0], there, *arrays[1:], None, out, arithmetic="exact")
            times.append(time.perf_counter() - begin)
            backend.xp.cuda.Device().synchronize()
        return np.median(times)

    assert seconds(lambda: None) < seconds(module._plans.clear) / 3
