"""The published JSON schemas: those of the structs, and every stored record fits its own."""

import json
from typing import get_args, get_type_hints

import jsonschema
import msgspec
import numpy as np
import pytest

from qsa.golden import device_records as evidence
from qsa.golden.store import RECORDS, read_json
from qsa.kernels.sources import root
from qsa.parity import cli, gate, report, schema, suite
from qsa.parity.compare import comparison
from support.evidence_records import ROW, plain, record, step

FAST = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"
STORED = {"golden-record": RECORDS, "evidence": evidence.FOLDER}


def validator(name):
    committed = json.loads((root() / schema.FOLDER / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(committed)
    return jsonschema.Draft202012Validator(committed)


def test_the_committed_schemas_are_those_of_the_structs(tmp_path):
    schema.main(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in (root() / schema.FOLDER).iterdir()}
    assert set(made) == {f"{name}.schema.json" for name in schema.KINDS}


@pytest.mark.parametrize("kind", STORED)
def test_every_stored_record_fits_its_schema(kind):
    held, paths = validator(kind), sorted(STORED[kind].glob("*.json"))
    assert paths
    for path in paths:
        assert not [f"{path.name}: {error.json_path}: {error.message}" for error in held.iter_errors(read_json(path))]


def test_benchmark_results_fit_their_schema():
    held = validator("benchmark-results")
    measured = [stored.sections["benchmark"] for stored in evidence.records() if "benchmark" in stored.sections]
    steps = [step for section in measured for step in section.steps]
    assert steps and all(held.is_valid(step.results) for step in steps)
    assert held.is_valid({"rows": [ROW]}) and not held.is_valid({"rows": [{**ROW, "median_us": 0.0}]})


def test_a_report_fits_its_schema(tmp_path):
    path = tmp_path / "report.json"
    assert cli.main(["parity", "--backend", "cpu", "--case", FAST, "--json", str(path)]) == 0
    made = json.loads(path.read_text())
    assert made["passed"] == 1 and made["cases"][0]["detail"]["comparisons"]
    assert validator("report").is_valid(made)


def test_an_index_of_exported_cases_fits_its_schema(tmp_path):
    assert cli.main(["cases", "export", str(tmp_path / "new"), "--case", FAST]) == 0
    made = json.loads((tmp_path / "new" / "index.json").read_text())
    assert made["cases"][0]["case"] == FAST and validator("cases").is_valid(made)
    assert not validator("cases").is_valid({**made, "storage": "theirs"})


def failed_result():
    """A result with a bad element, and a measure that is not finite."""
    comparisons = (
        comparison.equal("codes", np.array([1, 2]), np.array([1, 3])),
        comparison.error("values", np.ones((2, 4), np.float32), np.full((2, 4), np.nan, np.float32), 0.5, "a test"),
    )
    return suite.Result(suite.Case("pages", "pages:op=x", {}), "failed", 0.1234, comparisons, "no")


def test_a_report_has_the_plain_values_of_its_results():
    """The keys in their order too: reports are read by people."""
    result = failed_result()
    made = report.as_json(suite.Tally([result]), {"gpu": "none"})
    plain = {"passed": 0, "failed": 1, "unsupported": 0, "environment": {"gpu": "none"}, "cases": [result.as_dict()]}
    assert report.json_text(made) == report.json_text(plain)
    assert validator("report").is_valid(json.loads(report.json_text(made)))
    assert list(report.as_json(suite.Tally(), {}, gate.STATUSES))[3] == "stale"
    assert get_args(get_type_hints(report.CaseResult)["status"]) == gate.STATUSES


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("passed",), True),
        (("cases", 0, "status"), "good"),
        (("cases", 0, "more"), 1),
        (("cases", 0, "detail", "comparisons", 0, "first", "ulp"), "1"),
    ],
)
def test_a_damaged_report_does_not_fit(path, value):
    made = json.loads(report.json_text(report.as_json(suite.Tally([failed_result()]), {})))
    *folders, last = path
    part = made
    for key in folders:
        part = part[key]
    part[last] = value
    assert not validator("report").is_valid(made)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(made, report.Report)


@pytest.mark.parametrize("damage", [{"version": "1"}, {"more": 1}, {"sources": {}}, {"seal": None}])
def test_a_damaged_record_does_not_fit(damage):
    held, good = validator("evidence"), plain(record(sections={"tests": evidence.section([step("select")])}))
    assert held.is_valid(good) and not held.is_valid({**good, **damage})
