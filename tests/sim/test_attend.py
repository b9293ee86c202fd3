"""The exact ``attend`` in the simulator: every case gives the bytes of ``reference.exact``."""

import numpy as np
import pytest

from cases.attend_cases import *  # noqa: F403
from cases.attend_cases import attend, check, exact_problem, refused
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import Properties
from support.plan_runs import clusters_of, recorded_runs

module, device, plans = (simulator.load(name) for name in ("attend", "device", "common.plans"))
planning = simulator.load("attend_exact.plan")


def older(capability, shared=64 * 1024):
    """A device of another compute capability with ``shared`` bytes of shared memory a block."""
    return Properties("older", capability, 4, shared, shared, 4 << 20)


def test_without_tensor_cores(backend):
    """sm_75: products by dp4a, four warps, 64 KiB of shared memory."""
    with simulator.configured(properties=older((7, 5))):
        check(backend, *exact_problem(20, [18], cells=24))


def test_split_needs_tensor_cores(backend):
    with simulator.configured(properties=older((7, 5))):
        refused(backend, "device", exact_problem(21, [70]), schedule="split")


def test_blocks_in_the_opposite_order(backend):
    """Blocks that start last to first, two at a time, still find each other."""
    inputs = exact_problem(22, [40])
    with simulator.configured(order="backwards"):
        check(backend, *inputs, schedule="split", splits=2)


def test_plan():
    """Split: one wave of at most two blocks per multiprocessor, as the device holds them, 20 a row at most, 64 cells at
    least; a row's cells always find room."""
    kv = device.to_device(exact_problem(23, [1])[1])
    with simulator.configured(properties=Properties("h200", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20)):
        plans = [module.row_blocks([kv], rows, 2051, "split") for rows in (1, 16, 100, 400)]
        assert plans == [20, 8, 1, 1]
        for held, wanted in ((2, [20, 16, 2, 1]), (3, [20, 16, 2, 1])):
            with simulator.configured(resident_blocks=held):
                assert [module.row_blocks([kv], rows, 2051, "split") for rows in (1, 16, 100, 400)] == wanted
        assert module.row_blocks([kv], 1, 130, "split") == 3
        assert module.row_blocks([kv], 1, 2051, "batch") == planning.CLUSTER
        assert module.row_blocks([kv], 1, 2500, "batch") == planning.MOST
        assert module.row_blocks([kv], 500, 2051, "prompt") == 1
        assert module.row_blocks([kv], 500, 32768, "batch") * planning.room_of(kv, 3) >= 32768


@pytest.mark.parametrize("width", [0, 20, 65, 128])
def test_a_row_in_a_cluster(backend, monkeypatch, width):
    """Four blocks, of which one, one, three and four have cells: maxima, mass and sums by way of shared memory."""
    runs = recorded_runs(monkeypatch, plans)
    check(backend, *exact_problem(26, [width], cells=160, cap=128))
    assert clusters_of(runs) == [4]


def test_a_cluster_backwards(backend):
    with simulator.configured(order="backwards"):
        check(backend, *exact_problem(27, [70]))


@pytest.mark.parametrize("limits", [{"clusters": ()}, {"properties": older((8, 0), 227 * 1024)}], ids=["room", "sm_80"])
def test_where_there_are_no_clusters(backend, monkeypatch, limits):
    """The same bytes by way of the scratch."""
    runs = recorded_runs(monkeypatch, plans)
    with simulator.configured(**limits):
        check(backend, *exact_problem(28, [70]))
    assert clusters_of(runs) == [1]


def test_what_goes_in_no_cluster(backend, monkeypatch):
    """Three rows, another format, and the split schedule."""
    runs = recorded_runs(monkeypatch, plans)
    check(backend, *exact_problem(29, [33, 5, 9]))
    check(backend, *exact_problem(29, [33], "k8v4"))
    check(backend, *exact_problem(29, [33]), schedule="split", splits=2)
    assert clusters_of(runs) == [1, 1, 1]


def test_no_more_cells_than_blocks_can_hold(backend):
    """Ids with room for more cells than four blocks of 64 KiB hold: refused, nothing launched."""
    with simulator.configured(properties=older((8, 0))):
        refused(backend, "geometry", exact_problem(24, [4], cap=4096))


def test_float_arithmetic_is_passed_on(backend):
    """Of another kernel, with other bits, close to these."""
    q, kv, ids, steps = exact_problem(25, [20], cells=24)
    wanted = attend(backend, q, kv, ids, steps)
    got = module.attend(q, device.to_device(kv), ids, steps, arithmetic="float")
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
