"""Acceptance of drafts: exactness where the form promises it, and the distribution where that is the promise."""

import numpy as np
import pytest

from qsa.reference.sampler import ACCEPT, DRAFTER, PICK, RESIDUAL, Sampling, distribution, pick, sample, uniform
from qsa.reference.speculative import exact_match, greedy, judge, rejection
from support.chi_square import chi_square_fails

VOCAB = 16
DRAWS = 200_000
SEED = 20261


def one_hot(*tokens, vocab=VOCAB):
    rows = np.zeros((len(tokens), vocab))
    rows[np.arange(len(tokens)), tokens] = 5.0
    return rows


# Greedy and exact match


@pytest.mark.parametrize(
    "drafts, expected",
    [
        ([3, 4, 5], (3, [3, 4, 5, 6])),
        ([3, 4, 9], (2, [3, 4, 5])),
        ([9, 4, 5], (0, [3])),
        ([3, 9, 5], (1, [3, 4])),
    ],
)
def test_greedy(drafts, expected):
    assert greedy(one_hot(3, 4, 5, 6), drafts) == expected


def test_window_of_one_row_is_a_plain_step():
    row = np.random.default_rng(1).normal(0, 2, (1, VOCAB))
    options = Sampling(temperature=0.8, top_p=0.9)
    assert greedy(row, []) == (0, [int(row[0].argmax())])
    for position in range(20):
        expected = (0, [sample(row[0], [2], options, SEED, position)])
        assert exact_match(row, [], [2], options, SEED, position) == expected
        assert rejection(row, [], [], [2], options, SEED, position) == expected


def test_drafts_count_for_the_penalties_of_later_rows():
    # The same row twice: token 3 wins until its penalty, which row 1 must already see for the drafted token 3.
    rows = np.tile(np.array([0.0, 0.0, 4.0, 5.0]), (3, 1))
    options = Sampling(temperature=0.0, repeat=2.0)
    assert greedy(rows, [3, 2], [0], options) == (2, [3, 2, 3])
    assert greedy(rows, [3, 3], [0], options) == (1, [3, 2])
    sharp = Sampling(temperature=1e-3, repeat=2.0)
    assert exact_match(rows, [3, 2], [0], sharp, SEED, 0) == (2, [3, 2, 3])
    assert rejection(rows, [3, 2], [None, None], [0], sharp, SEED, 0) == (2, [3, 2, 3])
    assert rejection(rows, [3, 3], [None, None], [0], sharp, SEED, 0) == (1, [3, 2])


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_exact_match_gives_the_text_of_single_steps(window):
    """Whatever the drafter, the tokens are those of token-by-token sampling: the distribution is the model's own."""
    table = np.random.default_rng(3).normal(0, 1.5, (VOCAB, VOCAB))
    options = Sampling(temperature=0.9, top_k=12, top_p=0.95, repeat=1.2, frequency=0.1, last_n=16)
    plain = [0]
    while len(plain) < 200:
        plain.append(sample(table[plain[-1]], plain, options, SEED, len(plain) - 1))
    text, accepted, rejected = [0], 0, 0
    while len(text) < 200:
        drafts = [int(table[text[-1]].argmax())]
        while len(drafts) < window - 1:
            drafts.append(int(table[drafts[-1]].argmax()))
        drafts = drafts[: window - 1]
        rows = table[[text[-1], *drafts]]
        n, tokens = exact_match(rows, drafts, text, options, SEED, len(text) - 1)
        assert tokens[:n] == drafts[:n] and len(tokens) == n + 1
        text += tokens
        accepted, rejected = accepted + n, rejected + (n < len(drafts))
    assert text[:200] == plain
    assert window == 1 or (accepted > 10 and rejected > 10), "the drafts must have been tried both ways"


# Rejection sampling: statistics


def dense(ids, probabilities):
    full = np.zeros(VOCAB)
    full[ids] = probabilities
    return full


CHAINS = {
    "plain": Sampling(),
    "hot": Sampling(temperature=1.5),
    "cold": Sampling(temperature=0.3),
    "top-k": Sampling(top_k=5),
    "top-p": Sampling(top_p=0.8),
    "min-p": Sampling(min_p=0.1),
    "penalties": Sampling(repeat=1.3, frequency=0.1, presence=0.2),
    "all": Sampling(temperature=0.7, top_k=10, top_p=0.95, min_p=0.05, repeat=1.2),
    "two left": Sampling(top_k=2),
    "one left": Sampling(top_k=1),
}


def target(chain):
    """The row's list under ``chain``; the same logits in every case."""
    logits = np.random.default_rng(5).normal(0, 1.5, VOCAB)
    return distribution(logits, [1, 2, 2, 7], CHAINS[chain])


def drafter(kind, ids, p):
    """(the drafter's own list (ids, probabilities), whether acceptance is told of it)."""
    rng = np.random.default_rng(6)
    others = np.setdiff1d(np.arange(VOCAB), ids)
    if kind == "equal":
        return (ids, p), True
    if kind == "perturbed":
        q = p * np.exp(rng.normal(0, 1, p.size))
        return (ids, q / q.sum()), True
    if kind == "point mass":
        return (ids[-1:], np.ones(1)), False
    if kind == "unlisted":
        return (np.arange(VOCAB), rng.dirichlet(np.ones(VOCAB))), False
    if kind == "wider":
        return (np.arange(VOCAB), rng.dirichlet(np.ones(VOCAB))), True
    if kind == "disjoint":
        return (others, rng.dirichlet(np.ones(others.size))), True
    return (others[:1], np.ones(1)), False  # "excluded": a point mass where p is 0


def judged(ids, p, own, told, decide=judge, first=0, count=DRAWS):
    """(drafts, accepted, tokens) of ``count`` trials at consecutive positions: draft from ``own``, then decide."""
    positions = np.arange(first, first + count)
    u_accept, u_residual = uniform(SEED, positions, ACCEPT), uniform(SEED, positions, RESIDUAL)
    drafts = pick(*own, uniform(SEED, positions, DRAFTER))
    accepted, tokens = np.empty(count, bool), np.empty(count, np.int64)
    for draft in np.unique(drafts):
        at = drafts == draft
        accepted[at], tokens[at] = decide(ids, p, int(draft), own if told else None, u_accept[at], u_residual[at])
    return drafts, accepted, tokens


INSIDE = ("equal", "perturbed", "point mass", "unlisted", "wider")
OUTSIDE = ("disjoint", "excluded")
"""Drafters that draw outside the support, for the chains that cut the vocabulary."""

CASES = [(chain, kind) for chain in CHAINS for kind in INSIDE + OUTSIDE * (target(chain)[0].size < VOCAB)]


@pytest.mark.parametrize("chain, kind", CASES)
def test_rejection_keeps_the_distribution(chain, kind):
    ids, p = target(chain)
    own, told = drafter(kind, ids, p)
    drafts, accepted, tokens = judged(ids, p, own, told)
    assert (tokens[accepted] == drafts[accepted]).all()
    assert not chi_square_fails(tokens, dense(ids, p))
    # The share of accepted drafts is sum min(p, q) with a list and p(draft) without one. Its bound is 4.5 standard
    # errors, which a right sampler leaves once in 150,000 cases.
    full_p, full_q = dense(ids, p), dense(*own)
    share = np.minimum(full_p, full_q).sum() if told else full_p @ full_q
    assert abs(accepted.mean() - share) <= 4.5 * (share * max(0, 1 - share) / DRAWS) ** 0.5 + 1e-12


def test_controls_must_fail():
    """The statistics see the two classical mistakes; a test that passed them would prove nothing."""
    ids, p = target("top-k")
    own, _ = drafter("perturbed", ids, p)

    def always_accept(ids, p, draft, listed, u_accept, u_residual):
        return np.ones(u_accept.size, bool), np.full(u_accept.size, draft)

    def no_list_is_q_zero(ids, p, draft, listed, u_accept, u_residual):
        accepted = u_accept * 0 < p[ids == draft].sum()
        return accepted, np.where(accepted, draft, pick(ids, p, u_residual))

    for told, wrong in ((True, always_accept), (False, no_list_is_q_zero)):
        assert not chi_square_fails(judged(ids, p, own, told)[2], dense(ids, p))
        assert chi_square_fails(judged(ids, p, own, told, wrong)[2], dense(ids, p))


def test_two_tokens_in_a_row_keep_their_joint_distribution():
    """Over a Markov model: the numbers of neighbouring positions and of the four purposes must not know each other."""
    rng = np.random.default_rng(8)
    table = rng.normal(0, 1.0, (VOCAB, VOCAB))
    lists = [distribution(row, (), Sampling(top_k=8)) for row in table]
    owns = [distribution(row + rng.normal(0, 0.7, VOCAB), (), Sampling(top_k=8)) for row in table]
    joint = np.zeros((VOCAB, VOCAB))
    first_ids, first_p = lists[0]
    for token, share in zip(first_ids, first_p, strict=True):
        joint[token] = share * dense(*lists[token])
    # Trial n holds positions n and n + 1, so that every trial's second number is the next one's first: trials are taken
    # two positions apart.
    _, _, tokens = judged(*lists[0], owns[0], True, count=2 * DRAWS)
    first = tokens[0::2]
    second = np.empty_like(first)
    for token in np.unique(first):
        _, _, tokens = judged(*lists[token], owns[token], True, count=2 * DRAWS)
        second[first == token] = tokens[1::2][first == token]
    assert not chi_square_fails(first * VOCAB + second, joint.reshape(-1))


def test_plain_draws_keep_the_distribution():
    for chain in CHAINS:
        ids, p = target(chain)
        assert not chi_square_fails(pick(ids, p, uniform(SEED, np.arange(DRAWS), PICK)), dense(ids, p))


# Rejection sampling: single decisions and whole windows


def test_single_decisions():
    ids, p = np.array([4, 1, 6]), np.array([0.5, 0.25, 0.25])
    told = (np.array([1, 6]), np.array([0.5, 0.5]))
    below, at = 0.5 - 2**-24, 0.5
    assert [int(x) for x in judge(ids, p, 1, told, below, 0.9)] == [True, 1]  # u q < p
    assert [int(x) for x in judge(ids, p, 1, told, at, 0.9)] == [False, 4]  # u q = p: the residual is token 4 alone
    assert [int(x) for x in judge(ids, p, 4, None, below, 0.9)] == [True, 4]
    assert [int(x) for x in judge(ids, p, 4, None, at, 0.4)] == [False, 1]  # point mass: p without the draft
    assert [int(x) for x in judge(ids, p, 4, None, at, 0.6)] == [False, 6]
    assert [int(x) for x in judge(ids, p, 4, told, at, 0.6)] == [False, 6]  # not in the list: a point mass too
    assert [int(x) for x in judge(ids, p, 2, None, 0.0, 0.0)] == [False, 4]  # outside the support


def test_nothing_left_accepts_unless_the_chain_excludes_the_draft():
    one = np.array([4]), np.ones(1)
    assert [int(x) for x in judge(*one, 4, one, 0.999, 0.5)] == [True, 4]
    # p <= q everywhere, p < q at the draft: u q < p fails, but there is no other token to draw.
    loose = (np.array([4, 9]), np.array([1.0, 5e-6]))
    assert [int(x) for x in judge(np.array([4]), np.array([1 - 1e-9]), 4, loose, 1 - 2**-40, 0.5)] == [True, 4]
    assert [int(x) for x in judge(*one, 9, loose, 0.0, 0.5)] == [False, 4]


def test_windows_use_their_rows_positions_and_histories():
    rng = np.random.default_rng(9)
    options = Sampling(temperature=0.9, top_p=0.9, repeat=1.3)
    accepted_counts = set()
    for trial in range(200):
        rows = rng.normal(0, 1, (4, VOCAB))
        drafts = [int(row.argmax()) for row in rows[:3]]
        lists = [None, distribution(rows[1] + 0.1, (), Sampling(top_k=4)), distribution(rows[2], (), Sampling())]
        position, history = 10 * trial, [trial % VOCAB, 3]
        expected = []
        for t in range(4):
            ids, p = distribution(rows[t], history + drafts[:t], options)
            u = {kind: uniform(SEED, position + t, kind)[0] for kind in (PICK, ACCEPT, RESIDUAL)}
            if t == 3:
                expected.append(int(pick(ids, p, u[PICK])))
                break
            kept, token = judge(ids, p, drafts[t], lists[t], u[ACCEPT], u[RESIDUAL])
            expected.append(int(token))
            if not kept:
                break
        got = rejection(rows, drafts, lists, history, options, SEED, position)
        assert got == (len(expected) - 1, expected)
        accepted_counts.add(got[0])
    assert accepted_counts == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: greedy(np.zeros((2, 4)), []), "drafts"),
        (lambda: greedy(np.zeros(4), []), "logits"),
        (lambda: greedy(np.zeros((0, 4)), []), "logits"),
        (lambda: greedy(np.zeros((2, 4)), [4]), "token 4"),
        (lambda: greedy(np.zeros((1, 4)), [], (), Sampling()), "temperature"),
        (lambda: exact_match(np.zeros((1, 4)), [], [], Sampling(), 0, -1), "index"),
        (lambda: rejection(np.zeros((2, 4)), [1], [], [], Sampling(), 0, 0), "lists"),
        (lambda: rejection(np.zeros((2, 4)), [1], [([1, 1], [0.5, 0.5])], [], Sampling(), 0, 0), "distinct"),
        (lambda: rejection(np.zeros((2, 4)), [1], [([1, 2], [0.5, 0.4])], [], Sampling(), 0, 0), "sum"),
        (lambda: rejection(np.zeros((2, 4)), [1], [([1, 2], [1.5, -0.5])], [], Sampling(), 0, 0), "negative"),
    ],
)
def test_errors_name_the_argument(call, named):
    with pytest.raises(ValueError, match=named):
        call()
