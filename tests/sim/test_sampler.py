"""The sampler in the simulator: the reference's tokens and lists, on the least that crosses a warp, a slice, a cut."""

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda import simulator
from qsa.reference.exact import sampler as exact
from qsa.reference.sampler import PICK, Sampling
from support.sampler_problems import CHAINS, boundaries, check, faulty, problem

sample = simulator.load("sampler")
sampler, THREADS = simulator.load("sampler_kernels.kernel").sampler, simulator.load("topk.radix_search").THREADS


def inputs(made):
    """A problem's arrays as the device takes them."""
    return (made.history, made.lengths, made.seeds, made.positions.astype(np.int64))


def fresh(rows):
    """Tokens and lists of which nothing is written."""
    lists = sample.Lists(*(np.full(x.shape, 77, x.dtype) for x in sample.new_lists(rows)))
    return np.full(rows, 77, np.int32), lists


@pytest.mark.parametrize(
    "vocab, chains",
    [
        (3, ("plain", "penalties")),
        (70, ("everything", "saturated", "greedy, penalties", "hot", "top-p", "half", "plain", "binary")),
    ],
)
def test_rows(vocab, chains):
    # Few rows of every kind, and a list that is cut: 64 of 70; the second call finds the scratch as the first left it.
    kinds = ("levels", "signs", "sparse", "extreme", "normal", "equal", "ties", "integers")
    made = problem(len(chains), vocab, seed=2, chains=chains, kinds=kinds)
    tokens, lists = fresh(len(made))
    scratch = np.zeros(sample.scratch_shape(len(made), vocab), np.int32)
    given = {"slots": made.slots, "tokens": tokens, "lists": lists, "scratch": scratch}
    assert sample.sample(made.logits, made.options, *inputs(made), **given) is tokens
    check(made, tokens, lists)
    assert not scratch[:, 0].any()


def test_draws_at_a_boundary():
    made = boundaries()
    tokens, lists = fresh(len(made))
    sample.sample(made.logits, made.options, *inputs(made), slots=made.slots, tokens=tokens, lists=lists)
    check(made, tokens, lists)


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_several_slices(order):
    # Slices of one token a lane: 1,100 tokens are two. The best lie on both sides of the cut, ties among them; the
    # first row is penalised and reads its keys from the scratch, the second one reads its logits.
    made = problem(2, 1100, seed=3, chains=("penalties of all", "plain"), kinds=("levels",))
    made.slots[:], made.lengths[:] = 0, 40
    tokens, lists = fresh(2)
    words = sample.scratch_shape(2, 1100)[1] + 200
    scratch = np.full((2, words), -5, np.int32)
    scratch[:, 0] = 0
    sizes = (1100, 550, 1, *made.history.shape, words, PICK)
    arguments = (made.logits, exact.option_rows(made.options, 2), made.history, made.slots, *inputs(made)[1:])
    with simulator.configured(order=order):
        sampler(1)[(2, 2), THREADS](*arguments, scratch, tokens, *lists, sizes)
    check(made, tokens, lists)
    assert not scratch[:, 0].any()


def test_errors_stay_with_their_rows():
    made, codes = faulty(50)
    rows = [0, 2, 3, 4, 5, 6, 7]
    for name in ("logits", "lengths", "seeds", "positions", "slots"):
        setattr(made, name, getattr(made, name)[rows])
    made.options, codes = [made.options[row] for row in rows], codes[rows]
    tokens, lists = fresh(len(rows))
    # A line that does not exist, on the device alone: the host cannot see it.
    made.slots[4], codes[4] = 9, exact.UNKNOWN_TOKEN
    sample.sample(made.logits, made.options, *inputs(made), slots=made.slots, tokens=tokens, lists=lists)
    np.testing.assert_array_equal(tokens[codes < 0], codes[codes < 0])
    np.testing.assert_array_equal(lists.counts[codes < 0], codes[codes < 0])
    check(made, tokens, lists, np.flatnonzero(codes == 0))


def test_a17_drafted_rows_have_their_own_histories():
    """Two rows of one line: the second one's history holds the draft."""
    logits = np.tile(np.array([0.0, 0.0, 4.0, 5.0], np.float32), (2, 1))
    line, lengths = np.array([[0, 3, 3, 3]], np.int32), np.array([1, 2], np.int32)
    seeds, positions = np.zeros(2, np.uint64), np.zeros(2, np.int64)
    given = (line, lengths, seeds, positions)
    penalties = Sampling(temperature=0.0, repeat=2.0)
    assert sample.sample(logits, penalties, *given, slots=np.zeros(2, np.int32)).tolist() == [3, 2]


def test_argmax():
    assert sample.argmax(np.array([[1, 5, 5, -np.inf], [-0.0, 0.0, -1, 0]], np.float32)).tolist() == [1, 0]


def refused(reason, *args, **kwargs):
    """Whether the call returns False, is counted under ``reason``, and launches nothing."""
    before, launched = ops.refusals(), simulator.launches()
    result = sample.sample(*args, **kwargs)
    key = ("sample", reason)
    return result is False and ops.refusals()[key] == before.get(key, 0) + 1 and simulator.launches() == launched


LINE, ONE = np.zeros((1, 4), np.int32), np.zeros(1, np.int32)
REST = (LINE, ONE, np.zeros(1, np.uint64), np.zeros(1, np.int64))


def test_refusals():
    row = np.zeros((1, 5), np.float32)
    assert refused("capacity", row, Sampling(max_candidates=0), *REST)
    assert refused("capacity", row, Sampling(max_candidates=65), *REST)
    assert refused("scratch", row, Sampling(), *REST, scratch=np.zeros((1, 133), np.int32))
    beyond = np.broadcast_to(np.float32(0), (1, sample.MOST_VOCAB + 1)).copy()
    assert refused("geometry", beyond, Sampling(), *REST)
    assert sample.MOST_VOCAB > 1_000_000
    # Of the device's own options: a row that would need a longer list writes its code.
    table = exact.option_rows(Sampling(max_candidates=0), 1)
    assert sample.sample(row, table, *REST).tolist() == [exact.TOO_LONG]


@pytest.mark.parametrize(
    "change, named",
    [
        ({0: np.zeros(5, np.float32)}, "logits"),
        ({0: np.zeros((1, 5))}, "logits"),
        ({1: [Sampling()] * 2}, "options: 2 given"),
        ({1: np.zeros((1, 4), np.int32)}, "options"),
        ({2: ONE}, "history"),
        ({2: np.zeros((1, 0), np.int32)}, "history"),
        ({3: np.zeros(1, np.int64)}, "lengths"),
        ({4: np.zeros(1, np.int64)}, "seeds"),
        ({5: np.zeros(2, np.int64)}, "positions"),
    ],
)
def test_bad_arrays_are_named(change, named):
    arguments = [np.zeros((1, 5), np.float32), CHAINS["plain"], *REST]
    for index, value in change.items():
        arguments[index] = value
    with pytest.raises(ValueError, match=named):
        sample.sample(*arguments)
