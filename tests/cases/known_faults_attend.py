"""Known faults of ``append_kv`` and ``attend``; see ``known_faults``."""

import inspect

import numpy as np
import pytest

from cases.known_faults import ACCURACY, cells, queries, vectors
from qsa.parity.backend import UnsupportedError
from qsa.reference.attend import attend as attend_float64
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import step_records
from qsa.reference.kv import PagedKV
from support.arrays import generator, relative_error, same_bytes
from support.attention import record, store


def poison(kv, pages):
    """Fill physical ``pages`` with codes and NaN scales that no right result can come from."""
    for side in (kv.pool.k, kv.pool.v):
        side.codes.view(np.uint8)[pages] = 0x81
        side.scale[pages] = np.nan


def stored(kv):
    """The bytes of every array of a pool."""
    return [array.tobytes() for side in (kv.pool.k, kv.pool.v) for array in (side.codes, side.scale)]


def every_schedule(backend, splits=3):
    """(schedule, splits) of every schedule of int8."""
    return [(name, splits if name == "split" else 1) for name in backend.schedules["attend"]]


@pytest.mark.parametrize("missing", ["first", "middle", "last", "all"])
def test_a7_a_page_that_is_not_resident_is_not_read(backend, missing):
    rng = generator(3)
    for fmt in backend.formats:
        kv, q = cells(rng, 12, backend.geometry, 1, fmt), queries(rng, 1, backend.geometry)
        gone = {"first": [0], "middle": [5], "last": [11], "all": list(range(12))}[missing]
        poison(kv, kv.table[gone])
        kv.table[gone] = -1
        got = backend.attend(q, kv, np.arange(12, dtype=np.int32)[None], record(12))
        if missing == "all":
            assert not got.any(), fmt
            continue
        left = np.setdiff1d(np.arange(12), gone).astype(np.int32)[None]
        assert relative_error(got, attend_float64(q, kv, left, record(left.size))) < ACCURACY, fmt


def test_a8_an_absent_cell_takes_no_weight_as_a_cell_of_score_zero_would(backend):
    """Of two cells one is absent, the other has q.k = -10: the result is the other's value, not nearly 0."""
    g = backend.geometry
    ones = np.ones((2, g.n_head_kv, g.head_dim), np.float32)
    kv = store(-ones, 3 * ones, "int8", 1, g)
    kv.table[0] = -1
    q = np.full((1, g.n_head, g.head_dim), 10 / np.sqrt(g.head_dim), np.float32)
    for schedule, splits in every_schedule(backend):
        got = backend.attend(q, kv, np.array([[0, 1]], np.int32), record(2), schedule=schedule, splits=splits)
        # One cell has all the weight: what remains is one rounding each of mass, sum and quotient.
        right = 127 * kv.pool.v.scale[1, 0, 0, 0].astype(np.float64)
        assert np.abs(got / right - 1).max() < 3 * 2.0**-24, schedule


@pytest.mark.parametrize("fmt", [*EXACT_FORMATS, "fp16"])
def test_a14_a_cell_is_written_to_the_host_and_to_its_resident_page(backend, fmt):
    """Cell 1 is overwritten: pool and host copy hold the same bytes, and attention reads the new cell."""
    g, rng = backend.geometry, generator(30)
    old, new = vectors(rng, 5, g), vectors(rng, 1, g)
    kv = PagedKV.new(fmt, 12, geometry=g, table=np.array([1, 0, -1]), host=True)
    kv = backend.append_kv(*old, kv, step_records(range(5), geometry=g))
    kv = backend.append_kv(*new, kv, step_records([1], geometry=g))
    now = old.copy()
    now[:, 1] = new[:, 0]
    right = store(*now, fmt, 4, g)
    for side in ("k", "v"):
        pool, host, want = (getattr(pages, side) for pages in (kv.pool, kv.host, right.pool))
        for cell in range(5):
            page, offset = divmod(cell, 4)
            for name in ("codes", "scale"):
                wanted = getattr(want, name)[page, :, offset].tobytes()
                assert getattr(pool, name)[1 - page, :, offset].tobytes() == wanted, (side, name, cell)
                assert getattr(host, name)[page, :, offset].tobytes() == wanted, (side, name, cell)
    if fmt != "fp16":
        q, ids = queries(rng, 1, g), np.arange(5, dtype=np.int32)[None]
        want = attend_float64(q, right, ids, record(5))
        assert relative_error(backend.attend(q, kv, ids, record(5)), want) < ACCURACY


def test_a21_values_of_k8v4_are_four_bits(backend):
    """K and V take different loads and stores. Keys of 0 give every value the same weight."""
    g, rng = backend.geometry, generator(31)
    k, v = vectors(rng, 5, g)
    k[:] = 0
    kv = backend.append_kv(k, v, PagedKV.new("k8v4", 5, geometry=g), step_records(range(5), geometry=g))
    assert kv.pool.v.codes.shape[-1] == g.head_dim // 2 and kv.pool.v.codes.any()
    q, ids = queries(rng, 1, g), np.arange(5, dtype=np.int32)[None]
    got = backend.attend(q, kv, ids, record(5))
    assert relative_error(got, attend_float64(q, kv, ids, record(5))) < ACCURACY
    # 4 bits a value: a step is an eighth of a group's largest, and the mean of five has less.
    mean = v.mean(axis=0, dtype=np.float64).repeat(g.group, axis=0)
    assert relative_error(got[0], mean) < 1 / 8


def test_b5_what_was_never_written_is_never_weighed(backend):
    """729 cells of 2,112 are selected. The others hold NaN scales, and ids beyond the width are not valid."""
    rng = generator(5)
    capacity, width = (70, 36) if backend.small else (2112, 729)
    kv, q = cells(rng, capacity, backend.geometry), queries(rng, 1, backend.geometry)
    chosen = np.sort(rng.permutation(capacity)[:width])
    ids = np.full((1, capacity), 2**31 - 1, np.int32)
    ids[0, :width] = chosen
    want = attend_float64(q, kv, ids, record(width))
    page, offset = kv.locate(np.setdiff1d(np.arange(capacity), chosen))
    for side in (kv.pool.k, kv.pool.v):
        side.scale[page, :, offset] = np.nan
    for schedule, splits in every_schedule(backend):
        got = backend.attend(q, kv, ids, record(width), schedule=schedule, splits=splits)
        assert relative_error(got, want) < ACCURACY, schedule


def right_or_refused(backend, arguments, want):
    """The call takes arrays that are not C-contiguous and uses their values; on a device it is an error."""
    if backend.on_device:
        with pytest.raises(ValueError, match="contiguous"):
            backend.attend(*arguments)
    else:
        assert same_bytes(backend.attend(*arguments), want)


def test_c2_strided_arrays(backend):
    """Inputs and scratch have other strides than the kernels assume."""
    rng, g = generator(8), backend.geometry
    n, widths = (34, (34, 2, 7)) if backend.small else (200, (150, 64, 7))
    kv, q = cells(rng, n, g), queries(rng, 3, g)
    ids = np.stack([rng.permutation(n) for _ in range(3)]).astype(np.int32)
    steps = np.concatenate([record(width) for width in widths])
    want = backend.attend(q, kv, ids, steps)
    assert relative_error(want, attend_float64(q, kv, ids, steps)) < ACCURACY
    for i, given in enumerate((q, None, ids, steps)):
        if given is not None:
            arguments = [q, kv, ids, steps]
            arguments[i] = np.asfortranarray(given)
            right_or_refused(backend, arguments, want)
    k, v = vectors(rng, 6, g)
    records = step_records(range(6), geometry=g)
    plain = backend.append_kv(k, v, PagedKV.new("int8", 8, geometry=g), records)
    assert plain.pool.k.codes.any()
    for i in range(3):
        k_v_steps = [k, v, records]
        k_v_steps[i] = np.asfortranarray(k_v_steps[i])
        arguments = *k_v_steps[:2], PagedKV.new("int8", 8, geometry=g), k_v_steps[2]
        if backend.on_device:
            with pytest.raises(ValueError, match="contiguous"):
                backend.append_kv(*arguments)
        else:
            assert stored(backend.append_kv(*arguments)) == stored(plain)
    if "scratch" in inspect.signature(backend.module.attend).parameters:
        arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
        scratch = backend.to_device(np.zeros(1 << 20, np.int64))[::2]
        with pytest.raises(UnsupportedError, match="scratch"):
            backend.call("attend", *arrays, schedule="split", splits=2, scratch=scratch)


def test_c3_five_cells_in_a_capacity_of_a_million(backend):
    rng, g = generator(9), backend.geometry
    table = np.full(1 << 18, -1, np.int32)
    table[[7, (1 << 18) - 1]] = [1, 0]
    kv = PagedKV.new("int8", 1 << 20, geometry=g, table=table)
    ids = np.array([[28, 29, 31, (1 << 20) - 4, (1 << 20) - 1]], np.int32)
    k, v = vectors(rng, 5, g)
    kv = backend.append_kv(k, v, kv, step_records(ids[0].tolist(), geometry=g))
    q, near = queries(rng, 1, g), store(k, v, "int8", 4, g)
    five = np.arange(5, dtype=np.int32)[None]
    few = backend.attend(q, near, five, record(5))
    assert relative_error(few, attend_float64(q, near, five, record(5))) < ACCURACY
    for schedule, splits in (*every_schedule(backend, 1), ("split", 2 if backend.small else 20)):
        got = backend.attend(q, kv, ids, record(5), schedule=schedule, splits=splits)
        assert same_bytes(got, few), (schedule, splits)


def test_c15_slot_0_is_no_sign_of_padding(backend):
    """Of two rows the second is padding with slot 0: the request in slot 0 keeps its cells and its output."""
    rng, g = generator(32), backend.geometry
    k, v = vectors(rng, 2, g)
    steps, slots = step_records([6, -1], geometry=g), np.zeros(2, np.int32)
    k[1], v[1] = 9, 9
    alone, padded = ([cells(generator(seed), 8, g) for seed in (33, 34)] for _ in range(2))
    alone = backend.append_kv(k[:1], v[:1], alone, steps[:1], slots[:1])
    padded = backend.append_kv(k, v, padded, steps, slots)
    assert [stored(kv) for kv in padded] == [stored(kv) for kv in alone]
    q = queries(rng, 2, g)
    ids = np.stack([rng.permutation(7), np.full(7, 2**30)]).astype(np.int32)
    records = np.concatenate([record(7), steps[1:]])
    want = attend_float64(q[:1], padded[0], ids[:1], records[:1])
    q[1] = np.nan
    got = backend.attend(q, padded, ids, records, slots)
    assert relative_error(got[:1], want) < ACCURACY and not got[1].any()


def test_c16_a_row_alone_and_among_33(backend):
    """With given splits and with the backend's own choice. The simulator's device has 4 multiprocessors: 5 rows."""
    rng, g = generator(13), backend.geometry
    n, rows = (67, 5) if backend.small else (300, 33)
    kv, q = cells(rng, n, g), queries(rng, rows, g)
    ids = np.stack([rng.permutation(n) for _ in range(rows)]).astype(np.int32)
    # The number of blocks for a row follows from the width of ids, which a row in the simulator need not fill.
    widths = np.array([34 if backend.small else n - 1, *rng.integers(0, 3 if backend.small else n, rows - 1)])
    steps = np.concatenate([record(width) for width in widths.tolist()])
    arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
    alone = [backend.to_device(x) for x in (q[:1], kv, ids[:1], steps[:1])]
    want = attend_float64(q[:1], kv, ids[:1], steps[:1])
    calls = [(schedule, {}) for schedule in backend.schedules["attend"]] + [("split", {"splits": 20})]
    for schedule, given in calls[1:2] if backend.small else calls:
        together = backend.to_host(backend.call("attend", *arrays, schedule=schedule, **given))
        single = backend.to_host(backend.call("attend", *alone, schedule=schedule, **given))
        assert same_bytes(together[:1], single), (schedule, given)
        assert relative_error(single, want) < ACCURACY, (schedule, given)


def test_c17_the_second_page(backend):
    """65 cells in pages of 64; the last cell has much of the weight."""
    rng, g = generator(14), backend.geometry
    (k, v), q = vectors(rng, 65, g), queries(rng, 1, g)
    k[64] = q[0].reshape(g.n_head_kv, g.group, g.head_dim).sum(axis=1)
    ids = np.arange(65, dtype=np.int32)[None]
    for fmt in backend.formats:
        kv = store(k, v, fmt, 64, g, rng)
        want = attend_float64(q, kv, ids, record(65))
        assert relative_error(backend.attend(q, kv, ids, record(65)), want) < ACCURACY, fmt
        assert relative_error(attend_float64(q, kv, ids, record(64)), want) > 0.1
