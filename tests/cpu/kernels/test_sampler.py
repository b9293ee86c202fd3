"""The samplers' CPU kernels: the reference's tokens and lists, row for row, and its decisions about drafts."""

import numpy as np
import pytest

from qsa.kernels.cpu import sampler as sample
from qsa.kernels.cpu import speculative as accept
from qsa.kernels.cpu.common.philox import uniform
from qsa.reference.exact import sampler as exact
from qsa.reference.exact import speculative
from qsa.reference.sampler import ACCEPT, DRAFTER, GREEDY, PICK, RESIDUAL, Sampling
from support.sampler_problems import CHAINS, KINDS, boundaries, check, faulty, problem


def drawn(made, cap=64, **options):
    """(tokens, lists) of a problem."""
    lists = sample.new_lists(len(made), cap)
    given = (made.logits, made.options, made.history, made.lengths, made.seeds, made.positions)
    return sample.sample(*given, slots=made.slots, lists=lists, **options), lists


# 153 rows: every chain with every kind of row.
@pytest.mark.parametrize("vocab, rows", [(1, 20), (3, 153), (16, 306), (511, 153), (1000, 612), (50_000, 153)])
def test_rows(vocab, rows):
    made = problem(rows, vocab)
    check(made, *drawn(made))


def test_draws_at_a_boundary():
    made = boundaries()
    check(made, *drawn(made))


def test_rows_of_the_published_vocabulary():
    made = problem(len(CHAINS) + len(KINDS), 248_320)
    check(made, *drawn(made))


@pytest.mark.parametrize("vocab", [40, 3000])
def test_whole_vocabulary(vocab):
    for seed, options in enumerate((Sampling(max_candidates=0), Sampling(1.4, 0, 0.99, 0.001, max_candidates=0))):
        made = problem(14, vocab, seed=seed)
        made.options = [options] * len(made)
        check(made, *drawn(made, cap=vocab))


def test_one_row_alone_and_the_drafters_stream():
    made = problem(5, 300)
    tokens, _ = drawn(made)
    for row in range(5):
        given = (made.logits[row : row + 1], made.options[row], made.history, made.lengths[row])
        alone = sample.sample(*given, made.seeds[row], made.positions[row], slots=made.slots[row])
        assert alone.dtype == np.int32 and alone.tolist() == [tokens[row]]
    drafts, _ = drawn(made, purpose=DRAFTER)
    assert drafts.tolist() == [made.expected(row, DRAFTER)[0] for row in range(5)]


def test_errors_stay_with_their_rows():
    made, codes = faulty(700)
    tokens, lists = drawn(made)
    bad = codes < 0
    np.testing.assert_array_equal(tokens[bad], codes[bad])
    np.testing.assert_array_equal(lists.counts[bad], codes[bad])
    check(made, tokens, lists, np.flatnonzero(~bad))
    with pytest.raises(ValueError, match=r"row 0: logits: NaN or \+inf"):
        sample.check_tokens(tokens)
    with pytest.raises(ValueError, match="row 2: logits: all -inf"):
        lists.of(2)
    sample.check_tokens(tokens[~bad])


def test_a_list_longer_than_its_room():
    made = problem(4, 50, chains=("plain",), kinds=("normal",))
    tokens, lists = drawn(made, cap=10)
    assert tokens.tolist() == lists.counts.tolist() == [exact.TOO_LONG] * 4


def test_argmax():
    made = problem(21, 333)
    assert sample.argmax(made.logits).tolist() == made.logits.argmax(axis=1).tolist()


def test_the_arguments_stay_as_they_were():
    made = problem(4, 64, chains=("penalties",))
    before = made.logits.copy()
    drawn(made)
    np.testing.assert_array_equal(made.logits.view(np.uint32), before.view(np.uint32))


def test_uniform_numbers():
    for seed in (0, 11, 2**32 + 5, 2**64 - 1):
        for position in (0, 7, 2**32, 2**63 - 1):
            for purpose in (PICK, ACCEPT, RESIDUAL, DRAFTER):
                assert uniform(np.uint64(seed), position, purpose) == exact.uniform(seed, position, purpose)[0]


LINE = np.zeros((1, 4), np.int32)
ROW = np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: sample.sample(ROW[0], GREEDY, LINE, 0, 0, 0), "logits"),
        (lambda: sample.sample(ROW, [GREEDY], LINE, 0, 0, 0, slots=0), "options: 1 given"),
        (lambda: sample.sample(ROW, np.zeros((2, 3), np.int32), LINE, 0, 0, 0, slots=0), "options: int32"),
        (lambda: sample.sample(ROW, GREEDY, LINE[0], 0, 0, 0), "history"),
        (lambda: sample.sample(ROW, GREEDY, LINE.astype(np.int64), 0, 0, 0), "history"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, 0, 0), "slots: 1: must be from 0 to 0"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 5, 0, 0, slots=0), "lengths: 5"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, -1, 0, slots=0), "seeds: -1"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, 0, [0.5, 1], slots=0), "positions: float64"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, 0, [0, 1, 2], slots=0), "positions"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, 0, 0, slots=0, tokens=np.zeros(2)), "tokens"),
        (lambda: sample.sample(ROW, GREEDY, LINE, 0, 0, 0, slots=0, lists=sample.new_lists(3)), "ids"),
        (lambda: sample.sample(ROW, Sampling(repeat=1e39), LINE, 0, 0, 0, slots=0), r"repeat = 1e\+39"),
        (lambda: accept.judge(sample.new_lists(2), [1, 2, 3], sample.new_lists(2), 0, 0), "drafts"),
        (lambda: accept.judge(sample.new_lists(2), [1, -2], sample.new_lists(2), 0, 0), "drafts: -2"),
        (lambda: accept.judge(sample.new_lists(2), 1, sample.new_lists(3), 0, 0), "listed: 3 rows"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()


# Acceptance


def window(kind, rows, vocab, seed):
    """(own lists, drafts, the drafter's lists) of rows that each judge a draft; ``kind`` of drafter."""
    made = problem(rows, vocab, seed, chains=("plain", "server", "top-k", "hot"), kinds=("normal", "levels", "sparse"))
    _, own = drawn(made)
    rng = np.random.default_rng(seed)
    noise = {"equal": 0.0, "near": 0.5, "far": 5.0}[kind]
    made.logits += noise * rng.standard_normal(made.logits.shape).astype(np.float32)
    drafts, listed = drawn(made, purpose=DRAFTER)
    return made, own, drafts, listed


@pytest.mark.parametrize("kind", ["equal", "near", "far"])
@pytest.mark.parametrize("vocab", [5, 400])
def test_decisions(kind, vocab):
    made, own, drafts, listed = window(kind, 240, vocab, seed=3)
    rng = np.random.default_rng(4)
    listed.counts[::5] = [0, -1] * 24
    stranger = np.arange(240) % 7 == 3
    drafts[stranger] = rng.integers(0, vocab, stranger.sum())
    drafts[::11] = accept.NO_DRAFT
    accepted, tokens = accept.judge(own, drafts, listed, made.seeds, made.positions)
    for row in range(240):
        p, draft = own.of(row), int(drafts[row])
        u = {k: exact.uniform(int(made.seeds[row]), int(made.positions[row]), k)[0] for k in (PICK, ACCEPT, RESIDUAL)}
        want = False, p[0][exact.draw(p[1], u[PICK])]
        if draft != accept.NO_DRAFT:
            told = listed.of(row) if listed.counts[row] > 0 else None
            want = speculative.judge(*p, draft, told, u[ACCEPT], u[RESIDUAL])
        assert (accepted[row], tokens[row]) == want, row
    assert 0 < accepted.mean() < 1


def test_two_words_are_python_integers():
    """Products, sums, comparisons and residuals in two words, where carries and borrows pass between them."""
    rng = np.random.default_rng(2)

    def joined(x):
        return (int(x[0]) << 64) + int(x[1])

    def split(x):
        return np.uint64(x >> 64), np.uint64(x & (1 << 64) - 1)

    edges = [0, 1, 2**32 - 1, 2**32, 2**40, 2**62]
    values = edges + [
        int(x) >> int(s) for x, s in zip(rng.integers(0, 2**62, 40), rng.integers(0, 60, 40), strict=True)
    ]
    for a, b in zip(values, reversed(values), strict=True):
        c, d = values[(a + b) % len(values)], values[(a ^ b) % len(values)]
        x, y, u = a * c, b * d, (a ^ d) % (1 << 24)
        assert joined(accept._product(np.uint64(a), np.uint64(c))) == x
        assert joined(accept._sum(split(x), split(y))) == x + y
        assert accept._less(split(x), split(y)) == (x < y)
        assert joined(accept._times(split(x >> 22), np.uint64(u))) == (x >> 22) * u
        assert joined(accept._residual(*map(np.uint64, (a, b, d, c)))) == max(0, a * c - b * d)


def test_decisions_at_the_widest_products():
    """Lists of the most mass that there may be: 2^22 tokens of 2^40 each against one; wider words would not show."""
    n = 1 << 22
    ids, masses = np.arange(n, dtype=np.int32)[None], np.full((1, n), 1 << 40, np.uint64)
    own = sample.Lists(ids, masses, np.array([n], np.int32))
    listed = sample.Lists(ids, masses.copy(), np.array([n], np.int32))
    listed.masses[0, 1::2] = 1
    for position in range(8):
        accepted, tokens = accept.judge(own, 0, listed, 1, position)
        # u * q < p with q = 2p nearly: the even ids' excess is the odd ids' residual, all of one size.
        q_sum, p_sum = (n // 2) * ((1 << 40) + 1), n << 40
        u = [int(exact.uniform(1, position, k)[0]) for k in (ACCEPT, RESIDUAL)]
        assert accepted[0] == (u[0] * p_sum < q_sum << 24)
        if not accepted[0]:
            assert tokens[0] == 2 * (u[1] * (n // 2) >> 24) + 1


def test_windows_emit_what_the_references_forms_emit():
    rng = np.random.default_rng(9)
    options = Sampling(temperature=0.9, top_p=0.9, repeat=1.3, presence=0.2)
    seen = set()
    for trial in range(60):
        logits = rng.normal(0, 1, (4, 12)).astype(np.float32)
        start = [trial % 12, 3]
        drafts = [int(row.argmax()) for row in logits[:3]]
        line = np.array([[*start, *drafts, 7, 7]], np.int32)
        lengths, positions = np.arange(2, 6), np.arange(4) + 10 * trial
        own, listed = sample.new_lists(4), sample.new_lists(4)
        tokens = sample.sample(logits, options, line, lengths, 5, positions, slots=0, lists=own)
        others = logits + rng.normal(0, 1, logits.shape).astype(np.float32)
        sample.sample(others, options, line, lengths, 5, positions, slots=0, lists=listed)
        judged = np.array([*drafts, accept.NO_DRAFT])
        got = accept.emitted(accept.match(tokens, judged), tokens)
        assert got == speculative.exact_match(logits, drafts, start, options, 5, 10 * trial)
        told = [listed.of(t) if t != 1 else None for t in range(3)]
        listed.counts[1] = 0
        got_by_rejection = accept.emitted(*accept.judge(own, judged, listed, 5, positions))
        assert got_by_rejection == speculative.rejection(logits, drafts, told, start, options, 5, 10 * trial)
        largest = sample.sample(logits, GREEDY, line, lengths, 0, 0, slots=0)
        assert accept.emitted(accept.match(largest, judged), largest) == speculative.greedy(logits, drafts, start)
        seen |= {(got[0], "match"), (got_by_rejection[0], "rejection")}
    assert {(n, "rejection") for n in range(4)} <= seen and len(seen) >= 7


def test_a_failed_row_fails_its_window_only_when_it_is_reached():
    tokens = np.array([4, exact.NOT_FINITE, 5], np.int32)
    assert accept.emitted([False, False, False], tokens) == (0, [4])
    with pytest.raises(ValueError, match="row 1: logits"):
        accept.emitted([True, False, False], tokens)
    _, own, drafts, listed = window("near", 3, 50, seed=1)
    own.counts[1] = exact.NOT_FINITE
    accepted, judged = accept.judge(own, drafts, listed, 1, 0)
    assert not accepted[1] and judged[1] == exact.NOT_FINITE


# A17: histories of drafted rows, order of the chain


def test_a17_drafted_rows_have_their_own_histories():
    """Two rows of one line: the second one's history holds the draft, whose penalty is counted once and not twice."""
    logits = np.tile(np.array([0.0, 0.0, 4.0, 5.0], np.float32), (2, 1))
    line = np.array([[0, 3, 3, 3]], np.int32)
    penalties = Sampling(temperature=0.0, repeat=2.0)
    assert sample.sample(logits, penalties, line, [1, 2], 0, 0, slots=0).tolist() == [3, 2]
    once = Sampling(temperature=0.0, presence=0.75)
    assert sample.sample(logits, once, line, [1, 2], 0, 0, slots=0).tolist() == [3, 3]
    each = Sampling(temperature=0.0, frequency=0.75)
    assert sample.sample(logits, each, line, [2, 3], 0, 0, slots=0).tolist() == [3, 2]


def test_a17_top_p_comes_before_min_p():
    """Top-p first: 0.5 + 0.26 reach 0.6, and 0.26 is at least half of 0.5; min-p first would leave one token."""
    logits = np.log(np.array([[0.5, 0.26, 0.24]], np.float32))
    lists = sample.new_lists(1)
    sample.sample(logits, Sampling(top_p=0.6, min_p=0.5), LINE, 0, 0, 0, lists=lists)
    assert lists.of(0)[0].tolist() == [0, 1]
