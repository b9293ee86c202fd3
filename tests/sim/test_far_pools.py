"""Known fault B9, 32-bit offsets into a pool, in the simulator: rows of a pool behind 2^31 and 2^32 bytes of it.

Only the pages in use exist. A pool's address, as the kernels get it, lies so far before them that their offsets have
more than 32 bits, those of the scales, 8 bytes a row, included: an offset that lost its upper bits points to no array.
"""

from dataclasses import replace

import numpy as np
import pytest

from cases.append_cases import SMALL, poisoned, vectors
from cases.attend_cases import FORMATS, exact_problem
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.simulator import SimulationError
from qsa.kernels.cuda.simulator import memory as simulate_memory
from qsa.reference import exact
from qsa.reference.exact import append_kv
from qsa.reference.geometry import step_records
from support.arrays import bits
from support.float_attention import float_problem

attend, attend_call, attend_float = (simulator.load(name) for name in ("attend", "common.pools", "attend_float.launch"))
appending, gather, device = (simulator.load(name) for name in ("append_kv", "attend_exact.gather", "device.containers"))

FIRST_ROW = (1 << 30) + (1 << 29)
"""Row of the pool (a page's KV head's cell) with which the pages in use begin: byte 2^33 of the scales and more. Row
numbers themselves fit int32."""


@pytest.fixture
def far(monkeypatch):
    """Function that moves a DeviceKV's pages to :data:`FIRST_ROW`; what kernels read and write stays where it was."""
    offsets, moved = {}, []
    within, address = simulate_memory._offset, simulate_memory.address
    monkeypatch.setattr(simulate_memory, "_offset", lambda array: within(array) + offsets.get(id(array), 0))

    def base(array):
        return address(array) - offsets.get(id(array), 0)

    monkeypatch.setattr(device, "address", base)
    monkeypatch.setattr(attend_call, "places", lambda arrays: [base(array) for array in arrays])

    def move(kv):
        pages, rest = divmod(FIRST_ROW, kv.pool.geometry.n_head_kv * kv.pool.page_size)
        assert rest == 0
        for side in (kv.pool.k, kv.pool.v):
            for array in (side.codes, side.scale):
                moved.append(array)
                if array.size:
                    offsets[id(array)] = FIRST_ROW * array[0, 0, 0].nbytes
                    assert offsets[id(array)] > 1 << 32
        kv.table[kv.table >= 0] += pages
        return kv

    return move


def same_pools(kv, seen):
    """Every byte of both sides."""
    for side, other in ((kv.pool.k, seen.pool.k), (kv.pool.v, seen.pool.v)):
        np.testing.assert_array_equal(side.codes.view(np.uint8), other.codes.view(np.uint8))
        np.testing.assert_array_equal(side.scale.view(np.uint16), other.scale.view(np.uint16))


@pytest.mark.parametrize("format", ["int8", "q4_0", "fp16"])
def test_append_kv(far, format):
    geometry = replace(SMALL, head_dim=256)
    rng = np.random.default_rng(1)
    kv = poisoned(format, 8, geometry)
    moved = far(device.to_device(kv))
    k, v = vectors(rng, 3, geometry), vectors(rng, 3, geometry)
    steps = step_records([0, 5, 7], geometry=geometry)
    append_kv(k, v, kv, steps)
    assert appending.append_kv(k, v, moved, steps)
    same_pools(kv, moved)


@pytest.mark.parametrize("fmt", FORMATS)
def test_exact_attend(far, fmt):
    q, kv, ids, steps = exact_problem(2, [32], fmt, cells=32)
    got = attend.attend(q, far(device.to_device(kv)), ids, steps, arithmetic="exact")
    np.testing.assert_array_equal(got.view(np.uint32), bits(exact.attend(q, kv, ids, steps)))


@pytest.mark.parametrize("fmt", ["int8", "q4_0", "fp16"])
def test_float_attend(far, fmt):
    """A whole chunk: in the place of a cell that is not selected the kernel reads the pool's first row."""
    q, kv, ids, steps = float_problem(3, [64], fmt, cells=64, geometry=replace(SMALL, n_head=2, head_dim=256))
    wanted = attend_float.attend_float(q, device.to_device(kv), ids, steps)
    got = attend_float.attend_float(q, far(device.to_device(kv)), ids, steps)
    np.testing.assert_array_equal(got.view(np.uint32), bits(wanted))
    assert np.isfinite(got).all()


def test_an_offset_of_32_bits_is_found(far, monkeypatch):
    """Of the scales of K and V, in the exact attend."""
    right, int32 = gather.load_scales, gather.int32

    def narrow(base, row, groups, raw, at):
        right(base + int32(row * 2 * groups) - row * 2 * groups, row, groups, raw, at)

    monkeypatch.setattr(gather, "load_scales", narrow)
    q, kv, ids, steps = exact_problem(4, [32], cells=32)
    near = attend.attend(q, device.to_device(kv), ids, steps, arithmetic="exact")
    np.testing.assert_array_equal(near.view(np.uint32), bits(exact.attend(q, kv, ids, steps)))
    with pytest.raises(SimulationError, match="bounds"):
        attend.attend(q, far(device.to_device(kv)), ids, steps, arithmetic="exact")
