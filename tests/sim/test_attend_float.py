"""The float attention on CUDA, in the simulator: its error, its bits across schedules, what it masks."""

from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels.cuda import simulator
from qsa.kernels.switches import Switches
from qsa.reference.attend import attend
from qsa.reference.geometry import Geometry
from support.arrays import generator, same_bytes
from support.float_attention import FORMATS, SMALL, check_error, float_problem, queries, records, selection, store

module, device = simulator.load("attend_float.launch"), simulator.load("device")
merging, pieces = simulator.load("attend_float.merge"), simulator.load("attend_float.partial")


def run(q, kv, ids, steps, slots=None, **options):
    """attend_float into an output and a scratch of NaN."""
    kvs = device.to_device(kv)
    held = kv if isinstance(kv, list) else [kv]
    if options.get("scratch", "") is None:
        del options["scratch"]
    else:
        shape = module.scratch_shape(len(q), ids.shape[1], held[0].pool.geometry, options.get("splits"))
        options.setdefault("scratch", np.full(shape, np.nan, np.float32))
    out = np.full(q.shape, np.nan, np.float32)
    assert module.attend_float(q, kvs, ids, steps, slots, out, **options) is out
    return out


@pytest.mark.parametrize(("fmt", "page_size"), [*((fmt, 4) for fmt in FORMATS), ("int8", 1), ("int8", 3), ("int8", 64)])
def test_error_across_chunks_and_formats(fmt, page_size):
    """Widths before, at and behind the end of a chunk; a page size that is no power of two."""
    q, kv, ids, steps = float_problem(1, [1, 64, 65, 130], fmt, page_size=page_size)
    check_error(run(q, kv, ids, steps), q, kv, ids, steps)


def test_error_of_the_real_shape():
    """12 heads of 256 dims on a KV head: eight warps, the lanes of a cell a whole warp."""
    geometry = Geometry(n_head=12, n_head_kv=1)
    q, kv, ids, steps = float_problem(2, [70], cells=80, geometry=geometry)
    check_error(run(q, kv, ids, steps), q, kv, ids, steps)


@pytest.mark.parametrize(
    ("fmt", "missing"),
    [*((fmt, [0, 1, 9, 16, 17]) for fmt in FORMATS), ("int8", [0]), ("int8", [9]), ("int8", [17])],
    ids=[*FORMATS, "first", "middle", "last"],
)
def test_cells_without_a_page_are_not_selected(fmt, missing):
    """Nor are ids of -1. The bytes behind them are poison, so a score of 0 or a weight of 0 on them would show."""
    q, kv, ids, steps = float_problem(3, [72], fmt, cells=72, missing=missing)
    ids[0, [5, 33]] = -1
    check_error(run(q, kv, ids, steps), q, kv, ids, steps)


def test_a_missing_cell_takes_no_weight():
    """Two cells, the first not resident, the other with a score of -10: its value comes out whole."""
    q, kv, ids, steps = float_problem(4, [2], cells=2, page_size=1, missing=[0])
    got = run(q, kv, ids, steps)
    np.testing.assert_allclose(got, attend(q, kv, ids, steps), rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"schedule": "split", "splits": 3}], ids=["batch", "split"])
def test_nothing_selected_gives_zero(options):
    """No cells at all, no page at all, and a chunk in the middle without a resident cell."""
    q, kv, ids, steps = float_problem(5, [0, 60, 192], cells=192, missing=range(16, 32))
    ids[1, :60] = -1
    got = run(q, kv, ids, steps, **options)
    assert not got[:2].any()
    check_error(got[2:], q[2:], kv, ids[2:], steps[2:])
    kv.table[:] = -1
    assert not run(q, kv, ids, steps, **options).any()


def test_records_and_ids_out_of_range_read_nothing():
    """A width beyond the ids ends with them, a negative one selects nothing, an id beyond the table is not selected."""
    q, kv, ids, steps = float_problem(6, [70, 70, 70], cells=80)
    steps[0, 3], steps[1, 3] = 1000, -5
    ids[2, :4] = 80, 81, 0x7FFFFFFF, -7
    got = run(q, kv, ids, steps)
    assert not got[1].any()
    steps[0, 3], ids[2, :4] = 70, -1
    check_error(got[::2], q[::2], kv, ids[::2], steps[::2])


@pytest.mark.parametrize(("fmt", "value"), [("int8", np.nan), ("int8", -np.inf), ("q4_0", np.inf)])
def test_a_query_that_is_not_finite_poisons_its_row_and_head_alone(fmt, value):
    q, kv, ids, steps = float_problem(7, [5, 70], fmt)
    want = run(q, kv, ids, steps)
    q[1, 2, 5] = value
    got = run(q, kv, ids, steps)
    assert np.isnan(got[1, 2]).all()
    got[1, 2] = want[1, 2]
    assert same_bytes(got, want)


def test_schedules_give_the_same_bits_row_for_row():
    """Rows together, a row a launch, a scratch for two rows, a row among others: faults C3 and C16."""
    q, kv, ids, steps = float_problem(8, [1, 66, 130])
    want = run(q, kv, ids, steps)
    for schedule in ("step", "multi"):
        assert same_bytes(run(q, kv, ids, steps, schedule=schedule), want)
    two = np.full(module.scratch_shape(2, 130, SMALL), np.nan, np.float32)
    assert same_bytes(run(q, kv, ids, steps, schedule="prompt", scratch=two), want)
    for row, width in enumerate([1, 66, 130]):
        alone = slice(row, row + 1)
        assert same_bytes(run(q[alone], kv, ids[alone, :width].copy(), steps[alone]), want[alone])


@pytest.mark.parametrize("options", [{}, {"schedule": "split", "splits": 2}], ids=["batch", "split"])
def test_more_rows_than_a_launch_takes(monkeypatch, options):
    """Five rows of two slots in launches of two: the last one has a single row, and each reads its own rows' records,
    ids, slots and queries."""
    rng = generator(21)
    kvs = [store(rng, "int8", 70, SMALL) for _ in range(2)]
    widths, slots = [66, 1, 70, 64, 5], np.array([1, 0, 0, 1, 1], np.int32)
    ids, q, steps = selection(rng, widths, 70, 70), queries(rng, 5, SMALL), records(widths)
    want = run(q, kvs, ids, steps, slots, **options)
    monkeypatch.setattr(module, "MAX_GRID_YZ", 2)
    module._plans.clear()
    before = simulator.launches()
    assert same_bytes(run(q, kvs, ids, steps, slots, **options), want)
    count = {name: n - before.get(name, 0) for name, n in simulator.launches().items()}
    assert (count["pieces"], count["merge"]) == (3, 3)


def test_split_has_the_standing_bits_while_a_split_is_a_chunk():
    q, kv, ids, steps = float_problem(9, [258])
    want = run(q, kv, ids, steps)
    assert same_bytes(run(q, kv, ids, steps, schedule="split"), want)
    assert same_bytes(run(q, kv, ids, steps, schedule="split", splits=5), want)
    assert not same_bytes(run(q, kv, ids, steps, schedule="split", splits=2), want)


@pytest.mark.parametrize("splits", [2, 4])
def test_split_error_and_bits(splits):
    """Unequal splits, empty ones among them; the bits depend neither on the rows beside nor on the device's size."""
    q, kv, ids, steps = float_problem(10, [3, 257])
    options = {"schedule": "split", "splits": splits}
    want = run(q, kv, ids, steps, **options)
    check_error(want, q, kv, ids, steps)
    for multiprocessors in (1, 200):
        properties = replace(simulator.settings.properties, multiprocessors=multiprocessors)
        with simulator.configured(properties=properties):
            assert same_bytes(run(q, kv, ids, steps, **options), want)
            assert same_bytes(run(q[1:2], kv, ids[1:2], steps[1:2], **options), want[1:2])


def test_blocks_of_a_split_fill_one_wave():
    """About two blocks per multiprocessor, none with more pieces than it must have, never more than the splits."""
    assert module._blocks(20, 1, 2, 132) == 20
    assert module._blocks(20, 4, 2, 132) == 20
    assert module._blocks(20, 8, 2, 132) == 10
    assert module._blocks(20, 64, 2, 132) == 2
    assert module._blocks(20, 4096, 2, 132) == 1
    assert module._blocks(3, 1, 2, 132) == 3


def test_bits_do_not_depend_on_the_order_of_blocks():
    q, kv, ids, steps = float_problem(11, [130, 40])
    want = run(q, kv, ids, steps)
    with simulator.configured(order="backwards"):
        assert same_bytes(run(q, kv, ids, steps), want)


def test_merge_active_has_the_same_bits(monkeypatch):
    q, kv, ids, steps = float_problem(12, [5, 64, 65, 0], cap=320)
    want = run(q, kv, ids, steps)
    seen = []
    prepare = module.prepare

    def preparing(kernel, grid, block, arguments, *rest):
        seen.append(arguments)
        return prepare(kernel, grid, block, arguments, *rest)

    monkeypatch.setattr(module, "prepare", preparing)
    monkeypatch.setattr(module, "switches", lambda: Switches(merge_active=True))
    assert same_bytes(run(q, kv, ids, steps), want)
    assert [arguments[-1] for arguments in seen[1::2]] == [1]
    nine = [np.repeat(x[3:], 9, axis=0) for x in (q, ids, steps)]
    run(nine[0], kv, *nine[1:])
    assert [arguments[-1] for arguments in seen[1::2]] == [1, 0], "calls of more than 8 rows keep the whole merge"


def test_merge_active_reads_the_reached_chunks_alone():
    """Two chunks of five reached, the rest of the partials NaN: the whole merge shows it, the active one does not."""
    group, dim, n_pieces = SMALL.group, SMALL.head_dim, 5
    scratch = np.full(module.scratch_shape(1, 320, SMALL), np.nan, np.float32)
    values, tops, sums = np.split(scratch, [n_pieces * 4 * dim, n_pieces * 4 * (dim + 1)])
    for partial in (values.reshape(2, n_pieces, -1), tops.reshape(2, n_pieces, -1), sums.reshape(2, n_pieces, -1)):
        partial[:, :2] = 1
    for active in (1, 0):
        out = np.zeros((1, 4, dim), np.float32)
        arguments = (scratch, records([100]), np.zeros(1, np.int32), out, 0, 0, 0, 320, n_pieces, 0, active)
        simulator.launch(merging.merge_kernel(group, dim, False), (4, 1), dim, arguments)
        assert (out == 1).all() if active else np.isnan(out).all()


def test_every_merge_tile_and_batch_of_eight():
    """More pieces than the merge has lanes, and a count that is no multiple of eight."""
    q, kv, ids, steps = float_problem(13, [64 * 66 + 1], cells=64 * 67, page_size=64, geometry=Geometry(1, 1, 64, 16))
    check_error(run(q, kv, ids, steps), q, kv, ids, steps)


def test_several_slots_in_one_launch():
    """Five slots of one format take two launches and one merge; the bits are those of a call per slot."""
    rng = generator(14)
    kvs = [store(rng, "int8", 70, SMALL, page_size) for page_size in (1, 4, 4, 64, 3)]
    slots = np.array([4, 0, 3, 3, 1, 2], np.int32)
    ids, q, steps = selection(rng, [66] * 6, 70, 66), queries(rng, 6, SMALL), records([66, 1, 65, 64, 2, 66])
    before = simulator.launches()
    got = run(q, kvs, ids, steps, slots, scratch=None)
    count = {name: n - before.get(name, 0) for name, n in simulator.launches().items()}
    assert (count["pieces"], count["merge"]) == (2, 1)
    for row, slot in enumerate(slots):
        alone = slice(row, row + 1)
        assert same_bytes(run(q[alone], kvs[slot], ids[alone], steps[alone]), got[alone])


def test_mixed_formats_take_a_launch_per_slot():
    rng = generator(15)
    kvs = [store(rng, fmt, 70, SMALL) for fmt in ("int8", "q4_0", "fp16")]
    slots = np.array([1, 0, 2, 1], np.int32)
    ids, q, steps = selection(rng, [66] * 4, 70, 66), queries(rng, 4, SMALL), records([66, 66, 65, 3])
    before = simulator.launches()
    got = run(q, kvs, ids, steps, slots)
    count = {name: n - before.get(name, 0) for name, n in simulator.launches().items()}
    assert (count["pieces"], count["merge"]) == (3, 3)
    for row, slot in enumerate(slots):
        alone = slice(row, row + 1)
        assert same_bytes(run(q[alone], kvs[slot], ids[alone], steps[alone]), got[alone])


def test_a_row_of_no_slot_is_left_unwritten():
    rng = generator(16)
    kvs = [store(rng, "int8", 8, SMALL) for _ in range(2)]
    slots = np.array([-1, 1, 2], np.int32)
    got = run(queries(rng, 3, SMALL), kvs, selection(rng, [4] * 3, 8, 4), records([4] * 3), slots)
    assert np.isnan(got[[0, 2]]).all() and np.isfinite(got[1]).all()


def test_nothing_is_allocated_for_a_caller_that_gives_output_and_scratch(monkeypatch):
    q, kv, ids, steps = float_problem(20, [5, 3])
    kv, out, scratch = device.to_device(kv), np.empty_like(q), np.empty(module.scratch_shape(2, 5, SMALL), np.float32)

    def allocates():
        raise AssertionError("a new array")

    monkeypatch.setattr(module, "array_module", allocates)
    assert module.attend_float(q, kv, ids, steps, None, out, scratch=scratch) is out
    with pytest.raises(AssertionError, match="a new array"):
        module.attend_float(q, kv, ids, steps, None, out)
