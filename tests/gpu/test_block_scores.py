"""``block_scores`` on the device at full size: every schedule gives the bytes of ``reference.exact``."""

import numpy as np
import pytest

from cases.known_faults import index_queries
from qsa.kernels import ops
from qsa.reference import exact
from qsa.reference.geometry import step_records
from qsa.reference.index import INDEX_FORMATS, Index
from support.guarded import captured

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)

SCHEDULES = ops.OPERATIONS["block_scores"].schedules
ANY_ROWS = ("warp", "prompt")
POISON = np.float32(-7.5)


@pytest.fixture(params=INDEX_FORMATS)
def format(request):
    return request.param


def index_of(rng, max_blocks, format):
    """An index of random keys of different sizes, some with NaN, infinities or subnormals."""
    index = Index(max_blocks, np.ones(128, np.float32), format=format)
    keys = rng.standard_normal(index.pooled.shape, dtype=np.float32)
    keys *= np.ldexp(np.float32(1), rng.integers(-9, 9, (max_blocks, 1)))
    for value in (np.nan, np.inf, -np.inf, 1e-41):
        keys[rng.integers(0, max_blocks, 3), rng.integers(0, 128, 3)] = value
    index.set_pooled(slice(None), keys)
    index.set_dead(rng.standard_normal(128, dtype=np.float32))
    return index


def check(backend, positions, max_blocks, schedule, format):
    """Bytes of the exact arithmetic, in what is written and in what is left alone."""
    rng = np.random.default_rng(max_blocks + len(positions))
    index, q, steps = index_of(rng, max_blocks, format), index_queries(rng, len(positions)), step_records(positions)
    expected = np.full((len(positions), max_blocks), POISON)
    exact.block_scores(q, index, steps, expected)
    out = backend.guarded(expected.shape, np.float32, POISON)
    arguments = (backend.to_device(q), backend.to_device(index), backend.to_device(steps))
    assert backend.module.block_scores(*arguments, out.array, schedule=schedule) is out.array
    np.testing.assert_array_equal(backend.to_host(out.array).view(np.uint32), expected.view(np.uint32))
    out.check("out")


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_window(backend, schedule, rows, format):
    check(backend, [65535 - rows + i for i in range(rows)], 17000, schedule, format)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_short_contexts(backend, schedule, format):
    for start in (0, 8, 16):
        check(backend, [start + i for i in range(8)], 10, schedule, format)
    check(backend, [-1, 2, -1], 10, schedule, format)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("cells", [262143, 262144, 262147, 1 << 20])
def test_long_contexts(backend, schedule, cells, format):
    # 262,144 cells are 65,536 blocks: one more than a grid's second dimension.
    check(backend, [cells - 1, cells - 2], cells // 4 + 2, schedule, format)


@pytest.mark.parametrize("schedule", ANY_ROWS)
def test_prompt(backend, schedule, format):
    check(backend, list(range(3000, 3077)), 800, schedule, format)


@pytest.mark.parametrize("schedule", ANY_ROWS)
def test_more_rows_than_a_grid_dimension(backend, schedule, format):
    rng = np.random.default_rng(4)
    groups = 65535 + 3
    shared = 32 if format == "int16" else 8
    repeats = -(-groups * (1 if schedule == "warp" else shared) // 19)
    index, q, steps = index_of(rng, 5, format), index_queries(rng, 19), step_records(range(19))
    expected = np.full((19, 5), POISON)
    exact.block_scores(q, index, steps, expected)
    tiled = [backend.to_device(np.tile(x, (repeats, *[1] * (x.ndim - 1)))) for x in (q, steps, expected)]
    out = backend.guarded(tiled[2].shape, np.float32, POISON)
    backend.module.block_scores(tiled[0], backend.to_device(index), tiled[1], out.array, schedule=schedule)
    assert (out.array.view(np.uint32) == tiled[2].view(np.uint32)).all()
    out.check("out")


def test_scores_beyond_two_to_the_31(backend, format):
    # Offsets of the last rows pass 2^31 elements, so 2^33 bytes.
    rng = np.random.default_rng(1)
    rows, max_blocks = 8200, (1 << 18) + 2
    index, q = index_of(rng, max_blocks, format), index_queries(rng, rows)
    steps = step_records([(1 << 20) - 1 if i in (0, rows - 1) else 41 for i in range(rows)])
    out = backend.guarded((rows, max_blocks), np.float32, POISON)
    backend.module.block_scores(*map(backend.to_device, (q, index, steps)), out.array, schedule="prompt")
    ends = [0, 1, rows - 2, rows - 1]
    expected = np.full((4, max_blocks), POISON)
    exact.block_scores(q[ends], index, steps[ends], expected)
    np.testing.assert_array_equal(backend.to_host(out.array[ends]).view(np.uint32), expected.view(np.uint32))
    out.check("out")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_graph_serves_growing_and_shrinking_contexts(backend, schedule, format):
    rng = np.random.default_rng(2)
    index, q = index_of(rng, 30001, format), index_queries(rng, 3)
    steps = backend.to_device(step_records([-1] * 3))
    out = backend.guarded((3, 30001), np.float32, POISON)
    given = backend.to_device(q), backend.to_device(index)
    replay = captured(lambda: backend.module.block_scores(*given, steps, out.array, schedule=schedule))
    for cells in (1, 7, 4096, 119999, 120003, 9, 0, 66):
        records = step_records([cells - 1, -1, max(cells - 3, 0)])
        expected = np.full((3, 30001), POISON)
        exact.block_scores(q, index, records, expected)
        out.array.fill(POISON)
        steps.set(records)
        replay()
        np.testing.assert_array_equal(backend.to_host(out.array).view(np.uint32), expected.view(np.uint32))
    out.check("out")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_repeats_are_equal(backend, schedule, format):
    rng = np.random.default_rng(3)
    given = backend.to_device(index_queries(rng, 5)), backend.to_device(index_of(rng, 20002, format))
    steps = backend.to_device(step_records([80000 + i for i in range(5)]))
    first = backend.module.block_scores(*given, steps, schedule=schedule).view(np.int32)
    for _ in range(250):
        assert (backend.module.block_scores(*given, steps, schedule=schedule).view(np.int32) == first).all()
