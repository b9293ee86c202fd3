"""The inverse of the parity modules: selection, indexer and appends that are wrong on purpose, each fault caught."""

import numpy as np
import pytest

from qsa.parity.compare.margins import margins
from qsa.reference import exact
from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.geometry import step_records
from qsa.reference.kv import PagedKV
from support.mutants import INDEXER, KEYS, KV, KV_PAGES, SCORES, SELECT, backend, caught, run

__all__ = ["backend"]  # a fixture is used by its name


def ranked(order, steps, rule, tail=True):
    """ids of a selection whose blocks are ``order(row, n_bid)``, best first."""
    ids = np.full((len(steps), 2051), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        wanted = width - n_kv % 4
        cells = (order(row, n_bid)[:, None] * 4 + np.arange(4)).ravel()[:wanted]
        rest = np.arange(n_bid * 4, n_kv) if tail else np.zeros(n_kv % 4, np.int64)
        ids[row, :width] = np.sort(np.concatenate([cells, rest]))
    return ids


def test_ties_to_the_higher_index(backend):
    def wrong(scores, steps, rule):
        def order(row, n_bid):
            return np.lexsort((-np.arange(n_bid), -scores[row, :n_bid]))

        return ranked(order, steps, rule)

    caught(SELECT["equal"], backend(select=wrong), "row 0: tie:", "equal, the lower block goes first")
    caught(SELECT["levels"], backend(select=wrong), "0 wrong")


def test_nan_preferred(backend):
    def wrong(scores, steps, rule):
        def order(row, n_bid):
            return np.argsort(-np.nan_to_num(scores[row, :n_bid], nan=np.inf), kind="stable")

        return ranked(order, steps, rule)

    caught(SELECT["special"], backend(select=wrong), "row 0: wrong:", "nan")


def test_minus_zero_below_plus_zero():
    def wrong(scores, steps, rule):
        def order(row, n_bid):
            x = scores[row, :n_bid]
            return np.lexsort((np.arange(n_bid), np.signbit(x) & (x == 0), -x))

        return ranked(order, steps, rule)

    # 600 blocks: 500 of 1, then zeros of both signs at the cut.
    scores = np.ones((1, 600), np.float32)
    scores[0, 500:] = np.where(np.arange(100) % 2, 0.0, -0.0)
    steps = step_records([2399])
    found = margins(exact.select(scores, steps), wrong(scores, steps, "blocks"), scores, steps)
    assert found.tie > 0 and found.wrong == 0


def test_the_513th_block(backend):
    def wrong(scores, steps, rule):
        ids = exact.select(scores, steps)
        ids[0, 2048:2051] = np.setdiff1d(np.arange(steps[0, 1]), ids[0])[:3]
        return np.where(ids < 0, ids, np.sort(ids))

    caught(SELECT["513"], backend(select=wrong), "row 0: wrong: id", "behind the width of 2048")


def test_a_tail_that_is_not_selected(backend):
    def wrong(scores, steps, rule):
        ids = exact.select(scores, steps, rule=rule)
        for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
            kept = ids[row, : width - n_kv % 4]
            spare = np.setdiff1d(np.arange(n_bid * 4), kept)[: n_kv % 4]
            ids[row, :width] = np.sort(np.concatenate([kept, spare]))
        return ids

    caught(SELECT["levels"], backend(select=wrong), "of the tail is not selected")


def test_an_unused_row_that_is_filled(backend):
    def wrong(scores, steps, rule):
        ids = exact.select(scores, steps, rule=rule)
        ids[steps[:, 1] == 0, 0] = 0
        return ids

    caught(SELECT["unused"], backend(select=wrong), "row 1", "id 0 behind the width of 0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids: ids[:, ::-1], "id -1 among the first"),
        (lambda ids: np.concatenate([ids[:, 1:2], ids[:, :1], ids[:, 2:]], axis=1), "in another order"),
        (lambda ids: np.concatenate([ids[:, :1], ids[:, :1], ids[:, 2:]], axis=1), "selected twice"),
        (lambda ids: ids.astype(np.int64), "int64"),
    ],
)
def test_ids_that_are_no_ascending_list_of_cells(change, words, backend):
    wrong = backend(select=lambda scores, steps, rule: change(exact.select(scores, steps, rule=rule)))
    caught(SELECT["levels"].replace("context=8192", "context=1024"), wrong, words)


def test_a_golden_names_the_block_that_differs(backend):
    def wrong(scores, steps, rule):
        ids = exact.select(scores, steps, rule=rule)
        ids[0, -1] = 0
        return ids

    caught(SELECT["golden"], backend(select=wrong), "golden select-1k", "1 of 1 blocks differ: [0]", "behind the width")


def test_keys_normed_before_they_are_pooled(backend):
    def wrong(raw, steps, index):
        raw = raw / np.sqrt((raw * raw).mean(axis=-1, keepdims=True))
        return exact.append_index(raw.astype(np.float32), steps, index)

    caught(KEYS, backend(append_index=wrong), "append_index: pooled: FAILED", "append_index: tail: FAILED")
    caught(INDEXER, backend(append_index=wrong), "indexer: pooled: FAILED", "cells against float64: FAILED")


def test_scores_of_a_stale_key_in_the_place_of_the_dead_one(backend):
    def wrong(q, index, steps):
        out = exact.block_scores(q, index, steps)
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            out[row, n_bid] = np.float32(TAIL_BONUS if n_kv % 4 else 0)
        return out

    caught(SCORES.replace("tail=2", "tail=0"), backend(block_scores=wrong), "block_scores: row 1")


def test_scores_without_relu_for_each_head(backend):
    def wrong(q, index, steps):
        out = exact.block_scores(q, index, steps)
        for row, n_bid in enumerate(steps[:, 2]):
            out[row, :n_bid] = np.maximum((index.pooled[:n_bid] @ q[row].T).sum(axis=1), 0)
        return out

    caught(SCORES, backend(block_scores=wrong), "block_scores: row 0")


def test_scores_summed_in_another_order_are_accurate_but_not_equal(backend):
    def other(q, index, steps):
        out = exact.block_scores(q, index, steps)
        for row, n_bid in enumerate(steps[:, 2]):
            out[row, :n_bid] = np.maximum(index.pooled[:n_bid] @ q[row].T, 0).sum(axis=1)
        return out

    assert run(SCORES, backend(block_scores=other)).status == "passed"
    result = caught(INDEXER, backend(block_scores=other), "indexer: scores: FAILED")
    assert next(one for one in result.comparisons if "float64" in one.name).passed


def test_codes_cut_off_instead_of_rounded(backend):
    def wrong(k, v, kv, steps, slots=None):
        return exact.append_kv(k * np.float32(0.999), v, kv, steps, slots)

    caught(KV, backend(append_kv=wrong), "append_kv: k_scale: FAILED")


def test_cells_written_through_a_page_that_is_not_resident(backend):
    def wrong(k, v, kv, steps, slots=None):
        table = np.where(kv.table < 0, kv.pool.n_pages - 1, kv.table)
        return exact.append_kv(k, v, PagedKV(kv.pool, table, kv.host), steps, slots)

    caught(KV_PAGES, backend(append_kv=wrong), "append_kv: pool, k codes: FAILED")


def test_a_host_copy_that_is_not_kept(backend):
    def wrong(k, v, kv, steps, slots=None):
        return exact.append_kv(k, v, PagedKV(kv.pool, kv.table), steps, slots)

    caught(KV_PAGES, backend(append_kv=wrong), "append_kv: host, v codes: FAILED")
