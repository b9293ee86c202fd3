"""Evidence records: whole, damaged, merged, stale."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from evidence_records import DEVICE, FINGERPRINT, ROW, record, step

from qsa.golden import evidence, sources
from qsa.kernels.sources import root


def test_a_record_comes_back_as_written(tmp_path):
    path = tmp_path / "deep" / "h200-2026-11-30.json"
    evidence.write(path, record())
    assert evidence.load(path) == record()
    assert evidence.rows(evidence.load(path)) == {"attend:rows=1": ROW}
    assert [one["name"] for one in evidence.records(path.parent)] == ["h200-2026-11-30"]


def test_records_of_a_day_are_in_the_order_of_their_numbers(tmp_path):
    later = "h200-2026-11-29.3"
    ordered = ["h200-2026-11-30", *(f"h200-2026-11-30.{number}" for number in (2, 9, 10, 11)), later]
    for name in ordered:
        date = "2026-12-01" if name == later else "2026-11-30"
        evidence.write(tmp_path / f"{name}.json", record(name, date=date))
    found = evidence.records(tmp_path)
    assert [one["name"] for one in found] == ordered
    assert evidence.newest(found[:-1])[DEVICE["name"]]["name"] == "h200-2026-11-30.11"


def test_names_are_of_device_and_date():
    assert evidence.default_name(DEVICE) == f"h200-{evidence.today()}"
    assert evidence.default_name({"name": "NVIDIA GeForce RTX 5080"}) == f"geforce-rtx-5080-{evidence.today()}"


def put(content, place, value):
    *path, last = place
    for key in path:
        content = content[key]
    if value is None and isinstance(content, dict) and last not in ("share",):
        del content[last]
    else:
        content[last] = value


STEP = ("sections", "benchmark", "steps", 0)
RESULTS = (*STEP, "results")
FIRST_ROW = (*RESULTS, "rows", 0)


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (("device",), None, "device: is missing"),
        (("device", "l2"), "60", "device.l2: is '60': must be a int"),
        (("version",), 2, "version: is 2"),
        (("name",), "other", "name: is 'other'"),
        (("versions", "python"), 3, "versions.python"),
        (("sources", "kernels"), "12ab", "sources.kernels: must be 32"),
        (("sources", "files"), None, "sources.files: is missing"),
        (("sections", "benchmark", "status"), "good", "sections.benchmark.status: is 'good'"),
        ((*STEP, "seconds"), "1", "sections.benchmark.steps[0].seconds"),
        ((*STEP, "reason"), None, "sections.benchmark.steps[0].reason: is missing"),
        ((*RESULTS, "rows"), 5, "sections.benchmark.steps[0].results.rows: is 5: must be a list"),
        ((*RESULTS, "failures"), {}, "sections.benchmark.steps[0].results.failures: is {}: must be a list"),
        ((*RESULTS, "failures"), ["a"], "results.failures[0]: must be an object"),
        ((*RESULTS, "failures"), [{"case": "a"}], "results.failures[0].reason: is missing"),
        ((*RESULTS, "failures"), [{"case": "a", "reason": 3}], "results.failures[0].reason: is 3: must be a str"),
        ((*RESULTS, "failures"), [{"case": "a", "reason": ""}], "results.failed: is None: must be the number"),
        ((*RESULTS, "reasons"), [], "sections.benchmark.steps[0].results.reasons: is []: must be an object"),
        ((*RESULTS, "reasons"), {"no device": "2"}, "results.reasons.no device: is '2': must be a number of cases"),
        ((*RESULTS, "verdict"), "ok", "sections.benchmark.steps[0].results.verdict: is 'ok': must be a list"),
        ((*RESULTS, "verdict"), ["ok", None], "results.verdict[1]: is None: must be a string"),
        ((*FIRST_ROW, "contract"), None, "rows[0].contract: is missing"),
        ((*FIRST_ROW, "median_us"), 0.0, "rows[0].median_us: is 0.0: must be above 0"),
        ((*FIRST_ROW, "share"), None, "rows[0].share: is None"),
        ((*FIRST_ROW, "correct"), False, "rows[0].median_us: must be null where the result is not correct"),
        ((*STEP, "status"), "failed", "seal: does not fit"),
    ],
)
def test_a_damaged_record_names_file_and_field(tmp_path, place, value, field):
    path = tmp_path / "h200-2026-11-30.json"
    evidence.write(path, record())
    content = json.loads(path.read_text())
    put(content, place, value)
    path.write_text(json.dumps(content))
    with pytest.raises(evidence.EvidenceError) as caught:
        evidence.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert field in str(caught.value)


def test_what_is_no_record(tmp_path):
    path = tmp_path / "h200.json"
    with pytest.raises(evidence.EvidenceError, match="there is no such evidence"):
        evidence.load(path)
    for text, says in (("{", "is not JSON"), ("[]", "top: must be an object")):
        path.write_text(text)
        with pytest.raises(evidence.EvidenceError, match=says):
            evidence.load(path)
    with pytest.raises(evidence.EvidenceError, match=r"version: is 3"):
        evidence.write(tmp_path / "h200-2026-11-30.json", record(version=3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["h200.json"]


def test_merging_keeps_what_was_finished():
    old = record(sections={"parity": evidence.section([step("a"), step("b", "failed")])})
    steps = [step("a", "failed", evidence.NOT_STARTED), step("b"), step("c", "failed", evidence.NOT_STARTED)]
    merged = evidence.merged(old, record(sections={"parity": evidence.section(steps), "tests": evidence.section([])}))
    found = {one["name"]: one["status"] for one in merged["sections"]["parity"]["steps"]}
    assert found == {"a": "passed", "b": "passed", "c": "failed"}
    assert merged["sections"]["parity"]["status"] == "failed"
    assert merged["sections"]["tests"]["status"] == "unsupported"


def test_unlike_records_do_not_merge():
    other = copy.deepcopy(FINGERPRINT)
    other["files"]["kernels/cuda/select.py"] = "0" * 16
    changes = (("device", {**DEVICE, "name": "other"}), ("versions", {"python": "3.11"}), ("contract", "exact-2"))
    for key, value in changes:
        with pytest.raises(evidence.EvidenceError, match=f"{key}: .*must be equal to merge"):
            evidence.merged(record(), record(**{key: value}))
    with pytest.raises(evidence.EvidenceError, match=r"sources: .*changed kernels/cuda/select\.py"):
        evidence.merged(record(), record(sources=other))


@pytest.fixture
def trees(tmp_path):
    for name in sources.TREES:
        shutil.copytree(root() / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_stale_names_the_files_that_changed(trees):
    assert sources.fingerprint(trees) == sources.fingerprint()
    old = record()
    assert evidence.stale(old, sources.fingerprint(trees)) == []
    with (trees / "kernels" / "cuda" / "select.py").open("a") as file:
        file.write("# another\n")
    (trees / "kernels" / "cuda" / "new.py").write_text("")
    (trees / "reference" / "exact" / "select.py").unlink()
    now = sources.fingerprint(trees)
    lines = ["added kernels/cuda/new.py", "changed kernels/cuda/select.py", "removed reference/exact/select.py"]
    assert evidence.stale(old, now) == lines
    assert all(now[tree] != old["sources"][tree] for tree in sources.TREES)


def test_a_record_of_the_exact_reference_alone_is_read():
    """The first records name its files without ``exact/`` and hold no other file of the reference."""
    now = {
        **FINGERPRINT,
        "files": {"kernels/ops.py": "1", "reference/exact/select.py": "2", "reference/select.py": "3"},
    }
    old = {**FINGERPRINT, "files": {"kernels/ops.py": "1", "reference/select.py": "2"}}
    assert sources.changed(old, now) == ["added reference/select.py"]
    assert sources.changed(old, old) == sources.changed(now, now) == []


def test_line_ends_tests_and_what_no_device_runs_do_not_count(trees):
    before = sources.fingerprint(trees)
    path = trees / "kernels" / "ops.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (trees / "kernels" / "test_ops.py").write_text("x = 1\n")
    for name in ("cpu/select.py", "cuda/simulate.py", "cuda/simulate_run.py"):
        with (trees / "kernels" / name).open("a") as file:
            file.write("# another\n")
    assert sources.fingerprint(trees) == before


def test_a_run_killed_while_it_writes_leaves_a_whole_record(tmp_path):
    path = tmp_path / "records" / "h200-2026-11-30.json"
    source = tmp_path / "source.json"
    source.write_text(json.dumps(record()))
    code = (
        "import json, sys\nfrom qsa.golden import evidence\n"
        "record = json.load(open(sys.argv[1]))\n"
        "while True: evidence.write(sys.argv[2], record)"
    )
    for wait in (0.0, 0.013, 0.05):
        running = subprocess.Popen([sys.executable, "-c", code, str(source), str(path)])
        try:
            deadline = time.monotonic() + 30
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(wait)
        finally:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
        assert evidence.records(path.parent) == [record()]
        path.unlink()
