"""Rows for the samplers of every backend, and what the reference's exact sampler makes of them."""

from dataclasses import dataclass

import numpy as np

from qsa.reference.exact import sampler as exact
from qsa.reference.philox import words
from qsa.reference.sampler import GREEDY, PICK, Sampling

BINARY = float.fromhex("0x1.71547652b82fep+0")
"""Temperature log2(e), at which a logit's unit is a power of two."""

CHAINS = {
    "plain": Sampling(),
    "greedy": GREEDY,
    "greedy, penalties": Sampling(temperature=0, repeat=1.3, frequency=0.2),
    "server": Sampling(temperature=1.0, top_k=20, top_p=0.95, min_p=0.05),
    "top-k": Sampling(top_k=5),
    "half": Sampling(top_p=0.5),
    "top-p": Sampling(top_p=0.8, min_keep=3),
    "top-p of nothing": Sampling(top_p=0.0),
    "min-p": Sampling(min_p=0.1, temperature=1.7),
    "penalties": Sampling(repeat=1.25, frequency=0.125, presence=0.5),
    "penalties of all": Sampling(repeat=1.1, presence=-0.4, last_n=-1, top_p=0.9),
    "rewards": Sampling(repeat=0.6, frequency=-0.1, last_n=3),
    "everything": Sampling(0.7, 40, 0.95, 0.02, 2, 32, 1.2, 0.1, 0.1),
    "hot": Sampling(temperature=1e30),
    "cold": Sampling(temperature=1e-30),
    "binary": Sampling(temperature=BINARY),
    "saturated": Sampling(repeat=3e38, presence=3e38),
}
"""One chain for each part, and for the corners of float32. 17, so that every one meets each of 9 kinds in 153 rows."""

WRONG_ROWS = [
    ([], [], "logits"),
    ([[1.0]], [], "logits"),
    ([0.0, np.nan], [], r"logits\[1\]"),
    ([np.inf, 0.0], [], r"logits\[0\]"),
    ([-np.inf, -np.inf], [], "all -inf"),
    ([0.0, 1.0], [2], "token 2"),
    ([0.0, 1.0], [-1], "token -1"),
]
"""(logits, history, what the error names) of rows that no sampler may take."""


def _normal(rng, n):
    return rng.normal(0, 3, n)


def _levels(rng, n):
    return np.round(rng.normal(0, 1.5, n) * 2) / 2


def _sparse(rng, n):
    return np.where(rng.random(n) < 0.9, -np.inf, rng.normal(0, 2, n))


def _equal(rng, n):
    return np.full(n, rng.choice([0.0, -7.25, 11.0]))


def _peaked(rng, n):
    return rng.normal(0, 1, n) + 30 * (rng.random(n) < 3 / n)


def _signs(rng, n):
    return rng.choice([0.0, -0.0, 1e-45, -1e-45, 1e-38], n)


def _extreme(rng, n):
    return rng.choice([3.4e38, -3.4e38, 1e30, -np.inf, 3.0, 0.0], n)


def _ties(rng, n):
    """Masses of 2^22 and a half, of 24 bits: one in two is a tie, to the even one below or above."""
    return np.where(np.arange(n) == n // 2, 0, rng.uniform(-12.47, -11.79, n))


def _integers(rng, n):
    """Under the chain ``binary`` masses of 2^40 down to a half, a tie, and less."""
    return -rng.integers(0, 44, n).astype(np.float64)


_MAKERS = (_normal, _levels, _sparse, _equal, _peaked, _signs, _extreme, _ties, _integers)
KINDS = {make.__name__[1:]: make for make in _MAKERS}


@dataclass
class Problem:
    """Arguments of a sampler's call on the host; ``options`` one Sampling a row."""

    logits: np.ndarray
    options: list
    history: np.ndarray
    lengths: np.ndarray
    seeds: np.ndarray
    positions: np.ndarray
    slots: np.ndarray

    def __len__(self):
        return len(self.logits)

    def expected(self, row, purpose=PICK):
        """(token, ids, masses) by the reference."""
        history = self.history[self.slots[row], : self.lengths[row]]
        ids, masses = exact.distribution(self.logits[row], history, self.options[row])
        u = exact.uniform(int(self.seeds[row]), int(self.positions[row]), purpose)[0]
        return int(ids[exact.draw(masses, u)]), ids, masses


def problem(rows, vocab, seed=0, chains=tuple(CHAINS), kinds=tuple(KINDS), capacity=200):
    """Rows of every kind under every chain in turn, histories of any length over few tokens, several rows a line."""
    rng = np.random.default_rng(int(words(seed, vocab, rows, 1)[0]))
    logits = np.empty((rows, vocab), np.float32)
    for row in range(rows):
        kind = kinds[row % len(kinds)]
        logits[row] = KINDS[kind](rng, vocab)
        if not np.isfinite(logits[row]).any():
            logits[row, rng.integers(vocab)] = 0
    lines = max(1, rows // 2)
    return Problem(
        logits=logits,
        options=[CHAINS[chains[row % len(chains)]] for row in range(rows)],
        history=_histories(rng, lines, capacity, vocab),
        lengths=rng.integers(0, capacity + 1, rows).astype(np.int32),
        seeds=rng.integers(0, 2**64, rows, np.uint64),
        positions=rng.integers(0, 2**20, rows),
        slots=rng.integers(0, lines, rows).astype(np.int32),
    )


def _histories(rng, lines, capacity, vocab):
    """Half of the lines over few tokens, so that they occur several times; the others over all."""
    most = np.where(np.arange(lines) % 2, vocab, min(vocab, 40))[:, None]
    return rng.integers(0, most, (lines, capacity)).astype(np.int32)


def faulty(vocab):
    """(a Problem with one row for each error code in turn with good rows between, the codes or 0)."""
    made = problem(9, vocab, seed=5, chains=("penalties", "plain"), kinds=("normal",))
    made.lengths[:], made.slots[:] = 4, 0
    made.history[0, :4], made.history[1, :4], made.history[2, :4] = range(4), vocab, (0, 1, -1, 2)
    made.slots[[3, 5]] = 1, 2
    made.logits[0, vocab // 2] = np.nan
    made.logits[1, vocab - 1] = np.inf
    made.logits[2] = -np.inf
    made.logits[4, 0] = -np.float32(np.nan)
    made.positions[6] = -1
    codes = [exact.NOT_FINITE, exact.NOT_FINITE, exact.IMPOSSIBLE, exact.UNKNOWN_TOKEN, exact.NOT_FINITE]
    return made, np.array([*codes, exact.UNKNOWN_TOKEN, exact.NO_ROW, 0, 0], np.int32)


def boundaries():
    """A problem whose draws fall on the boundary between two tokens: 64 of one mass, u a multiple of 2^18."""
    u = exact.uniform(0, np.arange(1 << 20), PICK)
    positions = np.flatnonzero(u % (1 << 18) == 0)[:4]
    assert positions.size
    made = problem(positions.size, 64, chains=("plain",), kinds=("equal",))
    made.seeds[:], made.positions = 0, positions
    return made


def check(made, tokens, lists, rows=None):
    """Tokens and lists (ids, masses, counts), on the host, are those of the reference."""
    for row in range(len(made)) if rows is None else rows:
        token, ids, masses = made.expected(row)
        named = f"row {row}: {made.options[row]}"
        count = int(lists.counts[row])
        assert count == len(ids), named
        np.testing.assert_array_equal(lists.ids[row, :count], ids, named)
        np.testing.assert_array_equal(lists.masses[row, :count], masses, named)
        assert int(tokens[row]) == token, named
