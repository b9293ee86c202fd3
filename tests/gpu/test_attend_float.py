"""The float attention on a device: real sizes, every format, the draft layer's window, graphs, repeated bytes."""

import numpy as np
import pytest

from qsa.kernels.switches import Switches
from qsa.reference.geometry import REAL
from support.arrays import generator, same_bytes
from support.float_attention import CUT, FORMATS, check_error, queries, records, selection, store

pytestmark = pytest.mark.gpu

CAP = REAL.max_width
WIDTHS = (1, 63, 64, 65, 729, 2047, 2048, 2051)


@pytest.fixture(scope="module")
def module(backend):
    return backend.load("attend_float.launch")


@pytest.fixture(scope="module")
def problems():
    """Format -> (q, PagedKV, ids, steps) of eight rows over 9,000 cells, a few of whose pages are not resident."""
    made = {}
    for seed, fmt in enumerate(FORMATS):
        rng = generator(seed)
        kv = store(rng, fmt, 9000, REAL, missing=(0, 700, 701, 2249))
        ids = selection(rng, WIDTHS, 9000, CAP)
        ids[1] = np.arange(CAP)
        ids[-1, :CAP] = np.arange(9000 - CAP, 9000)
        ids[4, ::50] = -1
        made[fmt] = queries(rng, len(WIDTHS), REAL), kv, ids, records(WIDTHS)
    return made


class Call:
    """One problem on the device. Output and scratch are full of NaN before every run."""

    def __init__(self, backend, problem):
        self.backend, self.module = backend, backend.load("attend_float.launch")
        q, kv, ids, steps = problem
        self.arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
        self.out = backend.to_device(np.full(q.shape, np.nan, np.float32))
        shape = self.module.scratch_shape(len(q), ids.shape[1], REAL)
        self.scratch = backend.to_device(np.full(shape, np.nan, np.float32))

    def run(self, slots=None, **options):
        self.out.fill(np.nan)
        self.scratch.fill(np.nan)
        result = self.module.attend_float(*self.arrays, slots, self.out, scratch=self.scratch, **options)
        return result if result is False else self.backend.to_host(result)


@pytest.mark.parametrize("fmt", FORMATS)
def test_error(backend, problems, fmt):
    mine, theirs = check_error(Call(backend, problems[fmt]).run(), *problems[fmt])
    print(f"\n{fmt}: {mine:.2e} against float64; NumPy's float32 chunks {theirs:.2e}")


@pytest.mark.parametrize("fmt", FORMATS)
def test_schedules_give_the_same_bits_row_for_row(backend, problems, fmt):
    call = Call(backend, problems[fmt])
    want = call.run()
    for schedule in ("step", "multi", "prompt"):
        assert same_bytes(call.run(schedule=schedule), want)
    q, kv, ids, steps = problems[fmt]
    for row, width in enumerate(WIDTHS):
        alone = slice(row, row + 1)
        call = Call(backend, (q[alone], kv, ids[alone, :width].copy(), steps[alone]))
        assert same_bytes(call.run(), want[alone])


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("splits", [None, 1, 7])
def test_split(backend, problems, fmt, splits):
    """On tensor cores where the device has them for such blocks; a row's bits are those of any batch of rows, whose
    blocks take a piece, a run of pieces, or all of them."""
    q, kv, ids, steps = problems[fmt]
    want = Call(backend, problems[fmt]).run(schedule="split", splits=splits)
    if want is False:
        pytest.skip("this device's blocks have no room for the form on tensor cores, so split takes int8 alone")
    mine, theirs = check_error(want, q, kv, ids, steps)
    print(f"\n{fmt}, split in {splits}: {mine:.2e} against float64; NumPy's float32 chunks {theirs:.2e}")
    for rows in (slice(0, 1), slice(7, 8), slice(2, 6)):
        part = Call(backend, (q[rows], kv, ids[rows], steps[rows]))
        assert same_bytes(part.run(schedule="split", splits=splits), want[rows])
    for times in (8, 40):
        many = Call(backend, [np.repeat(x, times, axis=0) if isinstance(x, np.ndarray) else x for x in problems[fmt]])
        assert same_bytes(many.run(schedule="split", splits=splits), np.repeat(want, times, axis=0))


@pytest.mark.parametrize("fmt", ["int8", "q4_0"])
def test_merge_active_has_the_same_bits(backend, module, problems, fmt, monkeypatch):
    call = Call(backend, problems[fmt])
    want = call.run()
    monkeypatch.setattr(module, "switches", lambda: Switches(merge_active=True))
    assert same_bytes(call.run(), want)


@pytest.mark.parametrize("options", [{}, {"schedule": "split"}], ids=["batch", "split"])
@pytest.mark.parametrize("active", [False, True])
def test_the_draft_window(backend, module, options, active, monkeypatch):
    """One row over 32,768 cells: 512 chunks; then over 5 of them."""
    monkeypatch.setattr(module, "switches", lambda: Switches(merge_active=active))
    rng = generator(40)
    kv = store(rng, "int8", 32768, REAL)
    for width in (32768, 5):
        problem = queries(rng, 1, REAL), kv, np.arange(32768, dtype=np.int32)[None], records([width])
        check_error(Call(backend, problem).run(**options), *problem, cut=CUT if options else 0.0)


def test_more_rows_than_the_scratch_holds(backend, problems):
    q, kv, ids, steps = (np.repeat(x, 40, axis=0) if isinstance(x, np.ndarray) else x for x in problems["int8"])
    want = Call(backend, problems["int8"]).run()
    call = Call(backend, (q, kv, ids, steps))
    call.scratch = call.scratch[: 33 * 24 * 258 * 7]
    assert same_bytes(call.run(schedule="prompt"), np.repeat(want, 40, axis=0))


def test_slots_of_one_and_of_several_formats(backend, problems):
    slots = np.array([3, 0, 1, 2, 3, 1, 0, 2], np.int32)
    q, _, ids, steps = problems["int8"]
    for kvs in ([problems[f][1] for f in FORMATS], [problems["int8"][1]] * 4):
        call = Call(backend, (q, kvs, ids, steps))
        got = call.run(backend.to_device(slots))
        for slot, kv in enumerate(kvs):
            want = Call(backend, (q, kv, ids, steps)).run()
            assert same_bytes(got[slots == slot], want[slots == slot])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_query_that_is_not_finite(backend, problems, value):
    q, kv, ids, steps = problems["int8"]
    want = Call(backend, problems["int8"]).run()
    q = q.copy()
    q[6, 13, 200] = value
    got = Call(backend, (q, kv, ids, steps)).run()
    assert np.isnan(got[6, 13]).all()
    got[6, 13] = want[6, 13]
    assert same_bytes(got, want)


@pytest.mark.parametrize("options", [{}, {"schedule": "split"}], ids=["batch", "split"])
def test_a_captured_graph_follows_records_ids_and_pages(backend, module, problems, options):
    q, kv, ids, steps = problems["int8"]
    call = Call(backend, (q, kv, ids, np.zeros_like(steps)))
    _, kv_device, ids_device, steps_device = call.arrays
    call.run(**options)
    arrays, scratch = (*call.arrays, None, call.out), call.scratch
    replay = backend.captured(lambda: module.attend_float(*arrays, scratch=scratch, **options))
    steps_device.set(steps)
    replay()
    assert same_bytes(backend.to_host(call.out), Call(backend, problems["int8"]).run(**options))
    moved = type(kv)(kv.pool, np.where(np.arange(len(kv.table)) % 3 == 0, -1, kv.table))
    ids, steps = ids[:, ::-1].copy(), records([CAP] * len(q))
    kv_device.table.set(moved.table)
    ids_device.set(ids)
    steps_device.set(steps)
    replay()
    assert same_bytes(backend.to_host(call.out), Call(backend, (q, moved, ids, steps)).run(**options))


@pytest.mark.parametrize("options", [{}, {"schedule": "split"}], ids=["batch", "split"])
def test_250_repeats_give_equal_bytes(backend, problems, options):
    call = Call(backend, problems["int8"])
    want = call.run(**options)
    for _ in range(250):
        assert same_bytes(call.run(**options), want)
