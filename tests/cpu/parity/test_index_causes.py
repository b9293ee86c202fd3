"""The cause of wrong selections and wrong scores: every one is named for a kernel that has it, exact and float."""

import sys
import types

import numpy as np
import pytest

from qsa.parity.backend import Backend
from qsa.parity.compare import index_causes
from qsa.parity.contract.number_types import rounded
from qsa.reference import exact
from qsa.reference.geometry import REAL, RULES, step_records
from support.float_kernel import FloatKernel
from support.mutants import run


@pytest.fixture
def backend_of(monkeypatch):
    def make(kernel):
        module = types.ModuleType("theirs")
        module.kernel = kernel
        monkeypatch.setitem(sys.modules, "theirs", module)
        return Backend("theirs:kernel")

    return make


def by(change):
    """select by scores that ``change`` makes of the right ones [blocks], the tail always first."""

    def select(scores, steps, rule):
        ids = np.full((len(steps), REAL.max_width), -1, np.int32)
        for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
            key = np.asarray(change(scores[row, :n_bid]), np.float64)
            cells = np.argsort(-key, kind="stable")[:, None] * 4 + np.arange(4)
            cells = cells[:512] if rule == "blocks" else cells
            ids[row, :width] = np.sort(np.concatenate([np.arange(n_bid * 4, n_kv), cells.ravel()])[:width])
        return ids

    return select


def other_rule(scores, steps, rule):
    rule = RULES[1 - RULES.index(rule)]
    records = step_records(steps[:, 0], rule)
    return exact.select(scores, records, rule=rule)


def higher(scores):
    """Keys whose stable order is that of ties to the higher block."""
    order = np.lexsort((-np.arange(len(scores)), -scores))
    key = np.empty(len(scores))
    key[order] = -np.arange(len(scores))
    return key


def short(scores, steps, rule):
    ids = exact.select(scores, steps, rule=rule)
    for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
        kept = np.argsort(-scores[row, :n_bid], kind="stable")[:511]
        cells = np.sort(np.concatenate([np.arange(n_bid * 4, n_kv), (kept[:, None] * 4 + np.arange(4)).ravel()]))
        ids[row] = -1
        ids[row, : len(cells)] = cells
    return ids


def without_tail(scores, steps, rule):
    ids = exact.select(scores, steps, rule=rule)
    for row, (_, n_kv, _, width) in enumerate(steps.tolist()):
        ids[row, width - n_kv % 4 : width] = -1
    return ids


def unsorted(scores, steps, rule):
    ids = exact.select(scores, steps, rule=rule)
    width = steps[:, 3].min()
    ids[:, :width] = ids[:, :width][:, ::-1]
    return ids


CASE = "selection:op=select,rule={},scores={},context=8192,rows=2,tail=1,seed=2"
SELECT = {
    "ties broken to the higher block": ("blocks", "levels", by(higher)),
    "the budget off: one block too few": ("blocks", "continuous", short),
    "the rule blocks in place of cells": ("cells", "continuous", other_rule),
    "the rule cells in place of blocks": ("blocks", "continuous", other_rule),
    "the lowest scores taken": ("blocks", "continuous", by(lambda s: -s)),
    "negative scores in reverse order": ("blocks", "special", by(lambda s: s.view(np.int32))),
    "scores compared by magnitude": ("blocks", "continuous", by(np.abs)),
    "every block one too high": ("blocks", "continuous", by(lambda s: np.concatenate([[-np.inf], s[:-1]]))),
    "every block one too low": ("blocks", "continuous", by(lambda s: np.concatenate([s[1:], [-np.inf]]))),
    "the first blocks whatever their scores": ("blocks", "continuous", by(lambda s: -np.arange(len(s)))),
    "the last blocks whatever their scores": ("blocks", "continuous", by(lambda s: np.arange(len(s)))),
    "scores compared as bf16": ("blocks", "continuous", by(lambda s: rounded(s, "bf16"))),
    "the scores of row 1": ("blocks", "continuous", lambda s, steps, rule: by(lambda x: x)(s[::-1], steps, rule)),
}


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("words", SELECT)
def test_the_cause_of_a_wrong_selection_is_named(words, arithmetic, backend_of):
    rule, scores, select = SELECT[words]
    declaration = {"arithmetic": arithmetic, "ties": "lowest", "domain": {"nan": True, "infinity": True}}
    kernel = types.SimpleNamespace(select=select, declaration=declaration)
    result = run(CASE.format(rule, scores), backend_of(kernel))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and words in report, report


@pytest.mark.parametrize(
    ("words", "select"), [("not in ascending order", unsorted), ("the tail left out", without_tail)]
)
def test_the_cause_of_a_malformed_selection_is_named(words, select, backend_of):
    kernel = types.SimpleNamespace(select=select, declaration={"arithmetic": "exact"})
    result = run(CASE.format("blocks", "continuous"), backend_of(kernel))
    assert result.status == "failed" and words in "\n".join(result.lines(None))


def test_blocks_in_place_of_cells_and_cells_taken_twice():
    steps = step_records([4095])
    scores = np.random.default_rng(1).standard_normal((1, 1025)).astype(np.float32)
    right = exact.select(scores, steps, rule="blocks")
    blocks = np.full_like(right, -1)
    blocks[0, :512] = right[0, :2048:4] // 4
    assert index_causes.selection(right, blocks, scores, steps) == "blocks in place of cells"
    twice = right.copy()
    twice[0, 1] = twice[0, 0]
    assert index_causes.selection(right, twice, scores, steps) == "cells selected twice, 1 of them"
    assert index_causes.selection(right, right, scores, steps) is None


def dots(q, keys):
    return np.einsum("rhd,bd->rbh", q, keys)


def wrong_scores(change, tail=None):
    """block_scores by ``change`` of (q, keys) [rows, blocks], the tail by ``tail`` of (dots of the dead key, bonus)."""

    def block_scores(q_idx, index, steps):
        out = np.zeros((len(q_idx), index.max_blocks), np.float32)
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            keys = np.concatenate([index.pooled[:n_bid], index.dead[None]])
            out[row, : n_bid + 1] = change(q_idx[[row]], keys)[0]
            dead = np.maximum(q_idx[row] @ index.dead, 0).sum() if tail is None else tail(q_idx[row], index, n_bid)
            bonus = 1e9 if n_kv % 4 else 0
            out[row, n_bid] = dead if tail is not None and tail is no_bonus else dead + bonus
        return out

    return block_scores


def no_bonus(q, index, n_bid):
    return np.maximum(q @ index.dead, 0).sum()


def right(q, keys):
    return np.maximum(dots(q, keys), 0).sum(-1)


SCORES = {
    "relu left out": (lambda q, k: dots(q, k).sum(-1), None),
    "relu after the sum of the heads": (lambda q, k: np.maximum(dots(q, k).sum(-1), 0), None),
    "the magnitude in place of relu": (lambda q, k: np.abs(dots(q, k)).sum(-1), None),
    "the largest head in place of the sum": (lambda q, k: np.maximum(dots(q, k), 0).max(-1), None),
    "indexer head 2 left out": (lambda q, k: right(np.delete(q, 2, axis=1), k), None),
    "indexer head 1 counted twice": (lambda q, k: right(q[:, [0, 1, 1, 2, 3]], k), None),
    "indexer head 3 in place of all": (lambda q, k: right(q[:, [3]], k), None),
    "dims 32 to 63 left out": (
        lambda q, k: right(np.delete(q, range(32, 64), 2), np.delete(k, range(32, 64), 1)),
        None,
    ),
    "the key of the next block": (lambda q, k: right(q, np.roll(k, -1, axis=0)), None),
    "the key of the previous block": (lambda q, k: right(q, np.roll(k, 1, axis=0)), None),
    "keys rounded to bf16": (lambda q, k: right(q, rounded(k, "bf16")), None),
    "the query rounded to bf16": (lambda q, k: right(rounded(q, "bf16"), k), None),
    "scores rounded to bf16": (lambda q, k: rounded(right(q, k), "bf16"), None),
    "scores divided by sqrt(idx_dim)": (lambda q, k: right(q, k) / 128**0.5, None),
    "a factor of 1.5 on the scores": (lambda q, k: right(q, k) * 1.5, None),
    "the bonus of the tail left out": (right, no_bonus),
    "zeros: nothing was written": (lambda q, k: right(q, k) * 0, None),
}


@pytest.mark.parametrize("words", SCORES)
def test_the_cause_of_wrong_scores_is_named_in_the_exact_arithmetic(words, backend_of):
    kernel = types.SimpleNamespace(block_scores=wrong_scores(*SCORES[words]), declaration={"arithmetic": "exact"})
    result = run("accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6", backend_of(kernel))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and words in report, report


@pytest.mark.parametrize("words", [words for words, (_, tail) in SCORES.items() if tail is None])
def test_the_cause_of_wrong_scores_is_named_for_a_float_kernel(words, backend_of):
    change, _ = SCORES[words]

    class Wrong(FloatKernel):
        def block_scores(self, q_idx, index, steps):
            n_bid = int(steps[:, 2].max())
            return change(q_idx, index["keys"][:n_bid]).astype(np.float32)

    result = run("accuracy:op=block_scores,context=1024,rows=1,tail=2,seed=6", backend_of(Wrong()))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and words in report, report


def test_a_missing_dead_key_is_named(backend_of):
    def dead_zero(q, index, n_bid):
        return 0.0

    kernel = types.SimpleNamespace(
        block_scores=wrong_scores(right, dead_zero), declaration={"arithmetic": "exact", "tail_score": True}
    )
    result = run("accuracy:op=block_scores,context=1024,rows=1,tail=0,seed=6", backend_of(kernel))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and "the dead key missing: the tail scores 0" in report, report
