"""The inverse of the parity modules: attention that is wrong on purpose, each fault caught at the right place."""

import importlib
import types

import numpy as np
import pytest

from qsa.kernels.ops import refuse
from qsa.parity import suite
from qsa.parity.backend import GUARD
from qsa.parity.compare import localise
from qsa.reference.exact.scalar import exp2, fixed_point
from qsa.reference.kv import PagedKV
from support.mutants import ATTEND, INDEXER, KEYS, KV, KV_PAGES, SCORES, SELECT, attend, backend, caught, run

stages = importlib.import_module("qsa.reference.exact.attend")

__all__ = ["backend"]  # a fixture is used by its name


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
        out[1, 17] *= np.float32(1 + 1e-5)
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


@pytest.mark.parametrize("power", [20, 22, 23, 25])
def test_scores_clamped_at_another_limit(power, backend, monkeypatch):
    def off(q, kv, ids, steps):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "SCORE_LIMIT", np.float32(2**power))
            return attend(q, kv, ids, steps)

    caught(ATTEND["corners"], backend(attend=off), "attend: corners")


def test_a_query_cut_off_instead_of_rounded(backend, monkeypatch):
    """The goldens' other queries have no bit to cut off."""

    def cut(q):
        _, e = fixed_point(q)
        return np.trunc(np.ldexp(q.astype(np.float64), 22 - e[..., None])).astype(np.int64), e

    def off(q, kv, ids, steps):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "fixed_point", cut)
            return attend(q, kv, ids, steps)

    assert run(ATTEND["golden"], backend(attend=off)).status == "passed"
    caught(ATTEND["full"], backend(attend=off), "golden attend-1k-int8-8rows-tail1-blocks-page4-full-queries")


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


def test_several_slots_taken_to_have_the_format_of_the_first(backend):
    def multi(q, kv, ids, steps, slots=None, *, schedule="batch"):
        if schedule == "multi" and len({one.pool.format for one in kv}) > 1:
            kv = [kv[0]] * len(kv)
        return attend(q, kv, ids, steps, slots)

    assert run(ATTEND["multi"], backend(attend=multi)).status == "passed"
    caught(ATTEND["mixed"], backend(attend=multi), "multi, slot 1", "multi, slot 2")


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
