"""The inverse of the parity modules: backends wrong on purpose, each caught by its module at the right place."""

import importlib
import sys
import types

import numpy as np
import pytest

from qsa.kernels.ops import refuse
from qsa.parity import suite
from qsa.parity.backend import GUARD, Backend
from qsa.reference import exact
from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.exact.scalar import exp2
from qsa.reference.kv import PagedKV

stages = importlib.import_module("qsa.reference.exact.attend")

ATTEND = {
    "int8": "accuracy:op=attend,format=int8,scores=ordinary,context=500,rows=2,tail=2,seed=1",
    "q4_0": "accuracy:op=attend,format=q4_0,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "one": "accuracy:op=attend,format=int8,scores=ordinary,context=0,rows=1,tail=1,seed=1",
    "page": "pages:op=attend,format=int8,page=4,order=shuffled,missing=middle,context=300,tail=2,seed=2",
    "poison": "pages:op=attend,format=int8,page=64,order=shuffled,missing=last,context=4092,tail=2,seed=1",
    "split": "split:op=attend,schedule=split,splits=7,format=int8,context=500,rows=2,tail=2,seed=1",
    "step": "split:op=attend,schedule=step,splits=1,format=int8,context=500,rows=2,tail=2,seed=1",
    "multi": "split:op=attend,schedule=multi,splits=1,format=int8,context=500,rows=4,tail=2,seed=1",
    "golden": "attend:format=int8,context=1024,rows=1,tail=0,rule=blocks,page=512,seed=7",
}
SELECT = {
    "equal": "selection:op=select,rule=blocks,scores=equal,context=2052,rows=1,tail=1,seed=1",
    "levels": "selection:op=select,rule=cells,scores=levels,context=8192,rows=2,tail=3,seed=2",
    "special": "selection:op=select,rule=blocks,scores=special,context=8192,rows=2,tail=1,seed=2",
    "513": "selection:op=select,rule=blocks,scores=continuous,context=2056,rows=1,tail=0,seed=1",
    "golden": "select:rule=blocks,scores=continuous,context=1024,rows=1,tail=0,seed=7",
}
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"
KV = "accuracy:op=append_kv,format=int8,rows=16,seed=4"
KV_PAGES = "pages:op=append_kv,format=q4_0,page=4,order=reversed,missing=last,rows=21,seed=3"


def attend(q, kv, ids, steps, slots=None, out=None, *, schedule="batch", splits=1, arithmetic="exact"):
    return exact.attend(q, kv, ids, steps, slots, out, splits=splits)


@pytest.fixture
def backend(monkeypatch):
    """A function that makes a Backend of the exact operations with some replaced, or left out where None is given."""

    def make(**functions):
        module = types.ModuleType("mutant")
        right = {name: getattr(exact, name) for name in ("append_kv", "append_index", "block_scores", "select")}
        for name, function in ({"attend": attend} | right | functions).items():
            if function is not None:
                setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "mutant", module)
        return Backend("mutant")

    return make


def run(text, backend):
    return suite.run_case(suite.parse(text), backend)


def caught(text, backend, *words):
    """Assert that a case fails and that its report says ``words`` and how to run it again."""
    result = run(text, backend)
    said = "\n".join(result.lines(backend))
    assert result.status == "failed", said
    assert f"qsa parity --backend mutant --case '{text}'" in said
    for word in words:
        assert word in said
    return result


@pytest.mark.parametrize("text", [*ATTEND.values(), *SELECT.values(), INDEXER, KEYS, SCORES, KV, KV_PAGES])
def test_the_right_backend_passes_every_case_used_here(text, backend):
    result = run(text, backend())
    assert result.status == "passed", "\n".join(result.lines(backend()))


def test_zeros(backend):
    mutant = backend(attend=lambda q, kv, ids, steps: np.zeros(q.shape, np.float32))
    result = caught(ATTEND["int8"], mutant, "zeros", "row 0, head 0", "first: [0, 0, 0]", "bound: ")
    assert result.worst.measure == 1


def test_an_output_that_is_not_written(backend):
    caught(ATTEND["int8"], backend(attend=lambda q, kv, ids, steps, out: True), f"got {GUARD:.9g}")


def test_an_output_kept_from_the_call_before(backend):
    kept = []

    def stale(q, kv, ids, steps, **keywords):
        kept.append(attend(q, kv, ids, steps))
        return kept[0]

    mutant = backend(attend=stale)
    assert run(ATTEND["int8"], mutant).status == "passed"
    caught(ATTEND["int8"].replace("seed=1", "seed=2"), mutant)


def test_writing_outside_the_output(backend):
    def wide(q, kv, ids, steps, out):
        attend(q, kv, ids, steps, out=out)
        np.lib.stride_tricks.as_strided(out, (len(out) + 1, *out.shape[1:]))[-1, 0, 0] = 0
        return out

    caught(ATTEND["int8"], backend(attend=wide), "wrote outside its output")


def test_a_dropped_tail(backend):
    def tailless(q, kv, ids, steps):
        return attend(q, kv, np.where(ids >= steps[:, 2:3] * 4, -1, ids), steps)

    caught(ATTEND["int8"], backend(attend=tailless), "consistent with: the tail left out")


def test_query_heads_spread_over_kv_heads_by_modulo(backend):
    order = np.concatenate([np.arange(0, 24, 2), np.arange(1, 24, 2)])

    def modulo(q, kv, ids, steps):
        out = np.empty_like(q)
        out[:, order] = attend(q[:, order], kv, ids, steps)
        return out

    caught(ATTEND["int8"], backend(attend=modulo), "head 1:", "KV head 1 (head modulo n_head_kv)")


def test_scores_without_their_factor(backend):
    mutant = backend(attend=lambda q, kv, ids, steps: attend(q * 16, kv, ids, steps))
    caught(ATTEND["int8"], mutant, "consistent with: scores without 1/sqrt(head_dim)")


def test_a_rotation_without_its_factor_and_other_factors(backend):
    mutant = backend(attend=lambda q, kv, ids, steps: attend(q, kv, ids, steps) * 16)
    caught(ATTEND["q4_0"], mutant, "consistent with: a rotation without 1/sqrt(head_dim)")
    mutant = backend(attend=lambda q, kv, ids, steps: -attend(q, kv, ids, steps))
    caught(ATTEND["q4_0"], mutant, "consistent with: the opposite sign")
    mutant = backend(attend=lambda q, kv, ids, steps: attend(q, kv, ids, steps) * 3)
    caught(ATTEND["int8"], mutant, "consistent with: a factor of 3")


def test_an_error_a_little_above_the_bound(backend):
    def off(q, kv, ids, steps):
        out = attend(q, kv, ids, steps)
        out[1, 17] *= np.float32(1 + 2e-6)
        return out

    result = caught(ATTEND["int8"], backend(attend=off), "row 1, head 17", "off by rounding alone")
    assert 1 < result.worst.share < 4 and result.worst.worst["head"][0] == 17


def test_one_weight_off_by_its_last_bit_is_found_at_its_stage(backend, monkeypatch):
    right = stages.weights

    def wrong(s, cells, top, geometry):
        p, w = right(s, cells, top, geometry)
        w[:, 0, :1] += 1
        return p, w

    def off(q, kv, ids, steps):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "weights", wrong)
            return attend(q, kv, ids, steps)

    def attend_stages(q, kv, ids, steps, row):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "weights", wrong)
            from qsa.parity import localise

            return localise.stages(types.SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps), row)

    mutant = backend(attend=off, attend_stages=attend_stages)
    text = "pages:op=attend,format=int8,page=1,order=identity,missing=none,context=2,tail=0,seed=2"
    caught(text, mutant, "first wrong in weights at [0, 0, 0]")


def test_exp2_off_in_its_last_bit(backend, monkeypatch):
    def wrong(x):
        r, n = exp2(x)
        return np.nextafter(r, np.float32(0)), n

    def off(q, kv, ids, steps):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "exp2", wrong)
            return attend(q, kv, ids, steps)

    caught(ATTEND["page"], backend(attend=off), "ULP apart")
    caught(ATTEND["golden"], backend(attend=off), "golden attend-1k-int8", "blocks differ: [0, ")


def test_a_page_that_is_not_resident_read_as_zeros(backend):
    def zeros(q, kv, ids, steps):
        table = kv.table.copy()
        pool = type(kv.pool)(kv.pool.format, kv.pool.n_pages + int((table < 0).sum()), kv.pool.page_size)
        for new, old in ((pool.k, kv.pool.k), (pool.v, kv.pool.v)):
            new.codes[: kv.pool.n_pages], new.scale[: kv.pool.n_pages] = old.codes, old.scale
        table[table < 0] = np.arange(kv.pool.n_pages, pool.n_pages)
        return attend(q, PagedKV(pool, table), ids, steps)

    caught(ATTEND["page"], backend(attend=zeros), "cells of pages that are not resident counted as zero rows")


def test_ids_read_behind_the_width(backend):
    def wide(q, kv, ids, steps):
        steps = steps.copy()
        steps[:, 3] = np.where(steps[:, 0] < 0, 0, ids.shape[1])
        return attend(q, kv, ids, steps)

    caught(ATTEND["poison"], backend(attend=wide), "attend: pages")


def test_an_unused_row_that_is_not_left_at_zero(backend):
    def used(q, kv, ids, steps):
        out = attend(q, kv, ids, steps)
        out[steps[:, 0] < 0] = np.nan
        return out

    caught(ATTEND["page"], backend(attend=used), "first: [1, 0, 0]: expected 0")


def test_a_split_that_loses_its_last_part(backend):
    def split(q, kv, ids, steps, *, schedule="batch", splits=1):
        steps = steps.copy()
        if splits > 1:
            steps[:, 3] -= steps[:, 3] // splits
        return attend(q, kv, ids, steps)

    caught(ATTEND["split"], backend(attend=split), "attend: split in 7", "bad: ")
    assert run(ATTEND["split"].replace("splits=7", "splits=1"), backend(attend=split)).status == "passed"


def test_a_step_that_rounds_otherwise(backend):
    def step(q, kv, ids, steps, *, schedule="batch"):
        out = attend(q, kv, ids, steps)
        return np.nextafter(out, np.float32(0)) if schedule == "step" else out

    caught(ATTEND["step"], backend(attend=step), "attend: step", "1 ULP apart")


def test_several_slots_read_from_the_pool_of_the_first(backend):
    def multi(q, kv, ids, steps, slots=None, *, schedule="batch"):
        if schedule == "multi":
            kv, slots = kv[0], None
        return attend(q, kv, np.minimum(ids, 489), steps, slots)

    caught(ATTEND["multi"], backend(attend=multi), "multi, slot 1")


def test_an_exception_is_a_failed_case_and_the_run_goes_on(backend):
    def broken(q, kv, ids, steps):
        raise RuntimeError("no such kernel")

    mutant = backend(attend=broken)
    caught(ATTEND["int8"], mutant, "RuntimeError: no such kernel", "test_parity_modules.py, line", "in broken")
    tally = suite.run([suite.parse(ATTEND["int8"]), suite.parse(SELECT["equal"])], mutant)
    assert [one.status for one in tally.results] == ["failed", "passed"] and tally.exit_code == 1


def test_a_refusal_and_a_missing_operation_are_unsupported_with_their_reason(backend):
    refused = run(ATTEND["int8"], backend(attend=lambda q, kv, ids, steps: refuse("attend", "geometry")))
    assert (refused.status, refused.reason) == ("unsupported", "attend: refused: geometry")
    missing = run(SELECT["equal"], backend(select=None))
    assert (missing.status, missing.reason) == ("unsupported", "select: the backend has none")
    scheduled = run(ATTEND["step"], backend(attend=lambda q, kv, ids, steps: attend(q, kv, ids, steps)))
    assert "takes no schedule" in scheduled.reason
    tally = suite.run([suite.parse(SELECT["equal"])], backend(select=None))
    assert tally.exit_code == 1 and tally.count("unsupported") == 1


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


def test_minus_zero_below_plus_zero(backend):
    def wrong(scores, steps, rule):
        def order(row, n_bid):
            x = scores[row, :n_bid]
            return np.lexsort((np.arange(n_bid), np.signbit(x) & (x == 0), -x))

        return ranked(order, steps, rule)

    # 600 blocks: 500 of 1, then zeros of both signs at the cut.
    from qsa.parity.margins import margins
    from qsa.reference.geometry import step_records

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
