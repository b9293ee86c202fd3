"""The kernel of few rows (``kernels/cuda/attend_few``) in the simulator: the bytes of ``reference.exact``."""

from functools import partial

import numpy as np
import pytest

from cases.attend_cases import attend, check, exact_problem
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import Properties, launches
from qsa.reference import exact
from qsa.reference.geometry import Geometry
from support.arrays import bits

tables, plans, module = (simulator.load(name) for name in ("common.defaults", "common.plans", "attend"))
exchange, layout, values, planning = (
    simulator.load(f"attend_few.{name}") for name in ("exchange", "layout", "values", "plan")
)

form_of = planning.form_of
LARGE = Properties("large", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20)


@pytest.fixture(params=(1, 3))
def parts(request):
    """Blocks of 4 or of 12 warps."""
    return request.param


@pytest.fixture
def few(monkeypatch, parts):
    """A function that sends calls of int8 through the kernel, in clusters of up to so many blocks."""

    def use(blocks):
        table = tables.H200._replace(few=(tables.Few(8, blocks),), few_cells=1)
        monkeypatch.setattr(tables, "TABLES", {(9, 0): table})
        monkeypatch.setattr(planning, "form_of", partial(form_of, parts=parts))
        monkeypatch.setattr(module, "_plans", plans.PlanCache())
        monkeypatch.setattr(simulator.settings, "properties", LARGE)

    return use


@pytest.fixture(autouse=True)
def launched_it(request):
    """Every test of this file that runs the kernel runs this one and no other."""
    before = launches()
    yield
    after = launches()
    if "few" in request.fixturenames:
        assert after.get("attend_few", 0) > before.get("attend_few", 0)
        assert after.get("attend_exact", 0) == before.get("attend_exact", 0)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_bytes_of_rows_and_widths(backend, few, order):
    """Blocks without a cell, a row without any, a tile and a step that end early; ids are wider than the rows."""
    few(3)
    with simulator.configured(order=order):
        check(backend, *exact_problem(50, [0, 1, 33, 70], cap=90))


def test_bytes_of_several_turns(backend, few, parts):
    """Warps that score several tiles, look up several cells and weigh several steps, in two blocks of 256 cells; and
    of 288, whose sums no int32 holds."""
    few(2)
    for width in (500, 550)[:parts]:
        check(backend, *exact_problem(51, [width], cells=600))


def test_two_kv_heads_of_twelve(backend, few):
    few(2)
    check(backend, *exact_problem(52, [64], geometry=Geometry()))


@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_page_sizes(backend, few, page_size):
    few(2)
    check(backend, *exact_problem(53, [37, 9], page_size=page_size))


def test_cells_that_are_not_selected(backend, few):
    """Pages that are not resident, ids of -1 and ids beyond the page table; behind the width there are ids as well."""
    few(2)
    q, kv, ids, steps = exact_problem(54, [40, 30], cells=40, cap=44, missing=[0, 4])
    ids[0, [0, 7, 39]] = -1
    wanted = exact.attend(q, kv, ids, steps)
    ids[0, 7], ids[1, 30:] = 4000, 1 << 30
    np.testing.assert_array_equal(bits(attend(backend, q, kv, ids, steps)), bits(wanted))


def test_queries_out_of_the_ordinary(backend, few):
    few(2)
    q, kv, ids, steps = exact_problem(56, [40, 40, 40, 0])
    q[0, 0, 3], q[0, 1, 200] = np.nan, -np.inf
    q[1, 0], q[1, 1], q[1, 2] = 0, q[1, 1] * np.float32(1e-39), q[1, 2] * np.float32(1e-44)
    q[2, 0] *= np.float32(1e35)
    q[2, 1] *= np.float32(3e5)
    q[3, 2, 0] = np.inf
    wanted = check(backend, q, kv, ids, steps)
    poisoned = np.isnan(wanted).any(axis=-1)
    assert poisoned[0, :2].all() and not poisoned[1:].any()


def test_scales_from_the_smallest_to_the_largest(backend, few):
    few(2)
    q, kv, ids, steps = exact_problem(57, [43], spread=6.0)
    check(backend, q * np.float32(4), kv, ids, steps)


def test_the_largest_sums(backend, few, parts):
    """Two blocks whose cells all have the largest codes, scales and weights: no int32 overflows."""
    few(2)
    for width in (512, 576)[:parts]:
        q, kv, ids, steps = exact_problem(58, [width], cells=width, geometry=Geometry(n_head=1, n_head_kv=1))
        kv.pool.k.codes[:], kv.pool.v.codes[:] = 0, -127
        kv.pool.v.scale[:] = np.float16(1 / 3)
        check(backend, q, kv, ids, steps)


def test_no_lane_has_more_cells_than_its_sums_hold():
    """Two limbs of a weight, 65,535 at most, times codes of 127."""
    assert values.LANE_CELLS * 65535 * 127 < 1 << 31 <= (values.LANE_CELLS + 1) * 65535 * 127


def test_the_slot_of_every_row_of_one_pool(backend, few):
    """Rows of one pool are all its own, whatever ``slots`` says."""
    few(2)
    q, kv, ids, steps = exact_problem(55, [40])
    got = attend(backend, q, kv, ids, steps, np.array([3], np.int32))
    np.testing.assert_array_equal(bits(got), bits(exact.attend(q, kv, ids, steps)))


@pytest.mark.parametrize("cap, blocks, found", [(2051, 13, (13, 160)), (2051, 8, (8, 288)), (65, 13, (3, 32))])
def test_a_share_is_a_multiple_of_a_step(cap, blocks, found):
    """No more blocks than there are shares."""
    kv = simulator.load("device").to_device(exact_problem(59, [1])[1])
    with simulator.configured(properties=LARGE):
        form = form_of(kv, cap, blocks)
    assert (form.blocks, form.room) == found


@pytest.mark.parametrize("cap", [0, 32, 4000])
def test_what_it_does_not_take(cap):
    """No cell, one share, more cells than a block's sums hold."""
    kv = simulator.load("device").to_device(exact_problem(59, [1])[1])
    with simulator.configured(properties=LARGE):
        assert form_of(kv, cap, 2) is None


@pytest.mark.parametrize("own", [8, 12, 40, 64, 256])
def test_owners_by_a_reciprocal(own):
    """Of every index that a launch has: pairs of a block's sums, and blocks of a grid."""
    reciprocal = exchange.reciprocal_of(own)
    for index in range(layout.PAIRS + 1):
        assert exchange.owner_of(index, reciprocal) == index // own
