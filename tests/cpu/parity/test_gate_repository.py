"""The gate on a kernel in somebody's own repository: its options, both sides, what is timed, what cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from qsa.parity import cli, gate
from qsa.parity.backend import Backend
from qsa.parity.contract import declared, load
from qsa.parity.speed import base, check, kernel_times, repository
from qsa.parity.speed import compare as comparing
from qsa.parity.verdicts import Run
from support.checkouts import commit_all, git

SELECT = '''"""Selection by NumPy's sort, at the pace of the repository's own package."""

import numpy as np
from pace import wait

declaration = {"ties": "lowest", "rules": ["blocks"]}


def select(scores, steps):
    found = []
    for row, (_, n_kv, n_bid, width) in zip(scores, steps, strict=True):
        blocks = np.argsort(-row[:n_bid], kind="stable")[:512]
        cells = blocks[:, None] * 4 + np.arange(4)
        found.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells.ravel()])[:width])
    wait()
    return found
'''
PACE = "import time\n\n\ndef wait():\n    time.sleep({})\n"
CASE = "selection:op=select,rule=blocks,scores=continuous,context=8192,rows=2,tail=1,seed=2"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """(folder ``lib`` in a checkout, its two commits): the second has the file of the kernel, the first has not."""
    monkeypatch.setenv("QSA_CACHE", str(tmp_path / "caches"))
    top = tmp_path / "theirs"
    (top / "lib" / "kernels").mkdir(parents=True)
    git(top, "init", "-q")
    (top / "lib" / "pace.py").write_text(PACE.format(0))
    before = commit_all(top, "no kernel yet")
    (top / "lib" / "kernels" / "select.py").write_text(SELECT)
    return top / "lib", (before, commit_all(top, "a kernel"))


def kernel(folder, backend="kernels/select.py"):
    return repository.kernel(backend, str(folder))


def test_the_two_sides_are_their_commits_and_their_files_stay_as_they_are(theirs):
    folder, (_, second) = theirs
    (folder / "pace.py").write_text(PACE.format(0.1))
    before = git(folder, "status", "--porcelain")
    old, new = repository.arms(kernel(folder), second)
    assert (old.tree / "pace.py").read_text() == PACE.format(0) and old.name == f"base {second[:12]}"
    assert new.tree == folder and (new.tree / "pace.py").read_text() == PACE.format(0.1)
    assert git(folder, "status", "--porcelain") == before and not old.tree.is_relative_to(folder.parent)
    # The checkout's default branch is the base where none is named.
    assert repository.base_of(kernel(folder), None) == second


def test_what_is_timed_is_right_first(theirs):
    folder, _ = theirs
    arm = comparing.Arm("theirs", folder, script=repository.SCRIPT)
    (text,) = repository.cases(arm, "kernels/select.py")
    assert text.startswith("selection:op=select,rule=blocks,scores=continuous,")
    report = arm.measure("kernels/select.py", [CASE])
    assert report["times"][CASE] > 0 and report["missing"] == {} and report["contract"][CASE].startswith("select alone")
    # The repository's own package is that of the tree, and a wrong result has no speed.
    (folder / "pace.py").write_text(PACE.format(0.01))
    slow = arm.measure("kernels/select.py", [CASE])
    assert slow["times"][CASE] > 10_000 and slow["sources"] != report["sources"]
    wrong = SELECT.replace("argsort(-", "argsort(")
    (folder / "kernels" / "select.py").write_text(wrong)
    report = arm.measure("kernels/select.py", [CASE])
    assert report["times"] == {} and report["missing"][CASE].startswith("wrong result: it has no speed")


def test_each_operation_is_timed_on_its_case_of_most_work():
    module = load("qsa.parity.ports.numpy_float")
    recorded = kernel_times.Recording(module, declared(module))
    texts = kernel_times.timed_cases(Backend("numpy_float", None, recorded))
    assert [text.partition("op=")[2].partition(",")[0] for text in texts] == [
        "attend", "append_kv", "gated", "append_index", "block_scores", "select", "select",
    ]  # fmt: skip
    assert "context=16384,rows=4" in texts[0] and "scores=ordinary" in texts[0]
    (text,) = [text for text in texts if "op=append_index" in text]
    report = kernel_times.measured([text], recorded, Backend("numpy_float", None, recorded))
    assert report["contract"][text].startswith("index_append alone") and report["times"][text] > 0


@pytest.mark.timing
def test_a_change_of_theirs_that_is_slower_is_found(theirs, monkeypatch):
    """The whole way with real processes: base, working tree, verdict."""
    folder, (_, second) = theirs
    (folder / "pace.py").write_text(PACE.format(0.02))
    monkeypatch.setattr(repository, "cases", lambda arm, backend: [CASE])
    run = Run(base=second, floor=0.5, kernel=kernel(folder))
    (one,) = check.kernel_verdicts(run, run.kernel)
    assert (one.case.text, one.status) == (CASE, "failed") and one.reason.startswith("SLOWER: "), one
    assert run.notes["speed"]["base"] == second[:12] and run.notes["speed"]["backend"] == "kernels/select.py"


def test_a_wrong_result_of_the_change_fails_and_one_of_the_base_has_no_verdict(theirs, monkeypatch):
    folder, (_, second) = theirs
    monkeypatch.setattr(repository, "cases", lambda arm, backend: [CASE])
    path = folder / "kernels" / "select.py"
    right, wrong = SELECT, SELECT.replace("argsort(-", "argsort(")
    path.write_text(wrong)
    (one,) = check.kernel_verdicts(Run(base=second), kernel(folder))
    assert one.status == "failed" and "not measured in the change: wrong result" in one.reason
    third = commit_all(folder, "wrong")
    path.write_text(right)
    (one,) = check.kernel_verdicts(Run(base=third), kernel(folder))
    assert one.status == "unsupported" and "not measured in the base: wrong result" in one.reason


def test_no_base_is_unsupported_with_the_reason(theirs, tmp_path):
    folder, (first, second) = theirs
    (one,) = check.kernel_verdicts(Run(base=first), kernel(folder))
    assert (one.status, one.reason) == ("unsupported", f"lib/kernels/select.py is not in the base {first[:12]}")
    (one,) = check.kernel_verdicts(Run(), kernel(folder))
    assert one.status == "unsupported" and "without a change: name a base" in one.reason
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    (one,) = check.kernel_verdicts(Run(), kernel(plain))
    assert one.status == "unsupported" and one.reason == f"{plain} is in no git checkout"
    (one,) = check.kernel_verdicts(Run(base=second, failed={"parity"}), kernel(folder))
    assert one.status == "unsupported" and "parity failed" in one.reason
    (folder / "kernels" / "select.py").write_text("import missing_package\n")
    (one,) = check.kernel_verdicts(Run(base=second), kernel(folder))
    assert one.status == "failed" and "missing_package" in one.reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "kernels/select.py", "--base", "no-such"], "--base = 'no-such': must be a commit"),
        (["--backend", "kernels/gone.py"], "--backend = 'kernels/gone.py': there is no such file in "),
        (["--backend", "../outside.py"], "must lie in "),
        (["--backend", "kernels"], "--backend = 'kernels': allowed are cpu, cuda, file.py, file.py:attribute"),
        ([], "goes with --backend file.py"),
        (["--backend", "cpu"], "goes with --backend file.py"),
    ],
)
def test_bad_options_are_told_before_the_work(theirs, options, said, capsys):
    folder, _ = theirs
    (folder.parent / "outside.py").write_text(SELECT)
    assert cli.main(["gate", *options, "--repo", str(folder)]) == 2
    out = capsys.readouterr()
    assert said in out.err and out.out == ""


def test_a_folder_that_is_none(tmp_path, capsys):
    assert cli.main(["gate", "--backend", "a.py", "--repo", str(tmp_path / "gone")]) == 2
    assert "must be a folder" in capsys.readouterr().err


def test_parity_of_their_kernel_is_held_in_its_own_arithmetic(theirs, monkeypatch, capsys, tmp_path):
    """The command: parity in their folder, a failure with the command that repeats it, then no speed; other checks are
    left out, or unsupported where they are named."""
    folder, _ = theirs
    monkeypatch.setattr(gate, "QUICK", ("selection", "--where", "scores=continuous", "--where", "context=8192"))
    out = tmp_path / "gate.json"
    options = ["--backend", "kernels/select.py", "--repo", str(folder), "--json", str(out)]
    assert cli.main(["gate", *options]) == 0
    said = capsys.readouterr().out
    assert "speed: kernels/select.py" in said and "goldens" not in said
    assert json.loads(out.read_text())["passed"] > 0
    path = folder / "kernels" / "select.py"
    path.write_text(path.read_text().replace("argsort(-", "argsort("))
    assert cli.main(["gate", *options]) == 1
    said = capsys.readouterr().out
    assert "again: qsa parity --backend kernels/select.py --case 'selection:op=select" in said
    assert "not timed: a speed says nothing while something is wrong (parity failed)" in said
    # What looks at this project's files says nothing of theirs; then nothing passed.
    assert cli.main(["gate", *options, "--only", "goldens", "ptx"]) == 1
    said = capsys.readouterr().out
    assert "unsupported ptx: kernels/select.py" in said and "nothing passed" in said


def test_a_checkout_of_none(tmp_path):
    with pytest.raises(base.NoBaseError, match="is in no git checkout"):
        base.top(Path(tmp_path))
