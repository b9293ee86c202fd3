"""The verify-batch program: what its windows hold, its 45 hashes under each rule, and wrong backends that it names."""

from types import SimpleNamespace

import numpy as np
import pytest

from qsa.golden.case import CaseError, parse
from qsa.golden.families import produce
from qsa.golden.families import verify_batch as family
from qsa.golden.record import Produced
from qsa.golden.store import Store
from qsa.kernels.ops import OPERATIONS
from qsa.kernels.switches import Switches, override, switches
from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.checks import verify_batch, verify_window
from qsa.parity.contract import Kernel
from qsa.reference import exact
from qsa.reference.exact.select import selection_key
from qsa.reference.geometry import step_records
from qsa.reference.index import Index

SMALL = {"slots": 2, "rows": 2, "context": 4096, "rule": "cells", "seed": 3}


def run(text, **functions):
    """The result of a case on the exact reference with some operations replaced."""
    backend = Backend("exact")
    operations = {name: functions.get(name, getattr(exact, name)) for name in ("block_scores", "select", "attend")}
    backend.kernel = Kernel(SimpleNamespace(__name__="wrong", **operations), backend.declaration)
    return suite.run_case(suite.parse(text), backend)


def case_text(op, one="standing", **recipe):
    """The case string of an operation in one pass."""
    return suite.Case.of("verify-batch", {"op": op, "pass": one, **recipe}).text


def window(one="standing", **changes):
    return case_text("window", one, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def cpu():
    return Backend("cpu")


def test_each_rule_has_45_hashes():
    cases = [recipe for recipe in verify_batch.cases("exact") if recipe["op"] == "window"]
    for rule in ("blocks", "cells"):
        for one in verify_batch.PASSES:
            mine = [recipe for recipe in cases if recipe["rule"] == rule and recipe["pass"] == one]
            names = {verify_window.golden_name(recipe) for recipe in mine}
            hashes = [output.hash for name in names for output in Store().load(name).outputs.values()]
            # Each is another, but for the scores: those know no rule.
            assert len(mine) == 15 and len(hashes) == len(set(hashes)) == 45
    windows = {(recipe["slots"], recipe["rows"]) for recipe in cases}
    assert windows == {(2, 1), (2, 2), (4, 2), (6, 1), (1, 4)}
    assert {recipe["context"] for recipe in cases} == {1024, 16384, 65536}


def test_scores_hash_alike_under_both_rules_and_selections_do_not():
    by_rule = {}
    for rule in ("blocks", "cells"):
        names = [f"verify_batch-16k-{slots}slots-{rows}rows-{rule}" for slots, rows in family.WINDOWS]
        by_rule[rule] = [Store().load(name).outputs for name in names]
    for blocks, cells in zip(*by_rule.values(), strict=True):
        assert blocks["scores"].hash == cells["scores"].hash
        assert blocks["ids"].hash != cells["ids"].hash
        assert blocks["attention"].hash != cells["attention"].hash


def test_rows_are_the_last_of_their_slots_and_all_tails_occur():
    w = family.make_inputs({**SMALL, "slots": 4})
    assert w.slots.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert w.steps[:, 1].tolist() == [4095, 4096, 4082, 4083, 4069, 4070, 4056, 4057]
    assert set((w.steps[:, 1] % 4).tolist()) == {0, 1, 2, 3}
    for slot, (index, kv) in enumerate(zip(w.indexes, w.kvs, strict=True)):
        complete = (4096 - 13 * slot) // 4
        assert np.isfinite(index.pooled[:complete]).all() and np.isnan(index.pooled[complete:]).all()
        used = w.ids[w.slots == slot]
        assert (kv.locate(used[used >= 0])[0] >= 0).all()
    # Two rows of a slot do not select the same, two slots do not hold the same.
    assert (w.ids[0] != w.ids[1]).any() and (w.indexes[0].pooled[0] != w.indexes[1].pooled[0]).any()


@pytest.mark.parametrize("rule", ["blocks", "cells"])
@pytest.mark.parametrize("context", [16384, 65536])
def test_ties_stand_at_the_cut_of_some_row(context, rule):
    tied = 0
    for slots, rows in ((2, 2), (1, 4)):
        w = family.make_inputs({"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": 7})
        for scores, (_, n_kv, n_bid, width) in zip(w.scores, w.steps.tolist(), strict=True):
            key = np.sort(selection_key(scores[:n_bid]))[::-1]
            taken = -(-(width - n_kv % 4) // 4)
            tied += key[taken - 1] == key[taken]
    assert tied >= 2


def test_the_index_is_that_of_rows_appended_one_by_one():
    index, raw = family.index_of(9, 1027), family.raw_keys(9, 1027)
    other = Index(index.max_blocks, index.weight)
    exact.append_index(raw, step_records(np.arange(1027)), other)
    assert (other.pooled[:256].view(np.uint32) == index.pooled[:256].view(np.uint32)).all()
    assert (other.dead.view(np.uint32) == index.dead.view(np.uint32)).all()


@pytest.mark.parametrize("one", verify_batch.PASSES)
@pytest.mark.parametrize("rule", ["blocks", "cells"])
def test_the_cpu_kernels_pass_windows_of_every_pass(cpu, rule, one):
    text = case_text("window", one, slots=4, rows=2, context=16384, rule=rule, seed=7)
    result = suite.run_case(suite.parse(text), cpu)
    assert result.status == "passed", list(result.lines(cpu))
    names = [comparison.name for comparison in result.comparisons]
    if one == "schedules":
        schedules = {name: OPERATIONS[operation].schedules for name, operation in verify_window.OUTPUTS.items()}
        assert {f"{name}: {schedule}" for name in schedules for schedule in schedules[name]} == set(names)
    else:
        assert sum(name.startswith("golden") for name in names) == 3


@pytest.mark.parametrize(
    "op, one, comparisons",
    [
        ("scores", "standing", 9),
        ("scores", "switches", 9),
        ("scores", "auto", 9),
        ("scores", "schedules", 41),
        ("draft", "standing", 2),
        ("draft", "switches", 2),
        ("draft", "auto", 2),
        ("draft", "schedules", 5),
    ],
)
def test_the_cpu_kernels_pass_scores_and_drafts_of_every_pass(cpu, op, one, comparisons):
    result = suite.run_case(suite.parse(case_text(op, one, context=1024, seed=7)), cpu)
    assert result.status == "passed", list(result.lines(cpu))
    assert len(result.comparisons) == comparisons


def test_the_draft_sees_the_last_32768_cells():
    q, kv, ids, steps, _ = verify_batch._draft_inputs(65536, 7)
    assert ids.shape == (1, 32768) and (ids[0, 0], ids[0, -1]) == (32768, 65535) and steps.tolist()[0][3] == 32768
    assert (kv.table >= 0).sum() == 8192 and q.shape == (1, 24, 256)
    assert verify_batch._draft_inputs(1024, 7)[2].shape == (1, 1024)


def test_passes_set_the_kernels_switches_and_no_other():
    seen = []

    def block_scores(q_idx, index, steps):
        seen.append(switches())
        return exact.block_scores(q_idx, index, steps)

    of_pass = {}
    with override(topk_scan=True, split_attn=True, batch_qsa_attn=True):
        for one in verify_batch.PASSES[:3]:
            assert run(window(one, context=1024), block_scores=block_scores).status == "passed"
            of_pass[one] = seen[-1]
    kernels = {"topk_scan": False, "scores_transposed": False, "merge_active": False}
    others = {"split_attn": False, "batch_qsa_attn": True}
    assert of_pass == {
        "standing": Switches(**kernels, **others),
        "switches": Switches(**dict.fromkeys(kernels, True), **others),
        "auto": Switches(batch_qsa_attn=True),
    }


def test_the_reference_passes_and_says_what_it_does_not_offer():
    result = run(window("schedules", context=1024))
    assert result.status == "passed"
    assert [one.name for one in result.comparisons] == ["attention: batch", "attention: split"]
    refused = [note.split("schedule ")[1].split(":")[0] for note in result.comparisons[0].notes]
    assert refused[:5] == ["warp", "multi_query", "transposed", "prompt", "held"]
    assert refused[5:] == ["registers", "wide", "scan", "spread", "bounded", "step", "multi", "prompt"]
    nothing = run(case_text("scores", "schedules", context=1024, seed=7))
    assert nothing.status == "unsupported" and "takes no schedule" in nothing.reason


def one_cell_too_many(q, kv, ids, steps, slots=None):
    """The second row of a window sees a cell that is behind it."""
    ids, steps = ids.copy(), steps.copy()
    if len(ids) > 1:
        ids[1, steps[1, 3] - 1] += 1
    return exact.attend(q, kv, ids, steps, slots)


def swapped_pools(q, kv, ids, steps, slots=None):
    """In a batch every slot reads the other's pool."""
    if isinstance(kv, list):
        kv = kv[::-1]
        ids = np.where(ids < min(one.capacity for one in kv), ids, -1)
    return exact.attend(q, kv, ids, steps, slots)


def loses_a_tie(scores, steps, rule):
    """A wide selection that gives ties to the higher index; short rows are right."""
    if scores.shape[1] <= 33792:
        return exact.select(scores, steps, rule=rule)
    ids = np.full((len(scores), 2051), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        best = np.lexsort((-np.arange(n_bid), -scores[row, :n_bid]))
        cells = (best[:, None] * 4 + np.arange(4)).ravel()[: width - n_kv % 4]
        ids[row, :width] = np.sort(np.concatenate([cells, np.arange(n_bid * 4, n_kv)]))
    return ids


def sees_later_blocks(q_idx, index, steps):
    """All rows of a window score the blocks of its last row."""
    steps = steps.copy()
    steps[:, 1:3] = steps[-1, 1:3]
    return exact.block_scores(q_idx, index, steps)


@pytest.mark.parametrize(
    "wrong, outputs",
    [
        ({"attend": one_cell_too_many}, "attention"),
        ({"attend": swapped_pools}, "attention"),
        ({"select": loses_a_tie}, "ids"),
        ({"block_scores": sees_later_blocks}, "scores"),
    ],
)
def test_a_wrong_backend_fails_and_names_the_case(wrong, outputs):
    text = case_text("window", slots=2, rows=2, context=16384, rule="cells", seed=7)
    result = run(text, **wrong)
    assert result.status == "failed" and result.case.text == text
    bad = [one.name for one in result.comparisons if not one.passed]
    assert bad[0] == outputs and f"golden verify_batch-16k-2slots-2rows-cells: {outputs}" in bad
    assert all(outputs in name for name in bad), "the other operations stand for themselves"
    lines = list(result.lines(Backend("exact")))
    assert any(text in line for line in lines) and any("bad:" in line for line in lines)


def test_a_wrong_attention_is_placed_in_its_slot():
    result = run(window(), attend=one_cell_too_many)
    notes = next(one.notes for one in result.comparisons if not one.passed)
    assert notes[0].startswith("slot 0") and "row 1" in notes[1]


def test_scores_that_depend_on_how_many_rows_share_a_call():
    def block_scores(q_idx, index, steps):
        scores = exact.block_scores(q_idx, index, steps)
        return scores if len(scores) < 5 else np.nextafter(scores, np.float32(np.inf))

    result = run(case_text("scores", context=1024, seed=7), block_scores=block_scores)
    bad = [one.name for one in result.comparisons if not one.passed]
    assert bad == [f"scores: {rows} rows against one call per row" for rows in (5, 6, 7, 8)]


def test_a_draft_that_reads_the_selection_s_width_alone():
    def attend(q, kv, ids, steps, slots=None):
        steps = steps.copy()
        steps[:, 3] = np.minimum(steps[:, 3], 2051)
        return exact.attend(q, kv, ids, steps, slots)

    assert run(case_text("draft", context=4096, seed=7), attend=attend).status == "failed"


def test_a_backend_with_one_operation_is_held_to_that_alone():
    backend = Backend("exact")
    backend.kernel = Kernel(SimpleNamespace(__name__="own", select=exact.select), backend.declaration)
    result = suite.run_case(suite.parse(window(context=1024)), backend)
    assert result.status == "passed" and {one.name.split(":")[0] for one in result.comparisons} == {"ids"}
    text = case_text("draft", context=1024, seed=7)
    assert suite.run_case(suite.parse(text), backend).status == "unsupported"


def test_a_golden_of_a_window_is_a_case_of_the_goldens():
    text = Store().load("verify_batch-1k-1slots-4rows-cells").case
    assert suite.run_case(suite.parse(text), Backend("exact")).status == "passed"
    assert not any(recipe["family"] == "verify_batch" for recipe in suite.MODULES["goldens"].cases("exact"))


@pytest.mark.parametrize(
    "text, named",
    [
        ("verify_batch:slots=3,rows=3,context=4096,rule=cells,seed=1", "slots = 3, rows = 3: at most 8"),
        ("verify_batch:slots=1,rows=1,context=100,rule=cells,seed=1", "context = 100"),
        ("verify_batch:slots=1,rows=1,context=4096,rule=cells,seed=4294967296", "seed = 4294967296"),
    ],
)
def test_recipes_outside_the_family_are_named(text, named):
    with pytest.raises(CaseError, match=named):
        produce(*parse(text))


def test_the_outputs_of_a_window_are_those_of_its_operations_in_a_chain():
    w = family.make_inputs(SMALL)
    produced = produce("verify_batch", SMALL)
    assert isinstance(produced, Produced)
    scores = produced.outputs["scores"]
    ids = exact.select(scores, w.steps, rule="cells")
    assert (ids == produced.outputs["ids"]).all()
    assert (exact.attend(w.q, w.kvs, ids, w.steps, w.slots) == produced.outputs["attention"]).all()
