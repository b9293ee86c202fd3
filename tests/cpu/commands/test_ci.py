"""What ``.ci/run`` runs and does with evidence, in a checkout of our own whose lint, tests and gate are stand-ins."""

import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from qsa.golden import device_records as evidence
from qsa.parity import cli
from qsa.parity.evidence.process import ROOT
from support.evidence_records import FINGERPRINT, plain, record, step

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".ci" / "run").is_file(), reason="not a checkout of the repository"),
    pytest.mark.skipif(shutil.which("make") is None, reason="make is missing"),
]

QSA = """#!{python}
import sys
from qsa.golden import sources
from qsa.parity import cli
sources.fingerprint = lambda: {fingerprint!r}
print("qsa", *sys.argv[1:], flush=True)
if sys.argv[1] == "evidence":
    sys.exit(cli.main([*sys.argv[1:], "--folder", {records!r}]))
sys.exit({gate} if sys.argv[1] == "gate" else 0)
"""
"""The command line itself on a folder of our own, with the sources as they were when the tests began."""


@pytest.fixture
def checkout(tmp_path):
    """(folder of the records, function(exit statuses of the tests, the gate and the tests that need the wheels) -> the
    finished ``.ci/run``)."""
    environments, records = [tmp_path / ".venv", tmp_path / ".venv-cuda"], tmp_path / "golden" / "evidence"
    for folder in (tmp_path / ".ci", records, *(one / "bin" for one in environments)):
        folder.mkdir(parents=True)
    for name in (".ci/run", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    # Newer than pyproject.toml: nothing is installed.
    for folder in environments:
        (folder / ".stamp").touch()

    def run(tests=0, gate=0, cuda=0, wheels=0):
        qsa = QSA.format(python=sys.executable, fingerprint=FINGERPRINT, records=str(records), gate=gate)
        default = {
            "qsa": qsa,
            "ruff": "#!/bin/sh\n",
            "python": "#!/bin/sh\n",
            "pytest": f"#!/bin/sh\necho the tests\nexit {tests}\n",
        }
        second = {
            "python": f"#!/bin/sh\nexit {wheels}\n",
            "pytest": f'#!/bin/sh\necho with wheels "$@"\nexit {cuda}\n',
        }
        for folder, texts in zip(environments, (default, second), strict=True):
            for name, text in texts.items():
                (folder / "bin" / name).write_text(text)
                (folder / "bin" / name).chmod(0o755)
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
    *_, verdict, _, _, _, _ = found.stdout.splitlines()
    assert verdict.startswith("NVIDIA H200: STALE: h200-2026-11-30 is of other sources")


def test_missing_evidence_is_said_and_fails_nothing(checkout):
    found = checkout[1]()
    assert (found.returncode, "missing: there is no evidence" in found.stdout) == (0, True)


def test_damaged_evidence_fails(checkout):
    records, run = checkout
    path = records / "h200-2026-11-30.json"
    content = plain(record())
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


PARTS = {"tests": {"tests": 1}, "gate": {"gate": 1}, "cuda": {"cuda": 1}}


@pytest.mark.parametrize("failing", [None, *PARTS])
def test_every_part_runs_and_the_one_that_fails_fails_all(checkout, failing):
    found = checkout[1](**PARTS.get(failing, {}))
    assert (found.returncode != 0) == (failing is not None), found.stderr
    lines = found.stdout.splitlines()
    begun = [lines.index(line) for line in ("the tests", "qsa evidence check")]
    begun[1:1] = [i for i, line in enumerate(lines) if line.startswith(("qsa gate", "with wheels"))]
    assert len(begun) == 4 and begun == sorted(begun)
    assert lines[begun[1]].startswith("qsa gate --only goldens prove ptx evidence --fresh --json ")
    assert "missing: there is no evidence of a run on a device" in lines
    times = [re.fullmatch(r"(\w+) +(passed|failed), \d+:\d\d minutes", line).groups() for line in lines[-4:]]
    expected = {name: "failed" if name == failing else "passed" for name in ("tests", "gate", "cuda", "evidence")}
    assert dict(times) == expected


def test_an_environment_without_the_wheels_fails(checkout):
    found = checkout[1](wheels=1)
    assert found.returncode != 0
    assert "with wheels" not in found.stdout


def test_the_second_environment_runs_every_test_that_needs_the_wheels(checkout):
    said = next(line for line in checkout[1]().stdout.splitlines() if line.startswith("with wheels"))
    needs = re.compile(r'importorskip\("(numba|cupy|qsa\.parity)')
    files = [path for name in ("cpu", "sim", "ptx") for path in (ROOT / "tests" / name).rglob("test_*.py")]
    needed = {path for path in files if needs.search(path.read_text(encoding="utf-8"))}
    named = [ROOT / word for word in said.split() if word.startswith("tests/")]
    run = {path for name in named for path in (name.rglob("test_*.py") if name.is_dir() else [name])}
    assert len(needed) == 10 and needed == run


def test_reasons_of_skipped_tests_are_counted():
    """Known-faults-2 N8: 150 lines of one reason."""
    spec = importlib.util.spec_from_file_location("tests_conftest", ROOT / "tests" / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    reports = [SimpleNamespace(longrepr=("f.py", n, reason)) for n, reason in enumerate(["Skipped: no GPU"] * 3 + [""])]
    lines = []
    conftest.pytest_terminal_summary(SimpleNamespace(stats={"skipped": reports}, write_line=lines.append))
    assert lines == ["skipped 3: no GPU", "skipped 1: no reason given"]


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_what_there_is(path):
    """Targets of the Makefile, and options that the command line takes."""
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"run: make ([a-z0-9-]+)", text)
    assert set(called) <= targets
    options = set(
        re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(line.partition("#")[0] for line in text.splitlines()))
    )
    helps = " ".join(cli.parser(verb).format_help() + _help_of(verb) for verb in ("parity", "gate"))
    assert options and all(option in helps for option in options), options
    # Text of a pull request must not become part of a command.
    assert not re.search(r"run: [^\n]*\$\{\{", text) and "${{ github.event" not in text


def test_the_workflows_are_there():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "kernel.yml"]


def _help_of(verb):
    """The help of one verb, options included."""
    (subparsers,) = (action for action in cli.parser(verb)._actions if hasattr(action, "choices") and action.choices)
    return subparsers.choices[verb].format_help()
