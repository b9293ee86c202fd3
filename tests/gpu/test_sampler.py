"""The sampler on the device: the host's tokens and lists, byte for byte, over vocabularies of every size."""

import numpy as np
import pytest

from qsa.kernels.cpu import sampler as host
from qsa.reference.exact import sampler as exact
from qsa.reference.sampler import DRAFTER, PICK, Sampling
from support.sampler_problems import CHAINS, KINDS, boundaries, check, faulty, problem

pytestmark = pytest.mark.gpu


def on_device(made):
    """A problem's arrays on the device: (logits, history, lengths, seeds, positions, slots)."""
    import cupy

    arrays = (made.logits, made.history, made.lengths, made.seeds, made.positions.astype(np.int64), made.slots)
    return [cupy.array(x) for x in arrays]


def drawn(backend, made, purpose=PICK):
    """(tokens, lists) on the host, with guards around every buffer that the kernel writes."""
    sample = backend.module.row_sampler
    rows, vocab = made.logits.shape
    logits, history, lengths, seeds, positions, slots = on_device(made)
    shapes = ((rows, "int32"), ((rows, 64), "int32"), ((rows, 64), "uint64"), (rows, "int32"))
    tokens, *lists = (backend.guarded(*shape) for shape in shapes)
    scratch = backend.guarded(sample.scratch_shape(rows, vocab), "int32")
    scratch.array[:, 0] = 0
    given = {"slots": slots, "purpose": purpose, "tokens": tokens.array, "scratch": scratch.array}
    given["lists"] = sample.Lists(*(x.array for x in lists))
    for _ in range(2):
        sample.sample(logits, made.options, history, lengths, seeds, positions, **given)
    for name, buffer in zip(("tokens", "ids", "masses", "counts", "scratch"), (tokens, *lists, scratch), strict=True):
        buffer.check(name)
    assert not scratch.array[:, 0].any()
    assert (logits.get().view(np.uint32) == made.logits.view(np.uint32)).all()
    return tokens.array.get(), host.Lists(*(x.array.get() for x in lists))


def host_drawn(made, purpose=PICK):
    """(tokens, lists) of the CPU kernels, which ``tests/cpu`` holds to the reference."""
    lists = host.new_lists(len(made))
    given = (made.logits, made.options, made.history, made.lengths, made.seeds, made.positions)
    return host.sample(*given, slots=made.slots, purpose=purpose, lists=lists), lists


def same(got, expected):
    """Holds (tokens, lists) to another; of a list only what it has."""
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1].counts, expected[1].counts)
    held = np.arange(64) < expected[1].counts[:, None]
    for ours, theirs in ((got[1].ids, expected[1].ids), (got[1].masses, expected[1].masses)):
        np.testing.assert_array_equal(np.where(held, ours, 0), np.where(held, theirs, 0))


# 153 rows are every chain with every kind of row; 8,192 tokens are a slice.
@pytest.mark.parametrize(
    "vocab, rows",
    [(1, 18), (2, 153), (63, 459), (65, 459), (1000, 4590), (8192, 306), (8193, 306), (50_000, 1224), (248_320, 306)],
)
def test_tokens_and_lists_are_the_hosts(backend, vocab, rows):
    made = problem(rows, vocab, seed=7)
    got = drawn(backend, made)
    same(got, host_drawn(made))
    check(made, *got, rows=range(0, rows, max(1, rows // 8)))


def test_draws_at_a_boundary(backend):
    made = boundaries()
    check(made, *drawn(backend, made))


@pytest.mark.parametrize("vocab", [300, 248_320])
def test_the_drafters_stream(backend, vocab):
    made = problem(48, vocab, seed=8)
    same(drawn(backend, made, DRAFTER), host_drawn(made, DRAFTER))


@pytest.mark.parametrize("vocab", [400, 20_000, 248_320])
def test_errors_stay_with_their_rows(backend, vocab):
    made, codes = faulty(vocab)
    tokens, lists = drawn(backend, made)
    bad = codes < 0
    np.testing.assert_array_equal(tokens[bad], codes[bad])
    np.testing.assert_array_equal(lists.counts[bad], codes[bad])
    check(made, tokens, lists, np.flatnonzero(~bad))


def test_long_histories(backend):
    """Penalties that count 30,000 tokens, thousands of times each, and every token of the vocabulary."""
    chains = ("penalties of all",)
    for vocab in (1000, 248_320):
        made = problem(8, vocab, seed=9, chains=chains, capacity=30_000)
        made.lengths[:] = 30_000 - np.arange(8)
        same(drawn(backend, made), host_drawn(made))


def test_the_largest_vocabulary(backend):
    made = problem(len(KINDS), backend.module.row_sampler.MOST_VOCAB, seed=10, chains=("server", "penalties"))
    same(drawn(backend, made), host_drawn(made))


def test_argmax(backend):
    import cupy

    sample = backend.module.row_sampler
    made = problem(28, 248_320, seed=11)
    assert sample.argmax(cupy.array(made.logits)).get().tolist() == made.logits.argmax(axis=1).tolist()


def test_a_graph_serves_every_step(backend):
    """Options, history, lengths, seeds, positions and logits are read at the replay; a row may be out of use."""
    import cupy

    sample = backend.module.row_sampler
    rows, vocab = 6, 248_320
    steps = [problem(rows, vocab, seed=seed, chains=tuple(CHAINS)[seed:]) for seed in range(8)]
    buffers = on_device(steps[0])
    logits, history, lengths, seeds, positions, slots = buffers
    options = sample.load_options(steps[0].options, rows)
    tokens, lists = cupy.empty(rows, "int32"), sample.new_lists(rows)
    scratch = cupy.zeros(sample.scratch_shape(rows, vocab), "int32")
    given = {"slots": slots, "tokens": tokens, "lists": lists, "scratch": scratch}
    replay = backend.captured(lambda: sample.sample(logits, options, history, lengths, seeds, positions, **given))
    for made in steps:
        made.positions[2] = -1
        for buffer, value in zip(buffers, on_device(made), strict=True):
            buffer[...] = value
        options.set(exact.option_rows(made.options, rows))
        tokens.fill(77)
        replay()
        expected = host_drawn(made)
        assert expected[0][2] == exact.NO_ROW
        expected[1].counts[2] = tokens[2].get()
        same((tokens.get(), host.Lists(*(x.get() for x in lists))), expected)


def test_repeats_are_equal(backend):
    import cupy

    sample = backend.module.row_sampler
    made = problem(8, 248_320, seed=12, kinds=("levels", "equal"))
    logits, history, lengths, seeds, positions, slots = on_device(made)
    options = sample.load_options(made.options, 8)
    scratch = cupy.zeros(sample.scratch_shape(8, 248_320), "int32")
    given = {"slots": slots, "scratch": scratch}
    first = sample.sample(logits, options, history, lengths, seeds, positions, **given)
    for _ in range(250):
        again = sample.sample(logits, options, history, lengths, seeds, positions, **given)
        assert (again == first).all()


def test_refusals(backend):
    sample = backend.module.row_sampler
    made = problem(1, 50, chains=("plain",))
    logits, *rest, _ = on_device(made)
    assert sample.load_options(Sampling(max_candidates=0), 1) is False
    assert sample.sample(logits, Sampling(max_candidates=100), *rest) is False
    assert sample.sample(logits, Sampling(top_k=100), *rest) is not False
