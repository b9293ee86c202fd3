"""The tensor-core form of the float attention, in the simulator: its error, its bits, what it masks and takes."""

from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda import simulator
from qsa.kernels.switches import override
from qsa.reference.attend import attend
from qsa.reference.geometry import Geometry
from support.arrays import generator, relative_error, same_bytes
from support.float_attention import FORMATS, check_error, float_problem, queries, records, selection, store, yardstick

module, device = simulator.load("attend_float.launch"), simulator.load("device")
calls = simulator.load("attend")
tensor = simulator.load("attend_float.tensor.plan")

ONE = Geometry(n_head=12, n_head_kv=1)
"""The heads of one KV head of the real geometry."""

FEW = Geometry(n_head=6, n_head_kv=2)
"""Three heads to a KV head: most rows and columns of the products are empty."""


def run(q, kv, ids, steps, slots=None, multiprocessors=132, **options):
    """The split schedule into an output and a scratch of NaN, on a device of so many multiprocessors."""
    out = np.full(q.shape, np.nan, np.float32)
    held = kv if isinstance(kv, list) else [kv]
    properties = replace(simulator.settings.properties, multiprocessors=multiprocessors)
    shape = module.scratch_shape(len(q), ids.shape[1], held[0].pool.geometry, options.get("splits", 20))
    scratch = np.full(shape, np.nan, np.float32)
    with simulator.configured(properties=properties):
        module._plans.clear()
        kvs = device.to_device(kv)
        before = simulator.launches().get("attend_tensor", 0)
        assert module.attend_float(q, kvs, ids, steps, slots, out, "split", scratch=scratch, **options) is out
        assert simulator.launches()["attend_tensor"] > before
    return out


@pytest.mark.parametrize("fmt", FORMATS)
def test_error_and_bits_of_every_format(fmt):
    """Pages that are not resident, ids of -1, pieces of one and two chunks, in blocks of a piece, of a run, and alone;
    the bits are the same."""
    q, kv, ids, steps = float_problem(1, [70, 330], fmt, geometry=ONE, missing=(0, 9, 17))
    ids[1, [5, 33]] = -1
    got = run(q, kv, ids, steps, splits=4)
    check_error(got, q, kv, ids, steps)
    for multiprocessors in (2, 1):
        assert same_bytes(run(q, kv, ids, steps, multiprocessors=multiprocessors, splits=4), got)
    assert same_bytes(run(q[1:], kv, ids[1:], steps[1:], splits=4), got[1:])


@pytest.mark.parametrize("widths", [[1, 63, 64, 65], [129]])
def test_error_at_the_ends_of_chunks(widths):
    q, kv, ids, steps = float_problem(2, widths, geometry=FEW, page_size=3)
    check_error(run(q, kv, ids, steps), q, kv, ids, steps)


def test_nothing_selected_gives_zero():
    """No cells, no resident page, a chunk and a piece without one in the middle; a width beyond the ids."""
    q, kv, ids, steps = float_problem(3, [0, 60, 260], cells=260, geometry=FEW, missing=range(16, 48))
    ids[1, :60] = -1
    steps[2, 3] = 1000
    got = run(q, kv, ids, steps)
    assert not got[:2].any() and not np.signbit(got[:2]).any()
    steps[2, 3] = 260
    check_error(got[2:], q[2:], kv, ids[2:], steps[2:])


@pytest.mark.parametrize(("fmt", "value"), [("int8", np.nan), ("q4_0", np.inf), ("fp16", -np.inf)])
def test_a_query_that_is_not_finite_poisons_its_row_and_head_alone(fmt, value):
    q, kv, ids, steps = float_problem(4, [5, 70], fmt, geometry=FEW)
    want = run(q, kv, ids, steps)
    q[1, 2, 5] = value
    got = run(q, kv, ids, steps)
    assert np.isnan(got[1, 2]).all()
    got[1, 2] = want[1, 2]
    assert same_bytes(got, want)


@pytest.mark.parametrize("fmt", ["int8", "fp16"])
@pytest.mark.parametrize("spread", [1e-30, 300.0])
def test_tiny_and_huge_scores(fmt, spread):
    """Flat weights; and scores of thousands, of which the largest has all the weight. A score's own rounding decides
    then, so the bound is the yardstick's error with room for another order."""
    q, kv, ids, steps = float_problem(5, [130], fmt, geometry=FEW)
    q *= np.float32(spread)
    want = attend(q, kv, ids, steps)
    error, theirs = relative_error(run(q, kv, ids, steps), want), relative_error(yardstick(q, kv, ids, steps), want)
    assert error <= 2 * theirs + 1e-7


@pytest.mark.parametrize("fmt", ["int8", "k8v4", "fp16"])
def test_values_of_very_different_sizes(fmt):
    """One cell of ordinary values has nearly all the weight, the others' values are 2^12 times as large and their
    weights 2^-40: what a weight loses as a half must not show."""
    q, kv, ids, steps = float_problem(6, [40], fmt, geometry=FEW, page_size=1, cells=40)
    q[:] = 0
    q[..., 0] = 40 * 11.0
    k_rows = kv.table[:40]
    if fmt == "fp16":
        kv.pool.k.codes[k_rows] = 0
        kv.pool.k.codes[k_rows[0], :, :, 0] = 1
        values = kv.pool.v.codes.view(np.float16)
        values[k_rows[1:]] = 4096 * np.clip(values[k_rows[1:]], -15, 15)
    else:
        kv.pool.k.codes[k_rows] = 0
        kv.pool.k.codes[k_rows[0], :, :, 0] = 100
        kv.pool.k.scale[k_rows] = 0.01
        kv.pool.v.scale[k_rows[1:]] *= 4096
    want = attend(q, kv, ids, steps)
    assert relative_error(run(q, kv, ids, steps), want) < 5e-7


def test_slots_of_one_and_of_several_formats():
    """Two pools in a launch, and a launch for each format; a row of no slot stays unwritten."""
    rng = generator(7)
    kvs = {fmt: store(rng, fmt, 70, FEW) for fmt in ("int8", "k8v4", "fp16")}
    ids, q, steps = selection(rng, [66] * 3, 70, 66), queries(rng, 3, FEW), records([66, 65, 3])
    for formats in (("int8", "int8"), ("k8v4", "int8"), ("fp16", "k8v4")):
        held = [kvs[fmt] for fmt in formats]
        got = run(q, held, ids, steps, np.array([1, 0, 2], np.int32))
        assert np.isnan(got[2]).all()
        for row, slot in ((0, 1), (1, 0)):
            alone = slice(row, row + 1)
            assert same_bytes(run(q[alone], held[slot], ids[alone], steps[alone]), got[alone])


def test_blocks_of_a_row():
    """One wave: a block for every piece of few rows, of runs for more, one a row in the end."""
    kvs = [device.to_device(store(generator(8), "int8", 4, Geometry()))]
    shared = {"shared_per_multiprocessor": 233472, "shared_per_block": 232448, "compute_capability": (9, 0)}
    properties = replace(simulator.settings.properties, multiprocessors=132, **shared)
    with simulator.configured(properties=properties):
        assert tensor.fits(kvs)
        assert [tensor.blocks_of(kvs, rows, 17) for rows in (1, 4, 16, 64, 256)] == [17, 17, 6, 2, 1]
    small = replace(properties, shared_per_block=101376)
    with simulator.configured(properties=small):
        assert not tensor.fits(kvs), "its blocks have no room"


def test_formats_by_name_and_by_the_switch():
    """The schedule by name takes fp16 where the tensor cores do; the switch gives it to int8 alone, and counts."""
    q, kv, ids, steps = float_problem(9, [70], "fp16", geometry=FEW)
    kv = device.to_device(kv)
    options = {"arithmetic": "float"}
    by_name = calls.attend(q, kv, ids, steps, schedule="split", **options)
    standing = calls.attend(q, kv, ids, steps, schedule="batch", **options)
    assert not same_bytes(by_name, standing) and relative_error(by_name, standing) < 1e-6
    before = ops.refusals().get(("attend", "format"), 0)
    with override(split_attn=True):
        assert same_bytes(calls.attend(q, kv, ids, steps, **options), standing)
    assert ops.refusals()["attend", "format"] == before + 1


def test_a_device_without_tensor_cores_keeps_the_standing_kernels():
    q, kv, ids, steps = float_problem(10, [70], geometry=FEW)
    before = simulator.launches().get("attend_tensor", 0)
    small = replace(simulator.settings.properties, shared_per_block=101376)
    with simulator.configured(properties=small):
        module._plans.clear()
        got = module.attend_float(q, device.to_device(kv), ids, steps, schedule="split")
    module._plans.clear()
    assert simulator.launches().get("attend_tensor", 0) == before
    check_error(got, q, kv, ids, steps)
