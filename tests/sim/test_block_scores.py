"""``block_scores`` in the simulator: every schedule gives the bytes of ``reference.exact``."""

import numpy as np
import pytest

from cases.known_faults import index_queries
from qsa.kernels import ops
from qsa.kernels.cuda import simulator
from qsa.parity.checks.designs import code_limits
from qsa.reference import exact
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.index import INDEX_FORMATS, Index

scores = simulator.load("block_scores")
to_device = simulator.load("device").to_device

SCHEDULES = ops.OPERATIONS["block_scores"].schedules
POISON = np.float32(-7.5)


def index_of(rng, max_blocks, geometry=None, format="fp32"):
    """An index of random keys of very different sizes; the blocks that no row has are NaN."""
    geometry = geometry or Geometry()
    index = Index(max_blocks, np.ones(geometry.idx_dim, np.float32), geometry, format=format)
    keys = rng.standard_normal(index.pooled.shape) * np.exp(3 * rng.standard_normal((max_blocks, 1)))
    index.set_pooled(slice(None), keys.astype(np.float32))
    index.set_dead(rng.standard_normal(geometry.idx_dim).astype(np.float32))
    return index


def check(q, index, positions, schedule, **settings):
    """Bytes of the exact arithmetic, in what is written and in what is left alone."""
    steps = step_records(positions)
    expected = np.full((len(q), index.max_blocks), POISON)
    exact.block_scores(q, index, steps, expected)
    out = np.full_like(expected, POISON)
    with simulator.configured(**settings):
        assert scores.block_scores(q, to_device(index), steps, out, schedule=schedule) is out
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("positions", [[0], [2], [3], [261], [-1]], ids="n_kv {}".format)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_row(schedule, positions, format):
    # From no complete block at all to 65 of them and a tail.
    rng = np.random.default_rng(1)
    check(index_queries(rng, 1), index_of(rng, 70, format=format), positions, schedule)


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("rows", [2, 3, 5, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_window(schedule, rows, format):
    # Every tail; rows that end in neighbouring blocks, so that one row's dead block is another's pooled one; a padded
    # row between.
    rng = np.random.default_rng(rows)
    positions = [33 + i for i in range(rows)]
    positions[rows // 2] = -1
    check(index_queries(rng, rows), index_of(rng, 12, format=format), positions, schedule, order="backwards")


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("schedule", ["warp", "prompt"])
def test_more_rows_than_a_group(schedule, format):
    # 17 rows of one prompt, the last group of one row, by one multiprocessor: more groups than thread blocks.
    rng = np.random.default_rng(17)
    single = simulator.Properties("simulator", (9, 0), 1, 48 * 1024, 64 * 1024, 1 << 20)
    check(index_queries(rng, 17), index_of(rng, 20, format=format), list(range(40, 57)), schedule, properties=single)


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_several_turns(schedule, format):
    # One multiprocessor, five rows: a warp comes back for more blocks, whatever the schedule.
    rng = np.random.default_rng(12)
    single = simulator.Properties("simulator", (9, 0), 1, 48 * 1024, 64 * 1024, 1 << 20)
    check(index_queries(rng, 5), index_of(rng, 70, format=format), [141, 3, -1, 271, 272], schedule, properties=single)


@pytest.mark.parametrize("format", INDEX_FORMATS)
@pytest.mark.parametrize("schedule", ["warp", "prompt"])
def test_grid_limit_of_rows(schedule, monkeypatch, format):
    # The second dimension of a grid ends at 65,535: beyond it a thread block takes several groups.
    monkeypatch.setattr(scores, "MAX_GRID_YZ", 2)
    rng = np.random.default_rng(6)
    check(index_queries(rng, 19), index_of(rng, 4, format=format), [8 + i % 3 for i in range(19)], schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_special_values(schedule):
    # relu keeps a NaN, drops -0 and what is below it; infinities of both signs meet in a sum; subnormals are not
    # flushed; the bonus swallows all but the largest tail scores.
    rng = np.random.default_rng(9)
    q, index = index_queries(rng, 2), index_of(rng, 10)
    index.pooled[0, 5], index.pooled[1, 127] = np.nan, -np.inf
    index.pooled[2, :2] = np.inf
    index.pooled[3], index.pooled[4] = 0, -0.0
    index.pooled[5] = 1e-40
    index.dead[7] = np.inf
    q[0, 2] = 0
    check(q, index, [38, 37], schedule)


def test_record_beyond_the_index_is_not_carried_out():
    rng = np.random.default_rng(2)
    index = to_device(index_of(rng, 5))
    for schedule in SCHEDULES:
        out = np.full((2, 5), POISON)
        scores.block_scores(index_queries(rng, 2), index, step_records([20, 19]), out, schedule=schedule)
        assert (out == POISON).all(), schedule


def refused(reason, *args, **kwargs):
    """Whether the call returns False, is counted under ``reason``, and launches nothing."""
    before, launched = ops.refusals(), simulator.launches()
    result = scores.block_scores(*args, **kwargs)
    key = ("block_scores", reason)
    return result is False and ops.refusals()[key] == before.get(key, 0) + 1 and simulator.launches() == launched


def test_refusals():
    rng = np.random.default_rng(2)
    index, steps = to_device(index_of(rng, 5)), step_records([3] * 9)
    assert refused("schedule", index_queries(rng, 9), index, steps, schedule="multi_query")
    assert refused("schedule", index_queries(rng, 9), index, steps, schedule="transposed")
    older = simulator.Properties("simulator", (7, 5), 1, 48 * 1024, 64 * 1024, 1 << 20)
    with simulator.configured(properties=older):
        assert refused("device", index_queries(rng, 9), index, steps, schedule="held")
    small = to_device(index_of(rng, 5, Geometry(idx_dim=64)))
    assert refused("geometry", np.zeros((1, 4, 64), np.float32), small, steps[:1])
    with pytest.raises(ValueError, match="schedule = 'fast'"):
        scores.block_scores(index_queries(rng, 9), index, steps, schedule="fast")
    with pytest.raises(ValueError, match="q_idx"):
        scores.block_scores(index_queries(rng, 9)[:, :3], index, steps)


def coded(keys, dead=None, max_blocks=None):
    """An index of the format ``int16`` that holds ``keys`` [n, 128] and the dead key."""
    index = Index(max_blocks or len(keys) + 1, np.ones(128, np.float32), format="int16")
    index.set_pooled(slice(len(keys)), keys)
    index.set_dead(np.ones(128) if dead is None else dead)
    return index


@pytest.mark.parametrize("capability", [(9, 0), (7, 5)], ids=["tensor cores", "dp4a"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_encoded_keys_of_every_size(schedule, capability):
    # Exponents from one end of float32 to the other, subnormal results, infinite ones; what is not finite, zeros, -0.
    rng = np.random.default_rng(21)
    power = np.array([-149, -140, -126, -100, -30, 0, 30, 100, 126, 0, 0, 0, 0, 0, 0, 0, 0, 60])
    keys = (rng.standard_normal((18, 128)) * np.ldexp(1.0, power)[:, None]).astype(np.float32)
    keys[9, 3], keys[10, 127], keys[11], keys[12] = np.nan, -np.inf, 0, -0.0
    keys[13] = np.finfo(np.float32).max
    q = index_queries(rng, 3)
    q[0, 1] *= np.float32(2.0**-140)
    q[0, 2], q[1] = 0, q[1] * np.float32(2.0**-60)
    q[2, 3, 17] = np.inf
    device = simulator.Properties("simulator", capability, 2, 48 * 1024, 64 * 1024, 1 << 20)
    for dead in (None, np.full(128, np.nan), keys[0]):
        check(q, coded(keys, dead), [70, 74, 71], schedule, properties=device)


@pytest.mark.parametrize("capability", [(9, 0), (7, 5)], ids=["tensor cores", "dp4a"])
def test_encoded_keys_at_the_ends_of_their_limbs(capability):
    # Every limb at its ends and of both signs: the largest sums that there are, and codes next to a limb's border.
    ends = np.array([32639, -32639, 32512, -32513, 255, 256, 127, 128, -128, -129, -32640 + 128, 1], np.float32)
    keys = np.repeat(ends[:, None], 128, axis=1)
    keys[:, 0] = 32639
    keys[6:, 1::2] *= -1
    q = np.repeat(ends[:8].reshape(2, 4)[:, :, None], 128, axis=2)
    q[:, :, 5] = 32639
    device = simulator.Properties("simulator", capability, 1, 48 * 1024, 64 * 1024, 1 << 20)
    check(q, coded(keys), [48, 47], None, properties=device)


def test_encoded_keys_and_queries_at_the_limits_of_their_codes():
    # Ties, largest magnitudes on both sides of the next exponent, heads of different sizes.
    rng = np.random.default_rng(5)
    ordinary = rng.standard_normal((2 * code_limits.KINDS, 128)).clip(-3, 3)
    keys, heads = (code_limits.vectors(np.arange(n), ordinary[:n]) for n in (2 * code_limits.KINDS, 12))
    check(heads.reshape(3, 4, 128), coded(keys), [79, 74, 80], None)


def test_encoded_keys_where_one_multiplication_ends_to_be_enough():
    # Exponents of keys and queries next to the limits of what is computed in fewer steps, at both ends, and zeros.
    rng = np.random.default_rng(22)
    powers = np.ldexp(1.0, [-63, -62, -61, -60, -59, 58, 59, 60, 61, 62, 0])
    keys = (rng.uniform(0.5, 1, (11, 128)) * powers[:, None]).astype(np.float32)
    device = simulator.Properties("simulator", (9, 0), 1, 48 * 1024, 64 * 1024, 1 << 20)
    for power in (-32, -31, -30, -29, 88, 89, 90, 91):
        q = (rng.uniform(0.5, 1, (1, 4, 128)) * 2.0**power).astype(np.float32)
        q[0, 3] = 0
        for some in (keys, keys[-1:], keys[3:4], keys[7:8]):
            check(q, coded(some), [4 * len(some) + 1], None, properties=device)


@pytest.mark.parametrize("rows", [31, 33, 70])
def test_encoded_keys_and_more_rows_than_shared_memory_holds(rows):
    # An odd number of rows is finished with one that does not exist; a group of one row comes last.
    rng = np.random.default_rng(rows)
    single = simulator.Properties("simulator", (9, 0), 1, 48 * 1024, 64 * 1024, 1 << 20)
    positions = [-1 if row % 7 == 3 else 30 + row for row in range(rows)]
    check(index_queries(rng, rows), index_of(rng, 34, format="int16"), positions, None, properties=single)


def test_encoded_keys_beyond_the_index_and_of_other_geometries():
    rng = np.random.default_rng(2)
    index = to_device(index_of(rng, 5, format="int16"))
    for schedule in (None, *SCHEDULES):
        out = np.full((2, 5), POISON)
        scores.block_scores(index_queries(rng, 2), index, step_records([20, 19]), out, schedule=schedule)
        assert (out == POISON).all(), schedule
    assert refused("schedule", index_queries(rng, 9), index, step_records([3] * 9), schedule="transposed")
    small = Geometry(n_rot=16, idx_dim=64)
    narrow = to_device(index_of(rng, 5, small, "int16"))
    q = rng.standard_normal((1, 4, 64)).astype(np.float32)
    assert refused("geometry", q, narrow, step_records([3], geometry=small))
