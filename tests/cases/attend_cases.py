"""Tests of the exact ``attend`` on CUDA, for the simulator and a device: the bytes of ``reference.exact``.

The fixture ``backend`` is a :class:`support.backend.Backend`. Widths are the smallest that cross a tile of 16 cells, a
step of 32, a split and a tail.
"""

from collections import Counter

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda.toolchain.host import launches
from qsa.kernels.switches import override
from qsa.reference import exact
from qsa.reference.geometry import Geometry
from qsa.reference.kv import PagedKV
from support.arrays import bits

SMALL = Geometry(n_head=3, n_head_kv=1)
FORMATS = ("int8", "k8v4", "q4_0")


def random_kv(rng, fmt, cells, page_size=4, geometry=SMALL, spread=1.0, missing=()):
    """A PagedKV of random codes and scales behind a shuffled page table. Bytes outside the cells are random as well.

    ``spread``: of the scales' logarithms; some scales are 0. ``missing``: logical pages that are not resident.
    """
    pages = -(-cells // page_size)
    kv = PagedKV.new(fmt, cells, page_size, geometry, rng.permutation(pages))
    for side in (kv.pool.k, kv.pool.v):
        side.codes.view(np.uint8)[:] = rng.integers(0, 256, side.codes.view(np.uint8).shape)
        if side.coding == "int8":
            np.maximum(side.codes, -127, out=side.codes)
        if side.scale.size:
            scale = np.exp(spread * rng.standard_normal(side.scale.shape)) / 16
            scale[rng.random(scale.shape) < 0.05] = 0
            sign = np.where(rng.random(scale.shape) < 0.5, -1, 1) if side.coding == "q4_0" else 1
            side.scale[:] = np.minimum(scale, 65504) * sign
    kv.table[list(missing)] = -1
    return kv


def exact_problem(seed, widths, fmt="int8", cells=96, cap=None, geometry=SMALL, **options):
    """(q, kv, ids, steps) of rows that select ``widths`` cells; ids beyond a row's width are cells that exist."""
    rng = np.random.default_rng(seed)
    kv = random_kv(rng, fmt, cells, geometry=geometry, **options)
    q = rng.standard_normal((len(widths), geometry.n_head, geometry.head_dim)).astype(np.float32)
    ids = np.full((len(widths), cap or max(*widths, 1)), 1, np.int32)
    steps = np.zeros((len(widths), 4), np.int32)
    for row, width in enumerate(widths):
        ids[row, :width] = np.sort(rng.permutation(cells)[:width])
        steps[row] = cells - 1, cells, cells // 4, width
    return q, kv, ids, steps


def attend(backend, q, kv, ids, steps, slots=None, **options):
    """The output as a NumPy array. The call must return the array that it is given, which is full of NaN before."""
    out = backend.to_device(np.full(q.shape, np.nan, np.float32))
    assert backend.launch("attend", q, kv, ids, steps, slots, out=out, arithmetic="exact", **options) is out
    return backend.to_host(out)


def check(backend, q, kv, ids, steps, slots=None, **options):
    """Every byte of the output is the exact arithmetic's. Returns that output."""
    wanted = exact.attend(q, kv, ids, steps, slots)
    got = attend(backend, q, kv, ids, steps, slots, **options)
    np.testing.assert_array_equal(bits(got), bits(wanted))
    return wanted


@pytest.mark.parametrize("fmt", FORMATS)
def test_bytes_across_tiles_steps_and_blocks(backend, fmt):
    """Several blocks share a row of 70 cells."""
    check(backend, *exact_problem(1, [70], fmt))


@pytest.mark.parametrize("splits", [1, 2])
def test_split_bytes(backend, splits):
    """One block has all cells, or the second of two ends in a tail; ids is wider than the row."""
    check(backend, *exact_problem(2, [67], cap=90), schedule="split", splits=splits)


def test_widths(backend):
    """Rows of one call select no cell, one cell, and one cell more or less than a tile or a step."""
    wanted = check(backend, *exact_problem(3, [0, 1, 15, 17, 33]))
    assert not wanted[0].any()


def test_two_kv_heads_of_twelve(backend):
    """The real geometry: every head and column of the products is in use."""
    check(backend, *exact_problem(4, [20], geometry=Geometry()))


@pytest.mark.parametrize("page_size", [1, 64, 512])
def test_page_sizes(backend, page_size):
    check(backend, *exact_problem(5, [37], page_size=page_size))


@pytest.mark.parametrize("missing", [[0], [4], [9], range(10)], ids=["first", "middle", "last", "all"])
def test_cells_without_a_page_are_not_selected(backend, missing):
    """Ids of -1, or beyond the page table, are not selected either. The reference refuses the latter: it gets -1."""
    q, kv, ids, steps = exact_problem(6, [40], cells=40, missing=missing)
    ids[0, [0, 7, 39]] = -1
    wanted = exact.attend(q, kv, ids, steps)
    ids[0, 7] = 4000
    got = attend(backend, q, kv, ids, steps)
    np.testing.assert_array_equal(bits(got), bits(wanted))
    assert wanted.any() == (len(missing) < 10)


@pytest.mark.parametrize("fmt", ["int8", "q4_0"])
def test_queries_out_of_the_ordinary(backend, fmt):
    """A query that is not finite makes its head alone NaN. Others are 0, subnormal or so large that scores saturate."""
    q, kv, ids, steps = exact_problem(7, [9, 9, 9, 0], fmt)
    q[0, 0, 3], q[0, 1, 200] = np.nan, -np.inf
    q[1, 0], q[1, 1], q[1, 2] = 0, q[1, 1] * np.float32(1e-39), q[1, 2] * np.float32(1e-44)
    q[2, 0] *= np.float32(1e35)
    q[2, 1] *= np.float32(3e5)
    q[3, 2, 0] = np.inf
    wanted = check(backend, q, kv, ids, steps)
    poisoned = np.isnan(wanted).any(axis=-1)
    assert poisoned[0, :2].all() and not poisoned[1:].any()


@pytest.mark.parametrize("fmt", FORMATS)
def test_scales_from_the_smallest_to_the_largest(backend, fmt):
    """Scales over the whole range of fp16. Scores differ so much that a group's largest weight is small."""
    q, kv, ids, steps = exact_problem(8, [33], fmt, spread=6.0)
    kv.pool.v.scale[kv.table[ids[0, 5] // 4], 0, ids[0, 5] % 4] = 0
    q *= np.float32(4)
    check(backend, q, kv, ids, steps)


@pytest.mark.parametrize("top", [60, 120, 150, 190])
def test_outputs_far_below_the_top(backend, top):
    """The cell with the highest score has V scales of 0: the output comes from the others, whose weights are 2^-top."""
    q, kv, ids, steps = exact_problem(9, [3], cells=4, cap=3, geometry=Geometry(n_head=1, n_head_kv=1))
    kv.pool.k.codes[:], kv.pool.k.scale[:] = 0, 1
    kv.pool.v.scale[:] = 2
    q[:] = 0
    q[0, 0, 0] = 1
    # The score of code c is c / 16 * log2(e), so top / log2(e) * 16 codes apart; spread over two scales.
    high = kv.table[0], 0, ids[0, 1]
    kv.pool.k.codes[high][0], kv.pool.k.scale[high][0] = 127, np.float16(top * 16 / np.log2(np.e) / 127)
    kv.pool.v.scale[high] = 0
    wanted = check(backend, q, kv, ids, steps)
    assert (wanted != 0).any() == (top < 160)


def test_schedules_give_equal_bytes(backend):
    """Two rows, by ``step``, ``prompt`` and ``multi``."""
    inputs = exact_problem(10, [5, 3])
    for schedule in ("step", "prompt", "multi"):
        check(backend, *inputs, schedule=schedule)


def test_slots_of_one_format_and_of_several(backend):
    """A launch takes all slots of a format, and each of mixed formats. A row reads its own slot's pool and table."""
    rng = np.random.default_rng(11)
    q, _, ids, steps = exact_problem(11, [6] * 5, cells=24)
    slots = np.array([4, 0, 2, 1, 4], np.int32)
    kvs = [random_kv(rng, "int8", 24, page_size) for page_size in (4, 1, 8, 4, 2)]
    check(backend, q, kvs, ids, steps, slots)
    kvs = [random_kv(rng, fmt, 24) for fmt in FORMATS]
    check(backend, q[:3], kvs, ids[:3], steps[:3], np.array([1, 2, 0], np.int32))


def test_a_row_of_no_slot_is_left_alone(backend):
    q, kv, ids, steps = exact_problem(12, [6, 6], cells=24)
    wanted = exact.attend(q, [kv], ids, steps, np.zeros(2, np.int32))
    got = attend(backend, q, [kv, kv], ids, steps, np.array([7, 1], np.int32))
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(bits(got[1]), bits(wanted[1]))


def test_the_scratch_is_left_as_it_was_made(backend):
    """Blocks that wait for each other leave every word of the scratch as it was, for the next launch."""
    q, kv, ids, steps = exact_problem(13, [33])
    kernels = backend.load("attend")
    scratch = kernels.new_scratch(kernels.scratch_words([backend.to_device(kv)], 1, 33, "split", 2) + 5)
    before = backend.to_host(scratch)
    wanted = exact.attend(q, kv, ids, steps)
    for _ in range(2):
        got = attend(backend, q, kv, ids, steps, schedule="split", splits=2, scratch=scratch)
        np.testing.assert_array_equal(bits(got), bits(wanted))
        np.testing.assert_array_equal(backend.to_host(scratch), before)


def test_the_switch_splits_what_fits_and_leaves_the_rest(backend):
    """Off: the launches of ``batch``. On: those of ``split`` for int8; a format that it refuses keeps ``batch``."""
    inputs, others = exact_problem(30, [6, 5], cells=24), exact_problem(31, [4], "k8v4", cells=24)

    def launched(inputs, **options):
        before = Counter(launches())
        check(backend, *inputs, **options)
        return Counter(launches()) - before

    assert launched(inputs) == launched(inputs, schedule="batch")
    with override(split_attn=True):
        before = ops.refusals().get(("attend", "format"), 0)
        assert launched(inputs) == launched(inputs, schedule="split")
        assert ops.refusals().get(("attend", "format"), 0) == before
        assert launched(others) == launched(others, schedule="batch")
        assert ops.refusals()["attend", "format"] == before + 1


def refused(backend, reason, inputs, scratch=None, **options):
    """The call returns False, is counted under ``reason``, launches nothing and leaves output and scratch unchanged."""
    q = inputs[0]
    arrays = [backend.to_device(x) for x in inputs]
    out = backend.to_device(np.full(q.shape, 7, np.float32))
    before = ops.refusals().get(("attend", reason), 0)
    held = None if scratch is None else backend.to_device(scratch)
    launched = launches()
    answer = backend.module.attend(*arrays, None, out, arithmetic="exact", scratch=held, **options)
    assert answer is False and launches() == launched
    assert ops.refusals()["attend", reason] == before + 1
    assert (backend.to_host(out) == 7).all()
    if scratch is not None:
        np.testing.assert_array_equal(backend.to_host(held), scratch)


def test_refusals(backend):
    """Refused for the format, the geometry or the scratch."""
    for fmt, options in (("fp16", {}), ("k8v4", {"schedule": "split"}), ("q4_0", {"schedule": "split"})):
        refused(backend, "format", exact_problem(14, [70], fmt), **options)
    narrow = Geometry(n_head=4, n_head_kv=2, head_dim=64, n_rot=16)
    refused(backend, "geometry", exact_problem(15, [4], geometry=narrow))
    refused(backend, "geometry", exact_problem(16, [4], geometry=Geometry(n_head=13, n_head_kv=1)))
    split = {"schedule": "split", "splits": 2}
    refused(backend, "scratch", exact_problem(17, [70]), np.full(100, 3, np.int64), **split)
    refused(backend, "scratch", exact_problem(17, [70]), np.full(1 << 20, 3, np.float32), **split)


def test_mistakes_are_errors(backend):
    q, kv, ids, steps = (backend.to_device(x) for x in exact_problem(18, [70]))
    for options, message in (
        ({"schedule": "wide"}, "schedule"),
        ({"schedule": "batch", "splits": 2}, "splits"),
        ({"schedule": "split", "splits": 21}, "splits = 21: must be an integer from 1 to 20"),
        ({"splits": 1.5}, "splits = 1.5: must be an integer from 1 to 20"),
        ({"arithmetic": "double"}, "arithmetic"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.module.attend(q, kv, ids, steps, **options)
    for kvs, slots, message in (
        ([kv, kv], None, "slots: must name the slot of every row"),
        (kv, np.zeros(1, np.int64), "slots: int64"),
        ([kv], np.zeros(2, np.int32), r"slots: int32 \(2,\): must be int32 \(1,\)"),
        ([], None, r"kv: \[\]: must be a DeviceKV, or a list of one or more"),
        ([], np.zeros(1, np.int32), r"kv: \[\]: must be"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.module.attend(q, kvs, ids, steps, backend.to_device(slots), arithmetic="exact")
