"""What a round of drafts does on the device between the calls of the model: problems, and the host's answers."""

from itertools import pairwise

import numpy as np

from qsa.kernels.cpu import speculative
from qsa.kernels.cpu.sampler import new_lists, sample
from qsa.reference.exact.sampler import NOT_FINITE, option_rows
from qsa.reference.model.ple import hash_constants, ngram_rows
from qsa.reference.sampler import DRAFTER, Sampling

NOT_JUDGED = -1
MOST_KEPT = 64


def padded(lists):
    """A host's lists as the device has them: 64 places a row."""
    rows, held = lists.ids.shape
    ids, masses = np.zeros((rows, MOST_KEPT), np.int32), np.zeros((rows, MOST_KEPT), np.uint64)
    ids[:, :held], masses[:, :held] = lists.ids, lists.masses
    return ids, masses, lists.counts.copy()


def judged(rows, vocab=90, seed=1):
    """(arguments of ``judge`` on the host: own lists, drawn, drafts, listed, which, seeds, positions; accepted;
    tokens).

    Drafts from a list of their own, from the row's own list, of one token, outside the row's list, of no list; and
    rows that judge nothing, whose draft failed, or that failed themselves.
    """
    rng = np.random.default_rng(seed)
    kinds = [
        (Sampling(temperature=1.5, top_k=64), Sampling(temperature=1.1, top_k=60)),
        (Sampling(temperature=0.7, top_k=9), Sampling(temperature=2.5, top_k=3)),
        (Sampling(temperature=0), Sampling(temperature=0)),
        (Sampling(temperature=0), Sampling(temperature=1.0, top_k=20)),
        (Sampling(temperature=1.0, top_p=0.8, top_k=30), Sampling(temperature=0)),
    ]
    chosen = [kinds[row % len(kinds)] for row in range(rows)]
    logits = rng.normal(0, 2, (rows, vocab)).astype(np.float32)
    guesses = (logits + rng.normal(0, 1.5, logits.shape)).astype(np.float32)
    guesses[::4] = logits[::4]
    logits[rows // 2, 3] = np.nan
    seeds = rng.integers(0, 2**63, rows).astype(np.uint64)
    positions = rng.integers(0, 2**40, rows)
    history, lengths = np.zeros((1, 16), np.int32), np.zeros(rows, np.int64)
    own, listed = new_lists(rows, MOST_KEPT), new_lists(rows, MOST_KEPT)
    common = (history, lengths, seeds, positions)
    drawn = sample(logits, option_rows([kind[0] for kind in chosen], rows), *common, slots=0, lists=own)
    options = option_rows([kind[1] for kind in chosen], rows)
    drafts = sample(guesses, options, *common, slots=0, purpose=DRAFTER, lists=listed).astype(np.int32)
    which = np.arange(rows, dtype=np.int32)
    which[1::7], drafts[5::11] = NOT_JUDGED, NOT_FINITE
    drafts[3::13] = vocab + 5  # not in any list
    assert drawn[rows // 2] == NOT_FINITE
    judging = np.where((which >= 0) & (drafts >= 0), drafts, speculative.NO_DRAFT)
    accepted, tokens = speculative.judge(own, judging, listed, seeds, positions)
    given = padded(own), drawn, drafts, padded(listed), which, seeds, positions
    return given, accepted, tokens


def hashed(config, index, seed=2):
    """(ids, before, places, constants, expected rows) of three sequences, with ends of text in and before them."""
    rng = np.random.default_rng(seed)
    constants, eos = hash_constants(config, index), config.eos_token_id
    counts = (1, 5, 2)
    before = rng.integers(0, config.vocab_size, (len(counts), config.ngram_size - 1))
    ids = rng.integers(0, config.vocab_size, sum(counts))
    ids[3], before[2, -1] = eos, eos
    places = [(line, offset) for line, count in enumerate(counts) for offset in range(count)]
    ends = np.cumsum((0, *counts))
    expected = [
        ngram_rows(ids[first:end], before[line], config, constants) for line, (first, end) in enumerate(pairwise(ends))
    ]
    return ids, before, np.array(places, np.int32), constants, np.concatenate(expected)


def copies(rounds, to_device, to_host):
    """Whole groups of 16 bytes and what is left over, aligned and not, of one piece and of several; chosen rows, and
    none in the place of a row below 0."""
    rng = np.random.default_rng(3)
    host = [rng.normal(size=n).astype(np.float32) for n in (1, 4, 7, 1024, 1029, 9001, 9)]
    sources = [to_device(x) for x in host]
    host, sources = [*host, host[-1][1:]], [*sources, sources[-1][1:]]
    targets = [to_device(np.zeros_like(x)) for x in host]
    rounds.copies(rounds.array_table(list(zip(sources, targets, strict=True))))
    for want, got in zip(host, targets, strict=True):
        assert to_host(got).tobytes() == want.tobytes()
    for size in (6, 5000):
        rows, chosen = rng.normal(size=(5, size)).astype(np.float32), np.array([4, 2], np.int32)
        source, which = to_device(rows), to_device(chosen)
        out = to_device(np.zeros((2, size), np.float32))
        lines = [to_device(np.zeros((1, size), np.float32)) for _ in range(2)]
        rounds.copies(rounds.rows_table(2, 4 * size), which, source, out)
        assert to_host(out).tobytes() == rows[[4, 2]].tobytes()
        rounds.copies(rounds.scatter_table(lines), which, source)
        assert b"".join(to_host(line).tobytes() for line in lines) == rows[[4, 2]].tobytes()
        rounds.copies(rounds.gather_table(lines[::-1]), target=out)
        assert to_host(out).tobytes() == rows[[2, 4]].tobytes()
        rounds.copies(rounds.rows_table(2, 4 * size), to_device(np.array([-1, 0], np.int32)), source, out)
        assert to_host(out).tobytes() == rows[[2, 0]].tobytes()
