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
    """Every step that failed would be said."""
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


def test_some_record_has_timings():
    assert any(evidence.rows(stored) for stored in RECORDS)


def test_a_record_of_a_part_says_what_it_does_not_hold(tmp_path, monkeypatch, capsys):
    held = record(sections={"tests": evidence.section([step("select")])})
    path = tmp_path / "h200-2026-11-30.json"
    evidence.write(path, held)
    missing = evidence_run.not_recorded(held)
    assert "benchmark/timings" in missing and "tests/attend" in missing and "tests/select" not in missing
    monkeypatch.setattr(evidence, "records", lambda: [held])
    _, rest = gate.CHECKS["evidence"](gate.Run())
    assert rest.status == "unsupported" and "benchmark/timings" in rest.reason
    assert cli.main(["evidence", "show", str(path)]) == 0
    assert "not recorded: benchmark/timings" in capsys.readouterr().out
    whole = record(
        sections={n: evidence.section([step(s.name) for s in f()]) for n, f in evidence_run.SECTIONS.items()}
    )
    assert evidence_run.not_recorded(whole) == []


def test_a_renamed_file_is_shown_and_a_changed_one_is_not(tmp_path, capsys):
    """Somebody's copy of a record is read under any name; a folder of records holds each under its own."""
    path = tmp_path / "copy of a record.json"
    evidence.write(path, record())
    assert cli.main(["evidence", "show", str(path)]) == 0
    assert capsys.readouterr().out.startswith("h200-2026-11-30: NVIDIA H200")
    out = tmp_path / "merged" / "h200-2026-11-30.json"
    assert cli.main(["evidence", "merge", str(path), "--out", str(out)]) == 0 and evidence.load(out) == record()
    with pytest.raises(evidence.EvidenceError, match="as the file is called"):
        evidence.records(tmp_path)
    capsys.readouterr()
    path.write_text(path.read_text().replace("580.1", "580.2"))
    assert cli.main(["evidence", "show", str(path)]) == 2
    assert "seal" in capsys.readouterr().err
    path.write_text(json.dumps({**plain(record()), "name": "other-2026-11-30"}))
    assert cli.main(["evidence", "show", str(path)]) == 2


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
    [
        ("off_us", [9.0]),
        ("unset_us", [8.0]),
        ("on_us", [8.0, 0.0]),
        ("on_us", [8.0, "20"]),
        ("contexts", [1024, 0.5]),
        ("switch", None),
    ],
)
def test_a_damaged_row_of_a_switch_names_file_and_field(tmp_path, field, value):
    sections = {"benchmark": evidence.section([step(results={"switches": [{**SWITCH, field: value}]})])}
    path = tmp_path / "h200-2026-11-30.json"
    path.write_text(json.dumps(plain(record(sections=sections))))
    with pytest.raises(evidence.EvidenceError, match=rf"h200.*switches\[0\].{field}"):
        evidence.load(path)
