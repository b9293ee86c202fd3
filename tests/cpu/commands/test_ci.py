"""What ``.ci/run`` does with evidence, in a checkout of our own whose lint and tests are stand-ins."""

import copy
import json
import os
import shutil
import subprocess
import sys

import pytest

from qsa.golden import device_records as evidence
from qsa.parity.evidence.process import ROOT
from support.evidence_records import FINGERPRINT, record, step

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".ci" / "run").is_file(), reason="not a checkout of the repository"),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is missing"),
]

QSA = """#!{python}
import sys
from qsa.golden import sources
from qsa.parity import cli
sources.fingerprint = lambda: {fingerprint!r}
sys.exit(cli.main([*sys.argv[1:], "--folder", {records!r}]) if sys.argv[1] == "evidence" else 0)
"""
"""The command line itself on a folder of our own, with the sources as they were when the tests began."""


@pytest.fixture
def checkout(tmp_path):
    """(folder of the records, function(exit status of the tests) -> the finished ``.ci/run``)."""
    programs, records = tmp_path / ".venv" / "bin", tmp_path / "golden" / "evidence"
    for folder in (tmp_path / ".ci", programs, records):
        folder.mkdir(parents=True)
    for name in (".ci/run", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    # Newer than pyproject.toml: nothing is installed.
    (tmp_path / ".venv" / ".stamp").touch()

    def run(tests=0):
        texts = {
            "qsa": QSA.format(python=sys.executable, fingerprint=FINGERPRINT, records=str(records)),
            "ruff": "#!/bin/sh\n",
            "pytest": f"#!/bin/sh\necho the tests\nexit {tests}\n",
        }
        for name, text in texts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        # These tests may themselves be run by make, whose options are not theirs.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(
            [tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return records, run


def test_stale_evidence_is_said_and_fails_nothing(checkout):
    records, run = checkout
    old = copy.deepcopy(FINGERPRINT)
    old["files"]["kernels/cuda/select.py"] = "0" * 16
    evidence.write(records / "h200-2026-11-30.json", record(sources=old))
    found = run()
    assert found.returncode == 0, found.stderr
    assert "the tests\n" in found.stdout
    verdict = found.stdout.splitlines()[-1]
    assert verdict.startswith("NVIDIA H200: STALE: h200-2026-11-30 is of other sources")


def test_missing_evidence_is_said_and_fails_nothing(checkout):
    found = checkout[1]()
    assert (found.returncode, "missing: there is no evidence" in found.stdout) == (0, True)


def test_damaged_evidence_fails(checkout):
    records, run = checkout
    path = records / "h200-2026-11-30.json"
    content = record()
    content["sections"]["benchmark"]["steps"][0]["results"]["reasons"] = []
    path.write_text(json.dumps(content))
    found = run()
    assert found.returncode != 0
    assert "h200-2026-11-30.json: sections.benchmark.steps[0].results.reasons" in found.stderr


def test_what_failed_with_todays_kernels_fails(checkout):
    records, run = checkout
    sections = {"tests": evidence.section([step("select", "failed")])}
    evidence.write(records / "h200-2026-11-30.json", record(sections=sections))
    found = run()
    assert found.returncode != 0 and "failed: tests/select" in found.stdout


def test_evidence_is_said_when_tests_fail_too(checkout):
    found = checkout[1](tests=1)
    assert found.returncode != 0
    assert "missing: there is no evidence" in found.stdout
