"""The simulator's instructions: it puts this module in the place of ``toolchain/ptx.py``.

Every function here that is not private is an instruction, with the name and the number of arguments that it has there.
"""

import struct
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from ..toolchain.constants import FULL_WARP
from . import cluster, numbers, state, sync, warp
from .arithmetic import (  # noqa: F401
    dp4a_s8,
    dp4a_u8s8,
    ex2_approx,
    float_as_int,
    float_to_half,
    floats_to_halves,
    floor_s32,
    half_to_float,
    int_as_float,
    join_four,
    prmt,
    rint_s32,
    rint_u32,
    sub_halves,
    trunc_s32,
)
from .arrays import GlobalArray, SharedArray
from .cluster import (  # noqa: F401
    cluster_arrive_relaxed,
    cluster_wait,
    fence_mbarrier_init,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_arrive_expect_at,
    mbarrier_init,
    mbarrier_try_wait,
)
from .matrix import ldmatrix_x2, ldmatrix_x4, ldmatrix_x4_trans, mma_f16, mma_s8, mma_u8  # noqa: F401
from .state import State

_f32 = np.float32


def shared_base(array: Any) -> Any:
    """Address of a shared array's first byte."""
    if not isinstance(array, SharedArray):
        state.fault("python", "shared_base of something that is no shared array")
    return array.address


shared_window = shared_base


def global_base(array: Any) -> Any:
    """Address of a global array's first byte."""
    if not isinstance(array, GlobalArray):
        state.fault("python", "global_base of something that is no global array")
    return array.address


_LETTERS = {"u8": "B", "s8": "b", "u16": "H", "i32": "i", "i64": "q", "f32": "f"}


def _forms(kind):
    """(struct form, bytes, whether floats) of a kind such as ``i32`` or ``v4_f32``."""
    count, _, element = kind.rpartition("_")
    letters = _LETTERS[element] * (int(count[1:]) if count else 1)
    form = struct.Struct("<" + letters)
    return form, form.size, element == "f32"


def _declared(function, name, form, *last):
    """``function`` as the instruction ``name`` (address, a value for each of ``form``, ``last``)."""
    values = [f"value{i}" for i in range(len(form.unpack(bytes(form.size))))]
    names = ["address", *values, *last]
    function.__signature__ = Signature([Parameter(each, Parameter.POSITIONAL_ONLY) for each in names])
    function.__name__ = name
    return function


def _values(raw, floats):
    if len(raw) == 1:
        return _f32(raw[0]) if floats else raw[0]
    return tuple(map(_f32, raw)) if floats else raw


def _ld_shared(kind: str) -> Callable[..., Any]:
    form, size, floats = _forms(kind)

    def load(address):
        memory = State.lane.block.memory
        memory.reading(address, size)
        return _values(form.unpack_from(memory.data, address), floats)

    return load


def _packed(form, values):
    """Values as bytes: an integer register may hold the bits of either sign."""
    try:
        return form.pack(*values)
    except struct.error:
        wanted = len(form.unpack(bytes(form.size)))
        if len(values) != wanted:
            state.fault("python", f"store of {len(values)} values: the instruction takes {wanted}")
        size = form.size // wanted
        span = 1 << 8 * size
        for value in values:
            if not -span // 2 <= value < span:
                state.fault("overflow", f"store of {value} into {size} bytes")
        return b"".join((int(value) % span).to_bytes(size, "little") for value in values)


def _st_shared(kind: str) -> Callable[..., Any]:
    form, size, _ = _forms(kind)
    part = 8 * size // len(form.unpack(bytes(size)))

    def store(address, *values):
        memory = State.lane.block.memory
        memory.writing(address, size)
        # A narrow store takes the low bits of its register.
        values = [value & (1 << part) - 1 for value in values] if part < 32 else values
        memory.data[address : address + size] = _packed(form, values)
        State.progress += 1

    return _declared(store, f"st_shared_{kind}", form)


def _st_async(kind: str) -> Callable[..., Any]:
    form, size, _ = _forms(kind)

    def store(address, *values):
        data, offset = cluster.receive(address, size, values[-1])
        data[offset : offset + size] = _packed(form, values[:-1])

    return _declared(store, f"st_async_{kind}", form, "mbarrier")


def _find(address, size, what):
    return State.lane.block.globals.find(address, size, what)


def _ld_global(kind: str, looks: bool = False) -> Callable[..., Any]:
    form, size, floats = _forms(kind)

    def load(address):
        data, offset = _find(address, size, "read")
        value = _values(form.unpack_from(data, offset), floats)
        if looks:
            sync.poll((address, value))
        return value

    return load


def _st_global(kind: str) -> Callable[..., Any]:
    form, size, _ = _forms(kind)
    part = 8 * size // len(form.unpack(bytes(size)))

    def store(address, *values):
        data, offset = _find(address, size, "write")
        values = [value & (1 << part) - 1 for value in values] if part < 32 else values
        data[offset : offset + size] = _packed(form, values)
        State.progress += 1

    return _declared(store, f"st_global_{kind}", form)


ld_shared_u8 = _ld_shared("u8")
ld_shared_s8 = _ld_shared("s8")
ld_shared_i32 = _ld_shared("i32")
ld_shared_i64 = _ld_shared("i64")
ld_shared_f32 = _ld_shared("f32")
ld_shared_v2_i32 = _ld_shared("v2_i32")
ld_shared_v4_i32 = _ld_shared("v4_i32")
ld_shared_v2_i64 = _ld_shared("v2_i64")
ld_shared_v2_f32 = _ld_shared("v2_f32")
ld_shared_v4_f32 = _ld_shared("v4_f32")

st_shared_u8 = _st_shared("u8")
st_shared_u16 = _st_shared("u16")
st_shared_i32 = _st_shared("i32")
st_shared_i64 = _st_shared("i64")
st_shared_f32 = _st_shared("f32")
st_shared_v2_i32 = _st_shared("v2_i32")
st_shared_v4_i32 = _st_shared("v4_i32")
st_shared_v2_i64 = _st_shared("v2_i64")
st_shared_v2_f32 = _st_shared("v2_f32")
st_shared_v4_f32 = _st_shared("v4_f32")

st_async_i64 = _st_async("i64")
st_async_v2_i64 = _st_async("v2_i64")
st_async_v4_i32 = _st_async("v4_i32")

ld_global_u8 = ld_global_u8_nc = _ld_global("u8")
ld_global_u16 = ld_global_u16_nc = _ld_global("u16")
ld_global_i32 = ld_global_i32_nc = _ld_global("i32")
ld_global_i64 = ld_global_i64_nc = _ld_global("i64")
ld_global_f32 = ld_global_f32_nc = _ld_global("f32")
ld_global_v2_i32 = ld_global_v2_i32_nc = _ld_global("v2_i32")
ld_global_v4_i32 = ld_global_v4_i32_nc = _ld_global("v4_i32")
ld_global_v2_i64 = ld_global_v2_i64_nc = _ld_global("v2_i64")
ld_global_v2_f32 = ld_global_v2_f32_nc = _ld_global("v2_f32")
ld_global_v4_f32 = ld_global_v4_f32_nc = _ld_global("v4_f32")
ld_global_volatile_i32 = ld_global_acquire_i32 = _ld_global("i32", looks=True)
ld_global_relaxed_i64 = _ld_global("i64", looks=True)
ld_global_v2_relaxed_i64 = _ld_global("v2_i64", looks=True)

st_global_u8 = _st_global("u8")
st_global_u16 = _st_global("u16")
st_global_i32 = st_global_release_i32 = _st_global("i32")
st_global_i64 = st_global_relaxed_i64 = _st_global("i64")
st_global_f32 = _st_global("f32")
st_global_v2_i32 = _st_global("v2_i32")
st_global_v4_i32 = _st_global("v4_i32")
st_global_v2_i64 = st_global_v2_relaxed_i64 = _st_global("v2_i64")
st_global_v2_f32 = _st_global("v2_f32")
st_global_v4_f32 = _st_global("v4_f32")


def cp_async_16(shared: Any, address: Any) -> None:
    """Start a copy of 16 bytes; they are there after the wait."""
    cp_async_16_zfill(shared, address, 16)


def cp_async_16_zfill(shared: Any, address: Any, n: Any) -> None:
    """Start a copy of n bytes and 16 - n zeros."""
    state.requires((8, 0), "cp.async")
    lane = State.lane
    data, offset = _find(address, n, "asynchronous copy") if n else (b"", 0)
    if address & 15:
        state.fault("alignment", f"asynchronous copy from global address {address:#x}")
    lane.block.memory.writing(shared, 16, pending=True)
    lane.open.append((shared, data, offset, n))


def cp_async_commit() -> None:
    """Close a group of copies."""
    state.requires((8, 0), "cp.async")
    lane = State.lane
    lane.groups.append(lane.open)
    lane.open = []


def _wait(left):
    def wait():
        state.requires((8, 0), "cp.async")
        lane = State.lane
        cut = max(0, len(lane.groups) - left)
        for group in lane.groups[:cut]:
            for shared, data, offset, n in group:
                lane.block.memory.land(shared, bytes(data[offset : offset + n]).ljust(16, b"\0"))
        del lane.groups[:cut]

    return wait


cp_async_wait_0, cp_async_wait_1, cp_async_wait_2, cp_async_wait_3 = _wait(0), _wait(1), _wait(2), _wait(3)


def _shared_update(address, change):
    memory = State.lane.block.memory
    if memory.valid[address >> 2] & 0b1111 != 0b1111:
        memory.reading(address, 4)
    memory.writing(address, 4, atomic=True)
    (old,) = struct.unpack_from("<i", memory.data, address)
    struct.pack_into("<i", memory.data, address, numbers.int32(change(old)))
    State.progress += 1
    return old


def _global_update(address, form, change, convert):
    data, offset = _find(address, struct.calcsize(form), "atomic")
    (old,) = struct.unpack_from(form, data, offset)
    struct.pack_into(form, data, offset, convert(change(old)))
    State.progress += 1
    sync.poll()
    return old


def red_shared_max_i32(address: Any, value: Any) -> None:
    """The larger of the old word and ``value`` to a shared address."""
    _shared_update(address, lambda old: max(old, numbers.int32(value)))


def red_shared_add_i32(address: Any, value: Any) -> None:
    """``value`` added to a word at a shared address."""
    _shared_update(address, lambda old: old + value)


def red_shared_or_i32(address: Any, value: Any) -> None:
    """The bits of ``value`` set in a word at a shared address."""
    _shared_update(address, lambda old: old | numbers.int32(value))


def atom_shared_add_i32(address: Any, value: Any) -> Any:
    """``value`` added to a word at a shared address; returns the old word."""
    return _shared_update(address, lambda old: old + value)


def red_global_max_i32(address: Any, value: Any) -> None:
    """The larger of the old word and ``value`` to a global address."""
    _global_update(address, "<i", lambda old: max(old, numbers.int32(value)), numbers.int32)


def red_global_add_i64(address: Any, value: Any) -> None:
    """``value`` added to 8 bytes at a global address."""
    _global_update(address, "<q", lambda old: old + value, numbers.int64)


def atom_global_add_i32(address: Any, value: Any) -> Any:
    """``value`` added to a word at a global address; returns the old word."""
    return _global_update(address, "<i", lambda old: old + value, numbers.int32)


def atom_global_inc(address: Any, limit: Any) -> Any:
    """The word at a global address counts up, from ``limit`` on to 0; returns the old word."""
    limit = numbers.uint32(limit)
    return _global_update(address, "<i", lambda old: 0 if numbers.uint32(old) >= limit else old + 1, numbers.int32)


def _redux(operation):
    def instruction(value):
        state.requires((8, 0), "redux.sync")
        return sync.warp_operation(operation, FULL_WARP, numbers.int32(value))

    return instruction


redux_add, redux_min, redux_max = _redux(warp.total), _redux(warp.least), _redux(warp.greatest)


def fence_gpu() -> None:
    """Stores are seen in order: the simulator's always are."""


def start_next() -> None:
    """Launches run one after another here."""


def wait_for_earlier() -> None:
    """They are over; only what a kernel does before this is of interest."""
    State.lane.early = False


def barrier_sync(number: int, count: Any) -> None:
    """Wait at barrier ``number`` for ``count`` lanes."""
    sync.barrier(number, count)


def barrier_arrive(number: int, count: Any) -> None:
    """Arrive at barrier ``number`` of ``count`` lanes without waiting."""
    sync.barrier(number, count, waits=False)
