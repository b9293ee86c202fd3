"""The exact ``attend`` on a device: the simulator's cases, full size, repeats, graphs, nothing written elsewhere."""

import numpy as np
import pytest

from cases.attend_cases import *  # noqa: F403
from cases.attend_cases import FORMATS, attend, check, exact_problem, random_kv
from cases.common_cells_cases import *  # noqa: F403
from qsa.kernels.switches import override
from qsa.reference import exact
from qsa.reference.geometry import REAL
from support.arrays import bits
from support.plan_runs import clusters_of, recorded_runs

pytestmark = pytest.mark.gpu

REPEATS = 250


def full(seed, rows, fmt="int8", cells=16384, width=2051, slots=1, **options):
    """q, K/V of ``slots`` slots, ids and steps of rows of full width, and each row's slot."""
    rng = np.random.default_rng(seed)
    kvs = [random_kv(rng, fmt, cells, geometry=REAL, **options) for _ in range(slots)]
    q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim)).astype(np.float32)
    ids = np.stack([np.sort(rng.permutation(cells)[:width]) for _ in range(rows)]).astype(np.int32)
    steps = np.zeros((rows, 4), np.int32)
    steps[:] = cells - 1, cells, cells // 4, width
    return q, kvs if slots > 1 else kvs[0], ids, steps, np.arange(rows, dtype=np.int32) % slots


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_full_width(backend, fmt, rows):
    """Many blocks a row, a few, and one (two where a block's cells take more room)."""
    q, kv, ids, steps, _ = full(30 + rows, rows, fmt)
    check(backend, q, kv, ids, steps)


@pytest.mark.parametrize("splits", [1, 2, 7, 20])
def test_full_width_in_splits(backend, splits):
    q, kv, ids, steps, _ = full(31, 2)
    check(backend, q, kv, ids, steps, schedule="split", splits=splits)


@pytest.mark.parametrize("page_size", [1, 64, 512])
def test_full_width_by_page_size(backend, page_size):
    q, kv, ids, steps, _ = full(32, 2, page_size=page_size)
    check(backend, q, kv, ids, steps)


def test_widths_around_a_split(backend):
    """Rows of one call with widths 1 to 2,051, tails 0 to 3, some without a page."""
    widths = [0, 1, 63, 64, 65, 1023, *range(2044, 2052)]
    q, kv, ids, steps = exact_problem(33, widths, cells=4096, geometry=REAL, missing=range(0, 1024, 7))
    for schedule in ("batch", "split", "step"):
        check(backend, q, kv, ids, steps, schedule=schedule)


def test_a_wide_window(backend):
    """The draft's 32,768 cells: more than a block's shared memory holds."""
    q, kv, ids, steps, _ = full(34, 1, cells=32768, width=32768)
    check(backend, q, kv, ids, steps)


def test_a_prompt(backend):
    """Thousands of rows of several slots; every 97th is compared."""
    q, kvs, ids, steps, slots = full(35, 3000, cells=2048, width=200, slots=4)
    got = attend(backend, q, kvs, ids, steps, slots, schedule="prompt")
    some = slice(None, None, 97)
    wanted = exact.attend(q[some], kvs, ids[some], steps[some], slots[some])
    np.testing.assert_array_equal(bits(got[some]), bits(wanted))
    assert np.isfinite(got).all()


@pytest.mark.parametrize("schedule", ["step", "batch", "split", "multi", "prompt"])
def test_repeats(backend, schedule):
    """250 launches of 5 rows of two slots, all equal to the first, which is right."""
    import cupy

    q, kvs, ids, steps, slots = full(36, 5, slots=2)
    wanted = cupy.asarray(bits(check(backend, q, kvs, ids, steps, slots, schedule=schedule)))
    arrays = [backend.to_device(x) for x in (q, kvs, ids, steps, slots)]
    out, different = cupy.full_like(arrays[0], np.nan), cupy.zeros((), "int64")
    for _ in range(REPEATS):
        out.fill(np.nan)
        backend.module.attend(*arrays, out, schedule=schedule, arithmetic="exact")
        different += (out.view("uint32") != wanted).any()
    assert int(different) == 0


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_repeats_of_clusters(backend, rows):
    """250 launches of rows that on sm_90 are a cluster each, behind widths that leave blocks without a cell."""
    import cupy

    q, kv, ids, steps, _ = full(41, rows)
    different = cupy.zeros((), "int64")
    for width in (2051, 700, 3, 0):
        steps[:, 3] = width
        wanted = cupy.asarray(bits(check(backend, q, kv, ids, steps)))
        arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
        out = cupy.full_like(arrays[0], np.nan)
        for _ in range(REPEATS):
            out.fill(np.nan)
            backend.module.attend(*arrays, None, out, arithmetic="exact")
            different += (out.view("uint32") != wanted).any()
    assert int(different) == 0


SIZES = {1: 13, 2: 8, 3: 13, 4: 9, 5: 8, 6: 8, 7: 8, 8: 6, 16: 3, 17: 1}
"""Rows -> blocks of a cluster on an H200, measured as the fastest there."""


def test_rows_are_clusters_where_the_device_holds_them(backend, monkeypatch):
    """On sm_90, in sizes of the table; none elsewhere, in other formats, of more rows."""
    from qsa.kernels.cuda.toolchain.compiler import properties

    runs = recorded_runs(monkeypatch, backend.load("common.plans"))
    with override(split_attn=None):
        for rows in SIZES:
            check(backend, *full(42, rows)[:4])
        check(backend, *full(42, 1, "k8v4")[:4])
    table = backend.load("common.defaults").TABLES.get(properties().compute_capability)
    found = clusters_of(runs)
    assert set(found) <= {
        1,
        *(table.clusters if table else ()),
        *(rule.blocks for rule in (table.few if table else ())),
    }
    if "H200" in properties().name:
        assert found == [*SIZES.values(), 1]


def test_the_switch_at_0_launches_the_clusters_of_before(backend, monkeypatch):
    """Of 13 blocks on sm_90, if the device holds them, for one row alone."""
    from qsa.kernels.cuda.toolchain.compiler import properties

    planning = backend.load("attend_exact.plan")
    runs = recorded_runs(monkeypatch, backend.load("common.plans"))
    with override(split_attn=False):
        check(backend, *full(42, 1)[:4])
        check(backend, *full(42, 2)[:4])
    clustered = properties().compute_capability == planning.CLUSTERED
    assert clusters_of(runs) == [planning.CLUSTER if clustered else 1, 1]


@pytest.mark.parametrize(("schedule", "rows"), [("batch", 1), ("batch", 2), ("split", 2)])
def test_a_graph_follows_what_changes(backend, schedule, rows):
    """Captured at widths 5 and 2,051, replayed with other queries, ids, widths and page tables: nothing baked in."""
    rng = np.random.default_rng(37)
    q, kv, ids, steps, _ = full(37, rows)
    steps[0, 3] = 5
    arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
    out = backend.to_device(np.full(q.shape, np.nan, np.float32))
    replay = backend.captured(lambda: backend.module.attend(*arrays, None, out, schedule=schedule, arithmetic="exact"))
    for widths in ([2051, 5], [0, 64], [700, 2051]):
        q = rng.standard_normal(q.shape).astype(np.float32)
        ids = np.stack([np.sort(rng.permutation(16384)[:2051]) for _ in range(rows)]).astype(np.int32)
        steps[:, 3] = widths[:rows]
        kv.table = rng.permutation(kv.table).astype(np.int32)
        buffers = arrays[0], arrays[1].table, arrays[2], arrays[3]
        for buffer, now in zip(buffers, (q, kv.table, ids, steps), strict=True):
            buffer.set(now)
        out.fill(np.nan)
        replay()
        wanted = exact.attend(q, kv, ids, steps)
        np.testing.assert_array_equal(bits(out.get()), bits(wanted))


def test_nothing_is_written_beyond_the_buffers(backend):
    """Guards around output and scratch; rows that the launch does not have are NaN and stay so."""
    q, kv, ids, steps, _ = full(38, 4)
    arrays = [backend.to_device(x) for x in (q[:3], kv, ids[:3], steps[:3])]
    module, unset = backend.load("attend"), backend.load("attend_exact.exchange_scratch").UNSET
    words = module.scratch_words([arrays[1]], 3, ids.shape[1], "split")
    out, scratch = backend.guarded(q.shape, np.float32), backend.guarded((words,), np.int64, unset)
    options = {"schedule": "split", "scratch": scratch.array, "arithmetic": "exact"}
    assert backend.module.attend(*arrays, None, out.array[:3], **options) is not False
    out.check("out")
    scratch.check("scratch")
    wanted = exact.attend(q[:3], kv, ids[:3], steps[:3])
    np.testing.assert_array_equal(bits(out.array.get()[:3]), bits(wanted))
    assert np.isnan(out.array.get()[3]).all()
    assert (scratch.array.get() == unset).all()
