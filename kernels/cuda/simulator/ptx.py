"""What the simulator puts in the place of ``ptx.py``: the same names and arguments."""

import struct

import numpy as np

from .arithmetic import (  # noqa: F401
    dp4a_s8,
    dp4a_u8s8,
    ex2_approx,
    float_as_int,
    float_to_half,
    floor_s32,
    half_to_float,
    int_as_float,
    join_four,
    prmt,
    rint_s32,
    rint_u32,
    trunc_s32,
)
from .arrays import GlobalArray, SharedArray
from .cluster import (  # noqa: F401
    cluster_arrive_relaxed,
    cluster_wait,
    fence_mbarrier_init,
    map_shared,
    mbarrier_arrive_expect,
    mbarrier_init,
    mbarrier_try_wait,
    receive,
)
from .matrix import ldmatrix_x2, ldmatrix_x4, ldmatrix_x4_trans, mma_s8, mma_u8  # noqa: F401
from .numbers import int32, int64, uint32
from .state import State, fault, requires
from .sync import barrier, poll

_f32 = np.float32


def shared_base(array):
    """Address of a shared array's first byte."""
    if not isinstance(array, SharedArray):
        fault("python", "shared_base of something that is no shared array")
    return array.address


shared_window = shared_base


def global_base(array):
    """Address of a global array's first byte."""
    if not isinstance(array, GlobalArray):
        fault("python", "global_base of something that is no global array")
    return array.address


_LETTERS = {"u8": "B", "s8": "b", "u16": "H", "i32": "i", "i64": "q", "f32": "f"}


def _forms(kind):
    """(struct form, bytes, whether floats) of a kind such as ``i32`` or ``v4_f32``."""
    count, _, one = kind.rpartition("_")
    letters = _LETTERS[one] * (int(count[1:]) if count else 1)
    form = struct.Struct("<" + letters)
    return form, form.size, one == "f32"


def _values(raw, floats):
    if len(raw) == 1:
        return _f32(raw[0]) if floats else raw[0]
    return tuple(map(_f32, raw)) if floats else raw


def _ld_shared(kind):
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
        size = form.size // len(values)
        span = 1 << 8 * size
        for value in values:
            if not -span // 2 <= value < span:
                fault("overflow", f"store of {value} into {size} bytes")
        return b"".join((int(value) % span).to_bytes(size, "little") for value in values)


def _st_shared(kind):
    form, size, _ = _forms(kind)
    part = 8 * size // len(form.unpack(bytes(size)))

    def store(address, *values):
        memory = State.lane.block.memory
        memory.writing(address, size)
        # A narrow store takes the low bits of its register.
        values = [value & (1 << part) - 1 for value in values] if part < 32 else values
        memory.data[address : address + size] = _packed(form, values)
        State.progress += 1

    return store


def _st_async(kind):
    form, size, _ = _forms(kind)

    def store(address, *values):
        data, offset = receive(address, size, values[-1])
        data[offset : offset + size] = _packed(form, values[:-1])

    return store


def _find(address, size, what):
    return State.lane.block.globals.find(address, size, what)


def _ld_global(kind, looks=False):
    form, size, floats = _forms(kind)

    def load(address):
        data, offset = _find(address, size, "read")
        value = _values(form.unpack_from(data, offset), floats)
        if looks:
            poll((address, value))
        return value

    return load


def _st_global(kind):
    form, size, _ = _forms(kind)
    part = 8 * size // len(form.unpack(bytes(size)))

    def store(address, *values):
        data, offset = _find(address, size, "write")
        values = [value & (1 << part) - 1 for value in values] if part < 32 else values
        data[offset : offset + size] = _packed(form, values)
        State.progress += 1

    return store


_SHARED = ("i32", "i64", "f32", "v2_i32", "v4_i32", "v2_i64", "v2_f32", "v4_f32")
_GLOBAL = ("u8", "u16", "i32", "i64", "f32", "v2_i32", "v4_i32", "v2_i64", "v2_f32", "v4_f32")
globals().update({f"ld_shared_{kind}": _ld_shared(kind) for kind in ("u8", "s8", *_SHARED)})
globals().update({f"st_shared_{kind}": _st_shared(kind) for kind in ("u8", "u16", *_SHARED)})
globals().update({f"st_async_{kind}": _st_async(kind) for kind in ("i64", "v2_i64", "v4_i32")})
globals().update({f"ld_global_{kind}": _ld_global(kind) for kind in _GLOBAL})
globals().update({f"ld_global_{kind}_nc": _ld_global(kind) for kind in _GLOBAL})
globals().update({f"st_global_{kind}": _st_global(kind) for kind in _GLOBAL})
ld_global_volatile_i32 = ld_global_acquire_i32 = _ld_global("i32", looks=True)
ld_global_relaxed_i64 = _ld_global("i64", looks=True)
ld_global_v2_relaxed_i64 = _ld_global("v2_i64", looks=True)
st_global_release_i32, st_global_relaxed_i64 = _st_global("i32"), _st_global("i64")
st_global_v2_relaxed_i64 = _st_global("v2_i64")


def cp_async_16(shared, address):
    """Start a copy of 16 bytes; they are there after the wait."""
    cp_async_16_zfill(shared, address, 16)


def cp_async_16_zfill(shared, address, n):
    """Start a copy of n bytes and 16 - n zeros."""
    requires((8, 0), "cp.async")
    lane = State.lane
    data, offset = _find(address, n, "asynchronous copy") if n else (b"", 0)
    if address & 15:
        fault("alignment", f"asynchronous copy from global address {address:#x}")
    lane.block.memory.writing(shared, 16, pending=True)
    lane.open.append((shared, data, offset, n))


def cp_async_commit():
    """Close a group of copies."""
    requires((8, 0), "cp.async")
    lane = State.lane
    lane.groups.append(lane.open)
    lane.open = []


def _wait(left):
    def wait():
        requires((8, 0), "cp.async")
        lane = State.lane
        cut = max(0, len(lane.groups) - left)
        for group in lane.groups[:cut]:
            for shared, data, offset, n in group:
                lane.block.memory.land(shared, bytes(data[offset : offset + n]).ljust(16, b"\0"))
        del lane.groups[:cut]

    return wait


globals().update({f"cp_async_wait_{n}": _wait(n) for n in range(4)})


def _shared_update(address, change):
    memory = State.lane.block.memory
    if memory.valid[address >> 2] & 0b1111 != 0b1111:
        memory.reading(address, 4)
    memory.writing(address, 4, atomic=True)
    (old,) = struct.unpack_from("<i", memory.data, address)
    struct.pack_into("<i", memory.data, address, int32(change(old)))
    State.progress += 1
    return old


def _global_update(address, form, change, convert):
    data, offset = _find(address, struct.calcsize(form), "atomic")
    (old,) = struct.unpack_from(form, data, offset)
    struct.pack_into(form, data, offset, convert(change(old)))
    State.progress += 1
    poll()
    return old


def red_shared_max_i32(address, value):
    """See ``ptx.MEMORY``."""
    _shared_update(address, lambda old: max(old, int32(value)))


def red_shared_add_i32(address, value):
    """See ``ptx.MEMORY``."""
    _shared_update(address, lambda old: old + value)


def atom_shared_add_i32(address, value):
    """See ``ptx.MEMORY``."""
    return _shared_update(address, lambda old: old + value)


def red_global_max_i32(address, value):
    """See ``ptx.MEMORY``."""
    _global_update(address, "<i", lambda old: max(old, int32(value)), int32)


def red_global_add_i64(address, value):
    """See ``ptx.MEMORY``."""
    _global_update(address, "<q", lambda old: old + value, int64)


def atom_global_add_i32(address, value):
    """See ``ptx.MEMORY``."""
    return _global_update(address, "<i", lambda old: old + value, int32)


def atom_global_inc(address, limit):
    """See ``ptx.MEMORY``."""
    return _global_update(address, "<i", lambda old: 0 if uint32(old) >= uint32(limit) else old + 1, int32)


def fence_gpu():
    """Stores are seen in order: the simulator's always are."""


def barrier_sync(number, count):
    """See ``ptx.BARRIERS``."""
    barrier(number, count)


def barrier_arrive(number, count):
    """See ``ptx.BARRIERS``."""
    barrier(number, count, waits=False)
