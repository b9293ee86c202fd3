"""``append_kv`` and ``append_index`` on a device: the simulator's tests, graphs, guards around the pools."""

import importlib
import warnings

import numpy as np
import pytest

from cases.append_cases import (  # noqa: F401
    SMALL,
    Backend,
    make_index,
    poisoned,
    same_index,
    same_kv,
    test_a_row_of_no_slot_writes_nothing,
    test_append_index_after_a_rejected_draft_and_with_unused_rows,
    test_append_index_in_windows_and_row_by_row,
    test_append_index_leaves_blocks_beyond_the_buffer_and_refuses_other_geometries,
    test_append_kv_gives_the_reference_bytes,
    test_append_kv_leaves_rows_beyond_the_capacity_and_refuses_other_geometries,
    test_page_sizes_and_one_row_at_a_time,
    test_several_slots_of_mixed_formats_in_one_call,
)
from qsa.reference.exact import append_index, append_kv
from qsa.reference.geometry import step_records
from support.guarded import replay

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("cupy", reason="CuPy is missing (extra cuda12 or cuda13)")
    from qsa.kernels.cuda.toolchain import compiler, host

    compiler.current_device()
    # By their full names: as attributes of the package, append_kv and append_index are the operations.
    modules = [importlib.import_module(f"qsa.kernels.cuda.{name}") for name in ("append_kv", "append_index", "device")]
    names = {name: value for module in modules for name, value in vars(module).items()}
    return Backend({**names, "launches": host.launches})


def test_a_graph_follows_the_step_records(backend):
    """Captured at cells 0 and 1, replayed at later ones with other keys and another page table: nothing baked in."""
    from qsa.kernels.cuda.device import Graph

    rng = np.random.default_rng(7)
    kv, index = poisoned("k8v4", 16, SMALL, table=np.array([0, 1, 2, 3]), host=True), make_index(rng, SMALL)
    k = rng.standard_normal((2, 2, 64)).astype(np.float32)
    raw = rng.standard_normal((2, 32)).astype(np.float32)
    on_device = backend.to_device([k, k[::-1].copy(), raw, step_records([0, 1], geometry=SMALL)])
    kv_there, index_there = backend.to_device(kv), backend.to_device(index)

    def record():
        from qsa.kernels.cuda.append_index import append_index
        from qsa.kernels.cuda.append_kv import append_kv

        keys, values, raw, steps = on_device
        return append_kv(keys, values, kv_there, steps) and append_index(raw, steps, index_there)

    graph = Graph(record)
    append_kv(k, k[::-1], kv, step_records([0, 1], geometry=SMALL))
    append_index(raw, step_records([0, 1], geometry=SMALL), index)
    for positions, table in (([2, 3], [0, 1, 2, 3]), ([4, 5], [0, -1, 2, 3]), ([8, -1], [0, 1, 3, 2])):
        k = rng.standard_normal((2, 2, 64)).astype(np.float32)
        raw = rng.standard_normal((2, 32)).astype(np.float32)
        steps = step_records(positions, geometry=SMALL)
        kv.table[:] = table
        for buffer, now in zip(on_device, (k, k[::-1].copy(), raw, steps), strict=True):
            buffer.set(now)
        kv_there.table.set(kv.table)
        replay(graph)
        append_kv(k, k[::-1], kv, steps)
        append_index(raw, steps, index)
        same_kv(backend, kv, kv_there)
        same_index(backend, index, index_there)


@pytest.mark.parametrize("format", ["int8", "k8v4", "fp16"])
def test_host_copies_bring_no_warning_and_host_arrays_are_refused(backend, format):
    """A NumPy array would be copied to the device and back by every launch, and numba would say so each time."""
    from numba.cuda.core.errors import NumbaPerformanceWarning

    rng = np.random.default_rng(9)
    kvs = [poisoned(format, 8, SMALL, host=True) for _ in range(2)]
    there, slots = backend.to_device(kvs), np.array([1, 0, 1], np.int32)
    x, steps = rng.standard_normal((3, 2, 64)).astype(np.float32), step_records([0, 7, 5], geometry=SMALL)
    append_kv(x, x, kvs, steps, slots)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumbaPerformanceWarning)
        assert backend.append_kv(x, x, there, steps, slots) is True
    for kv, seen in zip(kvs, there, strict=True):
        same_kv(backend, kv, seen)
    given = backend.to_device([x, steps, slots])
    operation = importlib.import_module("qsa.kernels.cuda.append_kv").append_kv
    for arguments in (
        (x, given[0], there, given[1], given[2]),
        (given[0], given[0], there, steps, given[2]),
        (given[0], given[0], there, given[1], slots),
    ):
        with pytest.raises(ValueError, match="ndarray: must be an array on the device"):
            operation(*arguments)


@pytest.mark.parametrize("format", ["int8", "q4_0", "fp16"])
def test_nothing_is_written_beyond_the_pools(backend, format):
    """Pools between guards, filled to the last cell."""
    rng = np.random.default_rng(8)
    kv = poisoned(format, 8, SMALL)
    there, guards = backend.between_guards(kv)
    x = rng.standard_normal((8, 2, 64)).astype(np.float32)
    steps = step_records(range(8), geometry=SMALL)
    append_kv(x, x, kv, steps)
    backend.append_kv(x, x, there, steps)
    same_kv(backend, kv, there)
    for guard in guards:
        guard.check(format)
