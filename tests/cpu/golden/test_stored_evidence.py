"""The records of this repository: they load, print, and the gate passes on one that is fresh and has nothing failed."""

import json

import pytest
from msgspec.structs import replace

from qsa.golden import device_records as evidence
from qsa.parity import cli, gate
from qsa.parity.bench import switch_table
from qsa.parity.evidence import run as evidence_run
from support.evidence_records import plain, record, step

RECORDS = evidence.records()
SWITCH = {
    "switch": "topk_scan",
    "what": "selection",
    "contexts": [1024, 65536],
    "off_us": [9.0, 30.0],
    "on_us": [8, 20],
}


@pytest.mark.parametrize("stored", RECORDS, ids=[one.name for one in RECORDS])
def test_the_gate_passes_on_a_stored_record_that_is_fresh(stored):
    """Each row against itself; every step that failed would be said."""
    failed = [step for found in stored.sections.values() for step in found.steps if step.status == "failed"]
    found = gate.judge_evidence(stored, stored.sources)
    assert (found.status, len(found.reason.splitlines()) >= len(failed)) == ("failed" if failed else "passed", True)
    sections = {
        name: evidence.section(
            [replace(step, status="passed", reason="") if step.status == "failed" else step for step in found.steps]
        )
        for name, found in stored.sections.items()
    }
    mended = replace(stored, sections=sections)
    assert gate.judge_evidence(mended, stored.sources).status == "passed"
    rows = list(evidence.rows(stored).values())
    report = {"rows": rows, "clocks": {"end": gate.clocks(stored)}, "unsupported": {}}
    verdicts = list(gate.judge_benchmark(stored, report, lambda names: pytest.fail(f"measured again: {names}")))
    assert [one.status for one in verdicts] == ["passed"] * len(rows)


def test_some_record_has_timings():
    assert any(evidence.rows(stored) for stored in RECORDS)


def test_a_record_of_a_part_says_what_it_does_not_hold(tmp_path, monkeypatch, capsys):
    held = record(sections={"tests": evidence.section([step("select")])})
    path = tmp_path / "h200-2026-11-30.json"
    evidence.write(path, held)
    missing = evidence_run.not_recorded(held)
    assert "benchmark/timings" in missing and "tests/attend" in missing and "tests/select" not in missing
    monkeypatch.setattr(evidence, "records", lambda: [held])
    _, rest = gate.CHECKS["evidence"]()
    assert rest.status == "unsupported" and "benchmark/timings" in rest.reason
    assert cli.main(["evidence", "show", str(path)]) == 0
    assert "not recorded: benchmark/timings" in capsys.readouterr().out
    whole = record(
        sections={n: evidence.section([step(s.name) for s in f()]) for n, f in evidence_run.SECTIONS.items()}
    )
    assert evidence_run.not_recorded(whole) == []


def test_the_table_of_the_switches_is_kept_and_shown(tmp_path, capsys):
    steps = [step(), step("switches", results={"switches": [SWITCH]})]
    path = tmp_path / "h200-2026-11-30.json"
    evidence.write(path, record(sections={"benchmark": evidence.section(steps)}))
    assert evidence.switches(evidence.load(path)) == [SWITCH]
    assert cli.main(["evidence", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    for line in switch_table.lines(switch_table.from_json([SWITCH])):
        assert line in shown
    assert "9.0 -> 8.0" in shown and "30.0 -> 20.0" in shown


@pytest.mark.parametrize(
    ("field", "value"),
    [("off_us", [9.0]), ("on_us", [8.0, 0.0]), ("on_us", [8.0, "20"]), ("contexts", [1024, 0.5]), ("switch", None)],
)
def test_a_damaged_row_of_a_switch_names_file_and_field(tmp_path, field, value):
    sections = {"benchmark": evidence.section([step(results={"switches": [{**SWITCH, field: value}]})])}
    path = tmp_path / "h200-2026-11-30.json"
    path.write_text(json.dumps(plain(record(sections=sections))))
    with pytest.raises(evidence.EvidenceError, match=rf"h200.*switches\[0\].{field}"):
        evidence.load(path)
