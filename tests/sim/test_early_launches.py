"""Launches that may start before the one ahead of them is over: which do, and what their kernels must wait for."""

from dataclasses import replace

import numpy as np
import pytest

from cases.append_cases import make_index
from qsa.kernels.cuda import simulator
from qsa.reference.index import INDEX_FORMATS
from qsa.reference.kv import PagedKV
from support.simulator_runs import fails, run, zeros

backend, plans = simulator.load("backend"), simulator.load("common.plans")
compiler, ptx = simulator.load("toolchain.compiler"), simulator.load("toolchain.ptx")
cuda, start_next, wait_for_earlier = compiler.cuda, ptx.start_next, ptx.wait_for_earlier
ld_global_i32, global_base = ptx.ld_global_i32, ptx.global_base


def test_a_kernel_that_waits_first():
    def kernel(x):
        start_next()
        wait_for_earlier()
        x[cuda.threadIdx.x] = 1

    x = zeros()
    run(kernel, x)
    assert (x == 1).all()


def test_a_kernel_that_does_not_wait_is_free():
    def kernel(x):
        start_next()
        x[cuda.threadIdx.x] = 1

    run(kernel, zeros())


def test_what_comes_before_the_wait_is_a_fault():
    def reads(x):
        value = x[0]
        wait_for_earlier()
        x[cuda.threadIdx.x] = value

    def reads_by_address(x):
        value = ld_global_i32(global_base(x))
        wait_for_earlier()
        x[cuda.threadIdx.x] = value

    def writes(x):
        if cuda.threadIdx.x == 5:
            x[5] = 1
        wait_for_earlier()

    def ends(x):
        if cuda.threadIdx.x == 7:
            return
        wait_for_earlier()

    for kernel in (reads, reads_by_address, writes):
        fails("dependency", kernel, zeros(), says="before the kernel waited for the launches before it")
    with pytest.raises(simulator.SimulationError, match="lane 7, at its end: ends without waiting") as caught:
        run(ends, zeros())
    assert caught.value.kind == "dependency"


def every_plan():
    """Plans of the five operations as a step calls them: operation -> its plans."""
    kv, blocks = backend.to_device(PagedKV.new("int8", 64)), 8192
    found = {"attend": [backend.plan_attend(kv, rows, 2051, arithmetic="exact") for rows in (1, 4, 64)]}
    found["append_kv"] = [backend.plan_append_kv(kv, rows) for rows in (1, 9)]
    for format in INDEX_FORMATS:
        index = backend.to_device(make_index(np.random.default_rng(1), blocks=blocks, format=format))
        found.setdefault("append_index", []).extend(backend.plan_append_index(index, rows) for rows in (1, 9))
        found.setdefault("block_scores", []).extend(backend.plan_block_scores(index, rows) for rows in (1, 4, 16))
    found["select"] = [backend.plan_select(rows, blocks) for rows in (1, 4)]
    return found


def starts(found):
    """(operation, whether a launch of it starts early), each once."""
    return {(name, launch.early) for name, made in found.items() for plan in made for launch in plan.launches}


def test_the_launches_of_a_step_start_early_where_it_was_faster():
    here = simulator.settings.properties
    with simulator.configured(properties=replace(here, multiprocessors=132)):
        # Scores and appends of fp32 keys were not measured so; the kernel of one and two rows cannot wait.
        mixed = {(name, early) for name in ("append_index", "block_scores") for early in (False, True)}
        few = {("attend", False)}
        names = ("append_kv", "append_index", "block_scores", "select", "attend")
        assert starts(every_plan()) == {(name, True) for name in names} | mixed | few
        with plans.overlapping(True):
            assert starts(every_plan()) == {(name, True) for name in names} | few
        with plans.overlapping(False):
            assert starts(every_plan()) == {(name, False) for name in names}


@pytest.mark.parametrize(
    "capability, asked, early", [((8, 0), True, False), ((10, 0), None, False), ((10, 0), True, True)]
)
def test_on_other_devices(capability, asked, early):
    """Not before sm_90, and where it was not measured only when it is asked for."""
    here = simulator.settings.properties
    with simulator.configured(properties=replace(here, compute_capability=capability)), plans.overlapping(asked):
        assert backend.plan_append_kv(backend.to_device(PagedKV.new("int8", 64)), 1).launches[0].early == early


def test_a_kernel_that_cannot_wait_is_launched_behind_the_others():
    """The wide selection, whose kernel knows nothing of it."""
    with plans.overlapping(True):
        assert not backend.plan_select(1, 4096, schedule="wide").launches[0].early


def test_the_setting_ends_with_its_block():
    with pytest.raises(RuntimeError, match="inside"), plans.overlapping(False):
        raise RuntimeError("inside")
    assert backend.plan_select(1, 4096).launches[0].early
    assert np.all([launch.early for launch in backend.plan_select(4, 4096).launches])
