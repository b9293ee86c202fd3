"""Pages, page tables and append_kv."""

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.reference.append_kv import append_kv
from qsa.reference.formats import FORMATS
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.kv import PagedKV, Pool, encode, read_kv
from support.arrays import generator
from support.attention import SMALL, store


def cells_of(n, seed=1):
    return generator(seed).standard_normal((2, n, SMALL.n_head_kv, SMALL.head_dim)).astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("page_size", [1, 4, 64, 512])
def test_cells_come_back_in_logical_order(fmt, page_size):
    k, v = cells_of(100)
    plain = read_kv(store(k, v, fmt, 4, SMALL), np.arange(100))
    paged = read_kv(store(k, v, fmt, page_size, SMALL, generator(2)), np.arange(100))
    for a, b in zip(plain, paged, strict=True):
        assert np.array_equal(a, b)
    got_k, got_v = plain.values()
    # fp16 and f64 keep values to 2^-11 and 2^-24; a table ignored or a page transposed is off by the values themselves.
    if fmt in ("fp16", "f64"):
        assert np.abs(got_k - k).max() < 4e-3 and np.abs(got_v - v).max() < 4e-3
    assert plain.resident.all()


def test_a_second_pool_layout_must_disagree():
    """The rival that ignores the page table reads other cells: the test above can fail."""
    k, v = cells_of(100)
    kv = store(k, v, "int8", 4, SMALL, generator(2))
    want = read_kv(kv, np.arange(100)).k_codes
    kv.table = np.arange(25, dtype=np.int32)
    assert (read_kv(kv, np.arange(100)).k_codes != want).mean() > 0.5


def test_host_copy_is_always_written_and_pages_only_where_resident():
    k, v = cells_of(16)
    kv = PagedKV.new("int8", 16, 4, SMALL, table=[1, -1, 0, -1], host=True)
    before = kv.pool.k.codes.copy()
    assert append_kv(k, v, kv, step_records(range(16))) is True
    codes, scale = encode(k, "int8")
    identity = kv.host.k.codes.transpose(0, 2, 1, 3).reshape(16, 2, -1)
    assert np.array_equal(identity, codes)
    assert np.array_equal(kv.host.k.scale.transpose(0, 2, 1, 3).reshape(16, 2, -1), scale)
    cells = read_kv(kv, np.arange(16))
    assert cells.resident.tolist() == [i // 4 in (0, 2) for i in range(16)]
    assert np.array_equal(cells.k_codes[cells.resident], codes[cells.resident])
    assert not cells.k_codes[~cells.resident].any()
    # Nothing but the two resident pages was touched.
    assert kv.pool.n_pages == 2 and not before.any()


def test_rows_of_several_slots_and_unused_rows():
    k, v = cells_of(4)
    kvs = [PagedKV.new("int8", 8, 4, SMALL), PagedKV.new("q4_0", 8, 1, SMALL)]
    append_kv(k, v, kvs, step_records([3, 0, -1, 4]), [0, 1, 1, 0])
    assert np.array_equal(read_kv(kvs[0], [3, 4]).k_codes, encode(k[[0, 3]], "int8")[0])
    assert read_kv(kvs[1], [0]).k_scale.any() and not read_kv(kvs[1], [1]).k_scale.any()


def test_errors_name_the_argument_and_write_nothing():
    k, v = cells_of(2)
    kv = PagedKV.new("int8", 8, 4, SMALL)
    with pytest.raises(ValueError, match="pos = 8: slot 0 holds 8 cells"):
        append_kv(k, v, kv, step_records([0, 8]))
    with pytest.raises(ValueError, match="share a position"):
        append_kv(k, v, kv, step_records([3, 3]))
    with pytest.raises(ValueError, match="k, v: "):
        append_kv(k[:, :1], v, kv, step_records([0, 1]))
    for kvs, slots, message in (
        ([], None, r"kv: \[\]: must be a PagedKV, or a list of one or more"),
        ([], np.zeros(2, np.int32), r"kv: \[\]: must be"),
        (kv, np.zeros(2), r"slots: float64 \(2,\): must be int32 \(2,\)"),
        (kv, np.zeros(3, np.int32), r"slots: int32 \(3,\): must be int32 \(2,\)"),
        ([kv, kv], np.array([0, -1], np.int32), "slots: -1 to 0: must be from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            append_kv(k, v, kvs, step_records([0, 1]), slots)
    k[1, 0, 0] = np.nan
    with pytest.raises(ValueError, match="must be finite"):
        append_kv(k, v, kv, step_records([0, 1]))
    assert not kv.pool.k.codes.any()
    with pytest.raises(IndexError, match="cell 8"):
        read_kv(kv, [8])


@pytest.mark.parametrize(
    ("append", "fmt"),
    [
        # f64 is the reference's alone.
        *(pytest.param(append_kv, fmt, id=f"{fmt}-reference") for fmt in FORMATS),
        *(pytest.param(cpu.append_kv, fmt, id=f"{fmt}-cpu") for fmt in FORMATS if fmt != "f64"),
    ],
)
def test_values_that_a_format_cannot_hold_are_refused(append, fmt):
    """known-faults E5: as inf in fp16 they made NaN of the outputs."""
    # int8's scale is the largest value over 127; q4_0's, of a rotated vector with one value, is an eighth of an eighth.
    beyond = {"int8": 65520 * 127.0, "q4_0": 65520 * 64.0, "k8v4": 65520 * 127.0, "fp16": 65520.0, "f64": np.inf}[fmt]
    kv = PagedKV.new(fmt, 8, 4, SMALL, host=True)
    for value in (beyond, -beyond, 70000 * beyond, np.inf, np.nan):
        for side in (0, 1):
            x = np.zeros((2, 2, SMALL.n_head_kv, SMALL.head_dim), np.float32)
            x[0] = x[1] = 1
            x[side, 1, 1, 5] = value
            if (fmt, side) == ("k8v4", 1):
                x[side, 1, 1, 5] *= 64 / 127 * (1 + 2**-20)
            with pytest.raises(ValueError, match=f"{'kv'[side]}: row 1: .*: values must be finite"):
                append(*x, kv, step_records([0, 1]))
    assert not any(side.codes.view(np.uint8).any() for pool in (kv.pool, kv.host) for side in (pool.k, pool.v))


@pytest.mark.parametrize("append", [append_kv, cpu.append_kv], ids=["reference", "cpu"])
def test_the_largest_fp16_value_is_held(append):
    """65519.99 rounds to 65504; 65520 would round to infinity."""
    kv = PagedKV.new("fp16", 8, 4, SMALL)
    x = np.full((1, SMALL.n_head_kv, SMALL.head_dim), np.nextafter(np.float32(65520), np.float32(0)))
    assert append(x, -x, kv, step_records([0]))
    k, v = read_kv(kv, [0]).values()
    assert (k == 65504).all() and (v == -65504).all()


def test_pools_and_tables_are_checked():
    with pytest.raises(ValueError, match="format = 'int4'"):
        Pool("int4", 1)
    with pytest.raises(ValueError, match="page_size = 0"):
        Pool("int8", 1, 0)
    with pytest.raises(ValueError, match="head_dim = 32: int8 groups 64 dims"):
        Pool("int8", 1, geometry=Geometry(n_head=2, n_head_kv=1, head_dim=32, n_rot=8))
    pool = Pool("int8", 2, geometry=SMALL)
    with pytest.raises(ValueError, match=r"table\[1\] = 2: the pool has 2 pages: must be from 0 to 1, or -1"):
        PagedKV(pool, [0, 2])
    with pytest.raises(ValueError, match=r"table\[1\] = -2: the pool"):
        PagedKV(pool, [0, -2])
    with pytest.raises(ValueError, match=r"share a physical page: \[0\] and \[1\] are 1"):
        PagedKV(pool, [1, 1])
    with pytest.raises(ValueError, match="host: 1 pages"):
        PagedKV(pool, [0, 1], Pool("int8", 1, geometry=SMALL))
    with pytest.raises(ValueError, match="host: must have"):
        PagedKV(pool, [0, 1], Pool("q4_0", 2, geometry=SMALL))


def test_geometry_and_step_records():
    assert step_records([-1, 0, 2050, 2051]).tolist() == [
        [-1, 0, 0, 0],
        [0, 1, 0, 1],
        [2050, 2051, 512, 2051],
        [2051, 2052, 513, 2048],
    ]
    assert step_records([2051, 2053], "cells")[:, 3].tolist() == [2051, 2051]
    with pytest.raises(ValueError, match="position = -2"):
        step_records([-2])
    with pytest.raises(ValueError, match="rule = 'best'"):
        step_records([0], "best")
    with pytest.raises(ValueError, match="n_head = 24: must be a multiple of n_head_kv = 5"):
        Geometry(n_head_kv=5)
    with pytest.raises(ValueError, match="budget = 10"):
        Geometry(budget=10)
