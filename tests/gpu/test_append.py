"""``append_kv`` and ``append_index`` on a device: the simulator's tests, graphs, guards around the pools."""

import warnings

import numpy as np
import pytest

from cases.append_cases import *  # noqa: F403
from cases.append_cases import SMALL, make_index, poisoned, same_index, same_kv
from qsa.reference.exact import append_index, append_kv
from qsa.reference.geometry import step_records

pytestmark = pytest.mark.gpu


def test_a_graph_follows_the_step_records(backend):
    """Captured at cells 0 and 1, replayed at later ones with other keys and another page table: nothing baked in."""
    rng = np.random.default_rng(7)
    kv, index = poisoned("k8v4", 16, SMALL, table=np.array([0, 1, 2, 3]), host=True), make_index(rng, SMALL)
    k = rng.standard_normal((2, 2, 64)).astype(np.float32)
    raw = rng.standard_normal((2, 32)).astype(np.float32)
    inputs = backend.to_device([k, k[::-1].copy(), raw, step_records([0, 1], geometry=SMALL)])
    kv_on_device, index_on_device = backend.to_device(kv), backend.to_device(index)

    def append():
        keys, values, raw, steps = inputs
        backend.call("append_kv", keys, values, kv_on_device, steps)
        backend.call("append_index", raw, steps, index_on_device)

    replay = backend.captured(append)
    append_kv(k, k[::-1], kv, step_records([0, 1], geometry=SMALL))
    append_index(raw, step_records([0, 1], geometry=SMALL), index)
    for positions, table in (([2, 3], [0, 1, 2, 3]), ([4, 5], [0, -1, 2, 3]), ([8, -1], [0, 1, 3, 2])):
        k = rng.standard_normal((2, 2, 64)).astype(np.float32)
        raw = rng.standard_normal((2, 32)).astype(np.float32)
        steps = step_records(positions, geometry=SMALL)
        kv.table[:] = table
        for buffer, now in zip(inputs, (k, k[::-1].copy(), raw, steps), strict=True):
            buffer.set(now)
        kv_on_device.table.set(kv.table)
        replay()
        append_kv(k, k[::-1], kv, steps)
        append_index(raw, steps, index)
        same_kv(backend, kv, kv_on_device)
        same_index(backend, index, index_on_device)


@pytest.mark.parametrize("format", ["int8", "k8v4", "fp16"])
def test_host_copies_bring_no_warning_and_host_arrays_are_refused(backend, format):
    """A NumPy array would be copied to the device and back by every launch, and numba would say so each time."""
    from numba.cuda.core.errors import NumbaPerformanceWarning

    rng = np.random.default_rng(9)
    kvs = [poisoned(format, 8, SMALL, host=True) for _ in range(2)]
    on_device, slots = backend.to_device(kvs), np.array([1, 0, 1], np.int32)
    x, steps = rng.standard_normal((3, 2, 64)).astype(np.float32), step_records([0, 7, 5], geometry=SMALL)
    append_kv(x, x, kvs, steps, slots)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumbaPerformanceWarning)
        assert backend.launch("append_kv", x, x, on_device, steps, slots) is True
    for kv, seen in zip(kvs, on_device, strict=True):
        same_kv(backend, kv, seen)
    given = backend.to_device([x, steps, slots])
    for arguments in (
        (x, given[0], on_device, given[1], given[2]),
        (given[0], given[0], on_device, steps, given[2]),
        (given[0], given[0], on_device, given[1], slots),
    ):
        with pytest.raises(ValueError, match="ndarray: must be an array on the device"):
            backend.module.append_kv(*arguments)


@pytest.mark.parametrize("format", ["int8", "q4_0", "fp16"])
def test_nothing_is_written_beyond_the_pools(backend, format):
    """Pools between guards, filled to the last cell."""
    rng = np.random.default_rng(8)
    kv = poisoned(format, 8, SMALL)
    on_device, guards = backend.between_guards(kv)
    x = rng.standard_normal((8, 2, 64)).astype(np.float32)
    steps = step_records(range(8), geometry=SMALL)
    append_kv(x, x, kv, steps)
    backend.launch("append_kv", x, x, on_device, steps)
    same_kv(backend, kv, on_device)
    for guard in guards:
        guard.check(format)
