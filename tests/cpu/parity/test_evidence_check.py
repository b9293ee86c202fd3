"""``qsa evidence check``: fresh or stale, what failed and what is not recorded, and its exit status."""

import copy

import pytest

from qsa.golden import device_records as evidence
from qsa.golden import sources
from qsa.parity import cli
from qsa.parity.evidence import run as evidence_run
from support.evidence_records import FACTS, FINGERPRINT, record, step


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """The sources as they were when the tests began, whoever edits them meanwhile."""
    monkeypatch.setattr(sources, "fingerprint", lambda: FINGERPRINT)


def whole(name="h200-2026-11-30", bad=(), without=(), **changes):
    """A record of every step of a run but ``without``; those of ``bad`` failed."""
    sections = {
        section: evidence.section(
            [
                step(one.name, "failed" if f"{section}/{one.name}" in bad else "passed")
                for one in steps()
                if f"{section}/{one.name}" not in without
            ]
        )
        for section, steps in evidence_run.SECTIONS.items()
    }
    return record(name, sections, **changes)


OLD = copy.deepcopy(FINGERPRINT)
OLD["files"]["kernels/cuda/select.py"] = "0" * 16


@pytest.mark.parametrize(
    ("records", "codes", "says"),
    [
        ([{}], (0, 0), ["fresh   h200-2026-11-30", "0 steps failed, 0 not recorded"]),
        ([{"bad": ["tests/select"]}], (1, 1), ["failed: tests/select", "1 steps failed, 0 not recorded"]),
        ([{"without": ["tests/select", "parity/split-exact"]}], (0, 1), ["not recorded: tests/select, parity/split-"]),
        # One step that failed, and nothing else.
        ([{"bad": ["repeats/exact"], "without": "all but it"}], (1, 1), ["failed: repeats/exact", "tests/attend"]),
        # What failed with other sources is said, and says nothing of today's.
        ([{"bad": ["tests/select"], "sources": OLD}], (0, 1), ["NVIDIA H200: STALE", "failed: tests/select"]),
        ([{"sources": OLD}, {}], (0, 0), ["stale   h200-2026-11-30 ", "fresh: h200-2026-11-30.2"]),
        # A newer record of other steps does not hide what failed with the same sources.
        ([{"bad": ["tests/select"]}, {"without": ["tests/select"]}], (1, 1), ["1 not recorded"]),
        # One that holds it as passed ends it.
        ([{"bad": ["tests/select"]}, {}], (0, 0), ["failed: tests/select", "fresh: h200-2026-11-30.2, 0 steps failed"]),
        ([{}, {"bad": ["tests/select"]}], (1, 1), ["tests/select failed in h200-2026-11-30.2, and no later record"]),
        ([{}, {"sources": OLD}], (0, 1), ["NVIDIA H200: STALE: h200-2026-11-30.2"]),
    ],
)
def test_check_names_what_failed_and_what_is_not_recorded(tmp_path, capsys, records, codes, says):
    every = [f"{section}/{one.name}" for section, steps in evidence_run.SECTIONS.items() for one in steps()]
    for number, changes in enumerate(records, 1):
        name = "h200-2026-11-30" + (f".{number}" if number > 1 else "")
        if changes.get("without") == "all but it":
            changes = {**changes, "without": [one for one in every if one not in changes["bad"]]}
        evidence.write(tmp_path / f"{name}.json", whole(name, **changes))
    check = ["evidence", "check", "--folder", str(tmp_path)]
    assert cli.main(check) == codes[0]
    said = capsys.readouterr().out
    assert all(one in said for one in says), said
    assert cli.main([*check, "--strict"]) == codes[1]
    assert capsys.readouterr().out == said


def test_check_says_fresh_stale_or_missing(tmp_path, capsys):
    check = ["evidence", "check", "--folder", str(tmp_path)]
    assert (cli.main(check), cli.main([*check, "--strict"])) == (0, 1)
    assert capsys.readouterr().out.count("missing") == 2
    evidence.write(tmp_path / "h200-2026-11-30.json", record(sources=OLD))
    assert (cli.main(check), cli.main([*check, "--strict"])) == (0, 1)
    assert "stale   h200-2026-11-30" in (shown := capsys.readouterr().out) and "changed kernels/cuda/select.py" in shown
    l4 = {**FACTS["device"], "name": "NVIDIA L4"}
    evidence.write(tmp_path / "l4-2026-11-30.json", whole("l4-2026-11-30", device=l4))
    assert (cli.main(check), cli.main([*check, "--strict"])) == (0, 1)
    assert "fresh   l4-2026-11-30" in (shown := capsys.readouterr().out)
    assert "NVIDIA H200: STALE" in shown and "NVIDIA L4: fresh" in shown
    (tmp_path / "l4-2026-11-30.json").write_text("{}")
    assert cli.main(check) == 2
    assert "l4-2026-11-30.json: contract: is missing" in capsys.readouterr().err


def test_the_evidence_of_this_repository(capsys):
    """Valid, and said to speak of today's kernels or not; only what failed with them is a failure."""
    for found in evidence.records():
        assert evidence.check(found, found.name, found.name) == found
    failed = any(evidence.failed(one) for one in evidence.records() if not evidence.stale(one, FINGERPRINT))
    assert cli.main(["evidence", "check"]) == (1 if failed else 0)
    said = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{said}", end="")
    assert said.split()[0] in ("fresh", "stale", "missing:")
