"""Tests of ``append_kv`` and ``append_index`` on CUDA, for the simulator and a device: the exact arithmetic's bytes.

The fixture ``backend`` is a :class:`support.backend.Backend`.
"""

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference.exact import append_index, append_kv
from qsa.reference.geometry import REAL, Geometry, step_records
from qsa.reference.index import INDEX_FORMATS, Index, written
from qsa.reference.kv import PagedKV

SMALL = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16, idx_dim=32)


def same_kv(backend, kv, on_device):
    """Every byte of the pool and of the host copy is the same."""
    back = backend.to_host(on_device)
    for want, got in ((kv.pool, back.pool), (kv.host, back.host)):
        if want is None:
            assert got is None
            continue
        for side, seen in ((want.k, got.k), (want.v, got.v)):
            np.testing.assert_array_equal(side.codes.view(np.uint8), seen.codes.view(np.uint8))
            np.testing.assert_array_equal(side.scale.view(np.uint16), seen.scale.view(np.uint16))


def poisoned(format, capacity, geometry=REAL, **options):
    """A PagedKV whose bytes are all 0xC5: a byte that is left unwritten, or written by mistake, is found."""
    kv = PagedKV.new(format, capacity, geometry=geometry, **options)
    for pool in (kv.pool, kv.host):
        for side in (pool.k, pool.v) if pool else ():
            side.codes.view(np.uint8).fill(0xC5)
            side.scale.view(np.uint16).fill(0xC5C5)
    return kv


def vectors(rng, rows, geometry=REAL):
    """K or V [rows, n_head_kv, head_dim] float32 whose groups differ much in magnitude.

    One group is all 0 of both signs, one lies below the smallest fp16 scale.
    """
    x = rng.standard_normal((rows, geometry.n_head_kv, geometry.head_dim)).astype(np.float32)
    x *= np.exp(3 * rng.standard_normal((rows, geometry.n_head_kv, 1))).astype(np.float32)
    x[0, 0, :64], x[0, 0, :64:2], x[-1, -1, -64:] = 0, -0.0, 1e-9 * x[-1, -1, -64:]
    return x


@pytest.mark.parametrize("format", ["int8", "q4_0", "k8v4", "fp16"])
@pytest.mark.parametrize("geometry", [REAL, SMALL], ids=["real", "small"])
def test_append_kv_gives_the_reference_bytes(backend, format, geometry):
    """A window over two pages with an unused row; in two of the tables a page is not resident."""
    rng = np.random.default_rng(1)
    positions = [2, 3, -1, 4, 5]
    k, v = vectors(rng, 5, geometry), vectors(rng, 5, geometry)
    steps = step_records(positions, geometry=geometry)
    for table in ([1, 0, 2], [2, -1, 1], [-1, -1, -1]):
        kv = poisoned(format, 12, geometry, table=np.array(table), host=True)
        on_device = backend.to_device(kv)
        assert append_kv(k, v, kv, steps)
        assert backend.launch("append_kv", k, v, on_device, steps) is True
        same_kv(backend, kv, on_device)


@pytest.mark.parametrize("page_size", [1, 64])
def test_page_sizes_and_one_row_at_a_time(backend, page_size):
    rng = np.random.default_rng(2)
    k, v = vectors(rng, 3, SMALL), vectors(rng, 3, SMALL)
    steps = step_records([62, 63, 64], geometry=SMALL)
    kv = poisoned("k8v4", 128, SMALL, page_size=page_size)
    window, rows = backend.to_device(kv), backend.to_device(kv)
    append_kv(k, v, kv, steps)
    backend.launch("append_kv", k, v, window, steps)
    for i in range(3):
        backend.launch("append_kv", k[i : i + 1], v[i : i + 1], rows, steps[i : i + 1])
    same_kv(backend, kv, window)
    same_kv(backend, kv, rows)


def test_several_slots_of_mixed_formats_in_one_call(backend):
    """One launch for each coding. Every row is written to its own slot."""
    rng = np.random.default_rng(3)
    kvs = [poisoned(format, 8, SMALL, host=host) for format, host in (("int8", 1), ("q4_0", 0), ("k8v4", 1))]
    on_device = backend.to_device(kvs)
    slots = np.array([2, 0, 1, 2], np.int32)
    k, v = vectors(rng, 4, SMALL), vectors(rng, 4, SMALL)
    steps = step_records([0, 7, 3, 1], geometry=SMALL)
    append_kv(k, v, kvs, steps, slots)
    assert backend.counted(lambda: backend.launch("append_kv", k, v, on_device, steps, slots)) == 2
    for kv, seen in zip(kvs, on_device, strict=True):
        same_kv(backend, kv, seen)


def test_append_kv_leaves_rows_beyond_the_capacity_and_refuses_other_geometries(backend):
    kv = poisoned("int8", 4, SMALL)
    on_device = backend.to_device(kv)
    x = np.ones((1, 2, 64), np.float32)
    assert backend.launch("append_kv", x, x, on_device, step_records([4], geometry=SMALL))
    same_kv(backend, kv, on_device)

    odd = Geometry(n_head=2, n_head_kv=1, head_dim=192, n_rot=16)
    before, launched = ops.refusals().get(("append_kv", "geometry"), 0), launches()
    x = np.ones((1, 1, 192), np.float32)
    refused = backend.to_device(poisoned("int8", 4, odd))
    assert backend.launch("append_kv", x, x, refused, step_records([0], geometry=odd)) is False
    assert ops.refusals()["append_kv", "geometry"] == before + 1
    assert launches() == launched
    with pytest.raises(ValueError, match="slots"):
        backend.launch("append_kv", x, x, [refused, refused], step_records([0], geometry=odd))
    steps = step_records([0, 1], geometry=odd)
    x = np.ones((2, 1, 192), np.float32)
    for arguments, message in (
        ((x[..., :8].copy(), x, steps), "k: float32"),
        ((x, x.astype(np.float16), steps), "v: float16"),
        ((x, np.asfortranarray(x), steps), "v: strides"),
        ((x, x, steps[:1]), "steps: int32"),
        ((x, x, np.asfortranarray(steps)), "steps: strides"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.launch("append_kv", *arguments[:2], refused, arguments[2])
    with pytest.raises(ValueError, match="slots: int64"):
        backend.launch("append_kv", x, x, [refused, refused], steps, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"slots: int32 \(1,\): must be int32 \(2,\)"):
        backend.launch("append_kv", x, x, refused, steps, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"kv: \[\]: must be a DeviceKV, or a list of one or more"):
        backend.launch("append_kv", x, x, [], steps)


@pytest.mark.parametrize("slots", [[-1, 0], [2, 1], [1, 2**31 - 1], [0, -(2**31)]])
@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_row_of_no_slot_writes_nothing(backend, n_slots, slots):
    """A slot number that is negative or too large: an address read outside the table of slots could be any."""
    rng = np.random.default_rng(10)
    kvs = [poisoned("int8", 8, SMALL, host=True) for _ in range(n_slots)]
    on_device, guards = zip(*map(backend.between_guards, kvs), strict=True)
    k, v = vectors(rng, 2, SMALL), vectors(rng, 2, SMALL)
    slots, steps = np.array(slots, np.int32), step_records([3, 6], geometry=SMALL)
    held = [row for row in (0, 1) if 0 <= slots[row] < n_slots]
    append_kv(k[held], v[held], kvs, steps[held], slots[held])
    assert backend.launch("append_kv", k, v, list(on_device), steps, slots) is True
    for kv, seen, buffers in zip(kvs, on_device, guards, strict=True):
        same_kv(backend, kv, seen)
        for buffer in buffers:
            buffer.check(f"slots {slots}")


def make_index(rng, geometry=REAL, blocks=6, **options):
    index = Index(blocks, rng.standard_normal(geometry.idx_dim).astype(np.float32) + 1, geometry, **options)
    for name in written(index):
        array = getattr(index, name)
        array.fill(np.nan if array.dtype == np.float32 else 32767)
    return index


def same_index(backend, index, on_device):
    back = backend.to_host(on_device)
    assert index.format == back.format
    for name in written(index):
        right, got = getattr(index, name), getattr(back, name)
        bits = np.uint32 if right.dtype == np.float32 else np.uint16
        np.testing.assert_array_equal(right.view(bits), got.view(bits), err_msg=name)


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("geometry", [REAL, SMALL], ids=["real", "small"])
def test_append_index_in_windows_and_row_by_row(backend, geometry, format):
    """The same 14 keys: one at a time, in windows of 3 and 8, and in one call of two launches."""
    rng = np.random.default_rng(4)
    raw = rng.standard_normal((14, geometry.idx_dim)).astype(np.float32)
    steps = step_records(range(14), geometry=geometry)
    index = make_index(rng, geometry, mscale=1.25, format=format)
    fresh = [backend.to_device(index) for _ in range(4)]
    append_index(raw, steps, index)
    for size, on_device in zip((1, 3, 8, 14), fresh, strict=True):
        for start in range(0, 14, size):
            part = slice(start, start + size)
            assert backend.launch("append_index", raw[part], steps[part], on_device) is True
        same_index(backend, index, on_device)


@pytest.mark.parametrize("weight", [1e-38, 1e-42, 1e38])
def test_append_index_encodes_keys_of_every_size(backend, weight):
    """Subnormal and huge keys, a key of zeros, and some that are not finite: the dead key too."""
    rng = np.random.default_rng(7)
    index = make_index(rng, REAL, blocks=8, format="int16")
    index.weight[:] *= np.float32(weight)
    on_device = backend.to_device(index)
    raw = rng.standard_normal((24, 128)).astype(np.float32)
    raw[0, 5], raw[4:8], raw[9, 127], raw[14, 3] = np.nan, 0, np.inf, -np.inf
    steps = step_records(range(24))
    with np.errstate(invalid="ignore", over="ignore"):
        append_index(raw, steps, index)
    backend.launch("append_index", raw, steps, on_device)
    same_index(backend, index, on_device)


@pytest.mark.parametrize("format", INDEX_FORMATS)
def test_append_index_after_a_rejected_draft_and_with_unused_rows(backend, format):
    """A block is completed, its draft is rejected, and it is completed again with other keys; some rows are unused."""
    rng = np.random.default_rng(5)
    index = make_index(rng, SMALL, format=format)
    on_device = backend.to_device(index)
    for positions in ([0, 1, 2, 3, 4, 5], [3, 4, 5, 6], [-1, 7, -1, 8, -1]):
        raw = rng.standard_normal((len(positions), 32)).astype(np.float32)
        steps = step_records(positions, geometry=SMALL)
        append_index(raw, steps, index)
        backend.launch("append_index", raw, steps, on_device)
        same_index(backend, index, on_device)


@pytest.mark.parametrize("format", INDEX_FORMATS)
def test_append_index_leaves_blocks_beyond_the_buffer_and_refuses_other_geometries(backend, format):
    rng = np.random.default_rng(6)
    index = make_index(rng, SMALL, blocks=1, format=format)
    on_device = backend.to_device(index)
    raw = rng.standard_normal((1, 32)).astype(np.float32)
    backend.launch("append_index", raw, step_records([7], geometry=SMALL), on_device)
    same_index(backend, index, on_device)
    odd = Geometry(n_rot=12, idx_dim=128)
    launched = launches()
    refused, raw = backend.to_device(make_index(rng, odd)), np.zeros((2, 128), np.float32)
    assert backend.launch("append_index", raw, step_records([0, 1]), refused) is False
    assert launches() == launched
    for given, message in ((np.asfortranarray(raw), "raw: strides"), (raw[:, :64].copy(), "raw: float32")):
        with pytest.raises(ValueError, match=message):
            backend.launch("append_index", given, step_records([0, 1]), refused)
