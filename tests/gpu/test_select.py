"""``select`` on the device at full size: every schedule gives the ids of ``reference.exact``."""

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.reference import exact
from qsa.reference.geometry import REAL, Geometry, step_records
from support.guarded import captured

pytestmark = pytest.mark.gpu
backend = pytest.importorskip("qsa.kernels.cuda.backend", exc_type=ImportError)

SCHEDULES = ops.OPERATIONS["select"].schedules
RULES = ("blocks", "cells")
REGISTER_BLOCKS = 33 * 1024


def clustered(rng, n):
    """The best lie side by side, as with a context that is about its newest part."""
    scores = rng.standard_normal(n).astype(np.float32)
    scores[-700:] += 50
    return scores


def extremes(rng, n):
    """Few levels with NaN, infinities and both zeros."""
    return rng.choice(np.array([-1, -0.0, 0.0, 1, 2, np.nan, np.inf, -np.inf], np.float32), n)


MAKERS = {
    "normal": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "relu": lambda rng, n: np.maximum(rng.standard_normal(n), 0.5).astype(np.float32),
    "levels": lambda rng, n: rng.integers(0, 64, n).astype(np.float32),
    "equal": lambda rng, n: np.full(n, 3, np.float32),
    "ascending": lambda rng, n: np.arange(n, dtype=np.float32),
    "descending": lambda rng, n: -np.arange(n, dtype=np.float32),
    "close": lambda rng, n: (1 + rng.integers(0, 4096, n) * 2.0**-23).astype(np.float32),
    "clustered": clustered,
    "extremes": extremes,
    "nan": lambda rng, n: np.full(n, np.nan, np.float32),
}


def score_rows(rng, counts, max_blocks, make):
    """Scores of rows of ``counts`` cells; what a row does not have is +inf, which would win."""
    scores = np.full((len(counts), max_blocks), np.inf, np.float32)
    for row, n_kv in enumerate(counts):
        scores[row, : n_kv // 4] = make(rng, n_kv // 4)
    return scores


def check(backend, counts, max_blocks, make, rule, schedule):
    """Ids of the exact selection, -1 beyond, guard words intact, inputs unchanged."""
    rng = np.random.default_rng(len(counts) + max_blocks)
    scores, steps = score_rows(rng, counts, max_blocks, make), step_records([n - 1 for n in counts], rule)
    expected = exact.select(scores, steps, np.empty((len(counts), REAL.max_width + 5), np.int32), rule=rule)
    ids = backend.guarded(expected.shape, np.int32, 77)
    scratch = backend.guarded(backend.load("select").scratch_shape(len(counts), max_blocks), np.int32, -5)
    scratch.array[:, 0] = 0
    given = backend.to_device(scores)
    for _ in range(2):
        ids.array.fill(77)
        options = {"rule": rule, "schedule": schedule, "scratch": scratch.array}
        assert backend.module.select(given, backend.to_device(steps), ids.array, **options) is ids.array
        np.testing.assert_array_equal(backend.to_host(ids.array), expected)
    ids.check("ids")
    scratch.check("scratch")
    assert not scratch.array[:, 0].any()
    np.testing.assert_array_equal(backend.to_host(given).view(np.uint32), scores.view(np.uint32))


@pytest.mark.parametrize("make", ["normal", "levels", "equal"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_around_the_budget(backend, schedule, rule, make):
    check(backend, [0, 1, 3, 4, 0, *range(2046, 2061)], 600, MAKERS[make], rule, schedule)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kinds_of_scores(backend, schedule, make):
    check(backend, [65537, 8193, 4098, 131071], REGISTER_BLOCKS, MAKERS[make], "cells", schedule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_register_limit(backend, schedule, rule):
    beyond = [] if schedule == "registers" else [135172, 135173]
    counts = [135168 + i for i in range(-2, 4)] + beyond
    check(backend, counts, REGISTER_BLOCKS + len(beyond), MAKERS["relu"], rule, schedule)


@pytest.mark.parametrize("make", ["normal", "levels", "clustered", "equal", "extremes"])
@pytest.mark.parametrize("schedule", ["wide", "scan", "spread", "bounded"])
def test_long_contexts(backend, schedule, make):
    counts = [262144 + i for i in range(5)] + [1 << 20, (1 << 20) + 3, 69632, 69636]
    check(backend, counts, (1 << 18) + 3, MAKERS[make], "cells", schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_rows_than_a_grid_dimension(backend, schedule):
    geometry = Geometry(budget=16)
    counts = [9 + i for i in range(40)]
    scores = score_rows(np.random.default_rng(4), counts, 13, MAKERS["levels"])
    steps = step_records([n - 1 for n in counts], geometry=geometry)
    expected = exact.select(scores, steps, geometry=geometry)
    scores, steps, expected = (backend.to_device(np.tile(x, (1650, 1))) for x in (scores, steps, expected))
    ids = backend.guarded(expected.shape, np.int32, 77)
    backend.module.select(scores, steps, ids.array, geometry=geometry, schedule=schedule)
    assert (ids.array == expected).all()
    ids.check("ids")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_graph_serves_growing_and_shrinking_contexts(backend, schedule):
    max_blocks = REGISTER_BLOCKS if schedule == "registers" else (1 << 18) + 1
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((3, max_blocks)).astype(np.float32)
    steps = backend.to_device(step_records([-1] * 3))
    ids = backend.guarded((3, REAL.max_width), np.int32, 77)
    words = backend.load("select").scratch_shape(3, max_blocks)
    given, scratch = backend.to_device(scores), backend.to_device(np.zeros(words, np.int32))
    options = {"schedule": schedule, "scratch": scratch}
    replay = captured(lambda: backend.module.select(given, steps, ids.array, **options))
    for cells in (1, 7, 2048, 2055, 80001, 130000, 9000, 2051, 0, 120003):
        records = step_records([cells - 1, -1, max(cells - 3, 0)])
        ids.array.fill(77)
        steps.set(records)
        replay()
        np.testing.assert_array_equal(backend.to_host(ids.array), exact.select(scores, records))
    ids.check("ids")


def test_a_million_cells_by_default(backend):
    """No schedule named, no scratch given: bounded or spread by the device, and captured with a scratch that the stream
    keeps, where there is one."""
    rng, max_blocks = np.random.default_rng(6), (1 << 18) + 1
    assert backend.load("select").default_schedule(2, max_blocks) in ("bounded", "spread")
    scores, steps = rng.standard_normal((2, max_blocks)).astype(np.float32), backend.to_device(step_records([-1] * 2))
    ids, given = backend.guarded((2, REAL.max_width), np.int32, 77), backend.to_device(scores)
    replay = captured(lambda: backend.module.select(given, steps, ids.array))
    for cells in (1 << 20, 2055, 300000, (1 << 20) + 3):
        records = step_records([cells - 1, cells - 5])
        ids.array.fill(77)
        steps.set(records)
        for _ in range(2):
            replay()
            np.testing.assert_array_equal(backend.to_host(ids.array), exact.select(scores, records))
    ids.check("ids")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_repeats_are_equal(backend, schedule):
    max_blocks = 32770
    scores = backend.to_device(MAKERS["levels"](np.random.default_rng(3), 4 * max_blocks).reshape(4, max_blocks))
    steps = backend.to_device(step_records([4 * max_blocks - 1 - i for i in range(4)], "cells"))
    scratch = backend.to_device(np.zeros((4, 40000), np.int32))
    options = {"rule": "cells", "schedule": schedule, "scratch": scratch}
    first = backend.module.select(scores, steps, **options)
    for _ in range(250):
        assert (backend.module.select(scores, steps, **options) == first).all()
