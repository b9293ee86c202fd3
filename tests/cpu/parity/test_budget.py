"""The error budget by stage, and the maps of an error by row and head and by split and block."""

import json

import msgspec
import numpy as np
import pytest

from qsa.parity import report, suite
from qsa.parity.backend import Backend
from qsa.parity.checks import attend_inputs as data
from qsa.parity.compare.budget import STAGES, budget, row_head_map, split_block_map
from qsa.parity.compare.comparison import relative_error
from qsa.parity.contract import Types
from qsa.reference import exact
from qsa.reference.formats import EXACT_FORMATS


def made(format="int8", scores="ordinary", context=300):
    recipe = {"format": format, "scores": scores, "context": context, "rows": 2, "tail": 1, "seed": 11}
    return data.attend_inputs(recipe)


@pytest.mark.parametrize("format", EXACT_FORMATS)
@pytest.mark.parametrize("scores", ["flat", "ordinary", "bias300"])
def test_the_stages_lead_from_what_was_given_to_the_exact_output(format, scores):
    w = made(format, scores)
    found = budget(w, 1, 5, None)
    assert tuple(found) == STAGES and abs(sum(share for _, share in found.values()) - 1) < 1e-9
    parts = {stage: part for stage, (part, _) in found.items()}
    truth, got = data.truth(w), exact.attend(w.q, w.kv, w.ids, w.steps)
    error = relative_error(truth, got)[1, 5]
    # The path ends at the output itself: its error is no more than the sum of the parts, and no less than their rest.
    arithmetic = [parts[stage] for stage in STAGES[1:]]
    assert 2 * max(arithmetic) - sum(arithmetic) - 1e-12 <= error <= sum(arithmetic) + 1e-12
    stored = np.linalg.norm(data.original_truth(w)[1, 5] - truth[1, 5]) / np.linalg.norm(truth[1, 5])
    assert abs(parts["storage"] - stored) < 1e-9 and parts["merge"] == 0
    if scores == "bias300":
        assert parts["dot"] > 0.95 * sum(arithmetic)


@pytest.mark.parametrize(
    ("types", "stage"),
    [({"output": "bf16"}, "output"), ({"weights": "bf16"}, "weights"), ({"scores": "bf16"}, "dot")],
)
def test_a_narrow_type_has_its_stage(types, stage):
    w = made("fp16")
    found = budget(w, 0, 3, Types(**types))
    own = {name: part for name, (part, _) in found.items() if name != "storage"}
    assert max(own, key=own.get) == stage and own[stage] > 10 * sorted(own.values())[-2]


def test_the_map_of_rows_and_heads_has_shares_of_bounds():
    truth = np.ones((2, 3, 4))
    got = truth.copy()
    got[1, 2] *= 1.5
    shares = row_head_map(truth, got, np.array([[0.1], [0.25]]))
    assert shares[0] == [0, 0, 0] and shares[1][:2] == [0, 0] and abs(shares[1][2] - 2) < 1e-9


def test_the_map_of_splits_and_blocks_finds_the_block_at_fault():
    w = made()
    truth = data.truth(w)
    got = exact.attend(w.q, w.kv, w.ids, w.steps).astype(np.float64)
    fewer = np.where(w.ids // 4 == 50, -1, w.ids)
    got[1] = exact.attend(w.q, w.kv, fewer, w.steps)[1]
    shares = split_block_map(w, 1, 7, truth, got, splits=4)
    flat = [share for part in shares for share in part]
    assert len(shares) == 4 and len(flat) == 76 and flat[50] > 0.99
    assert max(flat[:50] + flat[51:]) < 0.5


def test_the_report_has_budget_and_maps_and_a_failure_its_blocks(monkeypatch):
    backend = Backend("exact")
    text = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=2,tail=3,seed=1"
    good = suite.run_case(suite.parse(text), backend)
    right = backend.attend
    monkeypatch.setattr(backend, "attend", lambda q, kv, ids, steps: right(q, kv, ids, steps - np.int32([0, 0, 0, 1])))
    bad = suite.run_case(suite.parse(text), backend)
    made_of = report.as_json(suite.Tally([good, bad]), {"backend": "exact"})
    first, second = (case["detail"]["comparisons"][0] for case in made_of["cases"])
    assert list(first["budget"]) == list(STAGES) and np.array(first["maps"]["row, head"]).shape == (2, 24)
    assert "split, block" not in first["maps"] and len(second["maps"]["split, block"][0]) == 16
    assert any("budget: storage" in line for line in bad.lines(None))
    assert msgspec.convert(json.loads(report.json_text(made_of)), report.Report).failed == 1
