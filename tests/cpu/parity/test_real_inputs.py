"""Inputs like those of real models: they are what they are called, and kernels that real models break fail on them."""

import sys
import types

import numpy as np
import pytest

from qsa.parity import accuracy_table
from qsa.parity.backend import Backend
from qsa.parity.checks import attend_inputs as data
from qsa.parity.checks import real_inputs, real_scores
from qsa.parity.compare.ceiling import EXP2_ERROR, exact_ceiling
from qsa.parity.compare.comparison import relative_error
from qsa.reference import exact
from qsa.reference.attend import attend as attend64
from qsa.reference.exact.scalar import exp2
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL
from support.float_kernel import FloatKernel
from support.mutants import run
from support.type_check import ROOT

CASE = "accuracy:op=attend,format={},scores={},context=300,rows=2,tail=1,seed=11"


def made(kind, format="f64", **changes):
    recipe = {"format": format, "scores": kind, "context": 300, "rows": 2, "tail": 1, "seed": 11}
    return data.attend_inputs(recipe | changes)


def nats(w, row, head):
    return w.k[:, head // 12].astype(np.float64) @ w.q[row, head].astype(np.float64) / 16


@pytest.mark.parametrize("nats_of", [30, 100, 300])
def test_a_bias_adds_its_nats_to_every_cell(nats_of):
    w, plain = made(f"bias{nats_of}"), made("ordinary")
    added = w.q[..., 60][0, 0] * w.k[:, 0, 60] / 16
    assert np.allclose(added, nats_of) and np.ptp(added) == 0
    assert np.array_equal(np.delete(w.k, 60, -1), np.delete(plain.k, 60, -1))


def test_cancelling_dims_lie_in_groups_of_their_own_and_cancel():
    w = made("cancel")
    terms = (w.q[0, 0] * w.k[:, 0] / 16).astype(np.float64)
    assert (np.abs(terms[:, 60]) > 250).all() and np.abs(terms[:, [60, 200]].sum(1)).max() < 60
    assert {60 // 64, 200 // 64} == {0, 3} and 60 // 32 != 200 // 32


@pytest.mark.parametrize("share", [5, 47, 95])
@pytest.mark.parametrize("place", ["sink", "middle"])
def test_a_sink_has_its_share_of_the_mass_and_a_small_value(place, share):
    w = made(f"{place}{share}")
    cell = 0 if place == "sink" else len(w.k) // 2
    for row, head in ((0, 0), (1, 17)):
        width = int(w.steps[row, 3])
        s = nats(w, row, head)[:width]
        p = np.exp(s - s.max())
        assert abs(p[cell] / p.sum() - share / 100) < 1e-5
    assert np.linalg.norm(w.v[cell]) < np.linalg.norm(w.v[1]) / 20


def test_outliers_large_values_and_near_duplicates():
    plain, rope = made("ordinary"), made("rope30")
    assert np.allclose(rope.k[..., [28, 63]], 30 * plain.k[..., [28, 63]])
    assert np.array_equal(rope.k[..., 64:], plain.k[..., 64:])
    assert np.allclose(made("vchannel").v[..., 7], 1000 * plain.v[..., 7])
    assert np.allclose(made("vcell").v[5], 1000 * plain.v[5])
    near = made("near").k
    assert 0 < np.abs(near - near[:1]).max() < 2.0**-6


def test_rows_of_shared_selections_have_nine_tenths_in_common():
    w = made("shared", context=4096, rows=3)
    sets = [set(row[row >= 0]) for row in w.ids]
    for a, b in ((0, 1), (1, 2)):
        assert 0.88 < len(sets[a] & sets[b]) / len(sets[a]) < 0.92
    assert [len(s) for s in sets] == w.steps[:, 3].tolist()


@pytest.mark.parametrize("kind", [*real_inputs.KINDS, "shared"])
@pytest.mark.parametrize("format", EXACT_FORMATS)
def test_the_exact_arithmetic_stays_below_its_ceiling(format, kind):
    w = made(kind, format, tail=0)
    truth, got = attend64(w.q, w.kv, w.ids, w.steps), exact.attend(w.q, w.kv, w.ids, w.steps)
    errors = relative_error(truth, got)
    for head in range(0, REAL.n_head, 5):
        bounds = exact_ceiling(w, truth, np.full(len(truth), head))
        assert np.isfinite(bounds).all() and (errors[:, head] <= bounds).all() and (bounds < 0.01).all()


@pytest.mark.parametrize("format", EXACT_FORMATS)
@pytest.mark.parametrize("kind", ["ordinary", "bias300", "near"])
def test_an_output_beyond_the_ceiling_fails(format, kind):
    """A bound that has no upper side is none: an error of 1.2 times the ceiling fails."""
    w = made(kind, format)
    truth = attend64(w.q, w.kv, w.ids, w.steps)
    bounds = exact_ceiling(w, truth, np.zeros(2, int))
    wrong = truth.copy()
    wrong[:, 0] *= 1 + 1.2 * bounds[:, None]
    assert not data.ceiling(w, truth, wrong, np.full((2, 1), 1e-6)).passed
    wrong[:, 0] = truth[:, 0] * (1 + 0.9 * bounds[:, None])
    assert data.ceiling(w, truth, wrong, np.full((2, 1), 1e-6)).passed


def test_one_cell_a_row_without_cells_and_zero_values_have_finite_ceilings():
    w = made("ordinary", "int8", context=0, rows=1)
    truth = attend64(w.q, w.kv, w.ids, w.steps)
    assert 0 < exact_ceiling(w, truth, np.zeros(1, int))[0] < 1e-6
    none = w._replace(steps=w.steps * [1, 1, 1, 0])
    assert exact_ceiling(none, np.zeros(truth.shape), np.zeros(1, int)).tolist() == [0]
    w.kv.pool.v.scale[...] = 0
    assert exact_ceiling(w, np.zeros(truth.shape), np.zeros(1, int)).tolist() == [0]


def test_the_error_of_exp2_near_its_worst_is_within_what_the_contract_says():
    """Design section 4: the largest error lies where the fraction of a small negative x is rounded."""
    worst = np.float32(-0.0021338165)
    near = (worst.view(np.uint32) + np.arange(-4096, 4096)).astype(np.uint32).view(np.float32)
    r, n = exp2(near)
    error = np.abs(r * np.exp2(n.astype(np.float64)) / np.exp2(near.astype(np.float64)) - 1)
    assert 1.2e-7 < error.max() <= EXP2_ERROR
    f = near - np.floor(near)
    assert (f.astype(np.float64) != near.astype(np.float64) - np.floor(near.astype(np.float64))).any()


# Kernels that real models break


@pytest.fixture
def backend_of(monkeypatch):
    def make(kernel):
        module = types.ModuleType("theirs")
        module.kernel = kernel
        monkeypatch.setitem(sys.modules, "theirs", module)
        return Backend("theirs:kernel")

    return make


@pytest.mark.parametrize("kind", [*real_inputs.KINDS, "shared"])
def test_an_honest_float_kernel_passes_on_every_kind(kind, backend_of):
    result = run(CASE.format("own", kind), backend_of(FloatKernel()))
    assert result.status == "passed", "\n".join(result.lines(None))


class NoMaximum(FloatKernel):
    """exp without the maximum being subtracted: right for ordinary scores."""

    def attend(self, q, kv, ids, steps):
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[row, :width]].transpose(0, 2, 1, 3)
            with np.errstate(all="ignore"):
                p = np.exp(q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16))
                out[row] = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        return out


class HalfScores(FloatKernel):
    """Scores kept in fp16: right to its bound where it declares that, but not said."""

    def attend(self, q, kv, ids, steps):
        out = np.empty(q.shape, np.float32)
        for row, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[row, :width]].transpose(0, 2, 1, 3)
            s = (q[row].reshape(2, 12, 256) @ k.transpose(0, 2, 1) / np.float32(16)).astype(np.float16)
            p = np.exp(s.astype(np.float32) - s.max(-1, keepdims=True))
            out[row] = (p @ v / p.sum(-1, keepdims=True)).reshape(24, 256)
        return out


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [(NoMaximum, "bias300", "the maximum not subtracted: exp overflows"), (HalfScores, "bias100", "scores rounded to")],
)
def test_a_kernel_that_a_key_bias_breaks_fails(kernel, kind, words, backend_of):
    result = run(CASE.format("own", kind), backend_of(kernel()))
    report = "\n".join(result.lines(None))
    assert result.status == "failed" and words in report, report
    if kernel is NoMaximum:
        assert run(CASE.format("own", "ordinary"), backend_of(kernel())).status == "passed"


def full_buffer(room):
    """A selection whose coarse bin has room for so many candidates: the others are lost."""

    def select(scores, steps, rule):
        ids = []
        for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist(), strict=True):
            seen = row[:n_bid]
            coarse = seen.view(np.uint32) >> 16
            order = np.sort(coarse)[::-1]
            cut = order[min(511 + (rule == "cells"), n_bid - 1)]
            kept = np.flatnonzero(coarse > cut)
            kept = np.concatenate([kept, np.flatnonzero(coarse == cut)[:room]])
            best = kept[np.lexsort((kept, -seen[kept]))][: 512 + (rule == "cells")]
            cells = (best[:, None] * 4 + np.arange(4)).ravel()
            ids.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
        return ids

    return types.SimpleNamespace(select=select)


@pytest.mark.parametrize(
    ("kind", "context", "room"), [("bin4097", 20480, 4096), ("bin16385", 81920, 16384), ("bin32768", 135168, 32767)]
)
def test_a_search_with_room_for_too_few_candidates_fails(kind, context, room, backend_of):
    text = f"selection:op=crowded,rule=blocks,scores={kind},context={context},rows=1,tail=1,seed=8"
    assert run(text, backend_of(full_buffer(1 << 30))).status == "passed"
    assert run(text, backend_of(full_buffer(room))).status == "failed"


def test_crowded_scores_are_one_bin_and_rows_share_theirs():
    recipe = {"rule": "blocks", "context": 81920, "rows": 2, "tail": 1, "seed": 8}
    scores = real_scores.scores({**recipe, "scores": "bin16385"})["scores"]
    crowd = scores[0][(scores[0] >= 1) & (scores[0] < 1.5)]
    assert len(crowd) == len(np.unique(crowd)) == 16385 and len(np.unique(crowd.view(np.uint32) >> 16)) == 1
    shared = real_scores.scores({**recipe, "scores": "shared"})["scores"]
    assert 0.8 < (shared[0] == shared[1]).mean() < 0.93


def test_the_page_has_every_kind_of_input_and_the_table_its_numbers():
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for kind in data.SCORES:
        assert f"`{kind}`" in page
        for format in EXACT_FORMATS:
            line = next(line for line in page.splitlines() if line.startswith(f"| {kind} | {format} | "))
            measured, _, detector, ceiling = (float(x) for x in line.strip("| ").split(" | ")[3:])
            assert measured < detector and measured < ceiling
    assert next(accuracy_table.rows()) in page
