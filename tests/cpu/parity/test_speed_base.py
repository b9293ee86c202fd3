"""The base commit of the gate's speed: which one it is, its worktree, its interpreter, and why there is none."""

import sys
from pathlib import Path

import pytest

from qsa.parity.speed import base
from qsa.parity.speed.base import NoBaseError
from support.checkouts import commit_all, git

PROJECT = """[project]
requires-python = ">=3.11"
dependencies = ["numpy>=2.1"]
[project.optional-dependencies]
cuda12 = ["cupy-cuda12x>=14"]
"""


def commit(where, text):
    (where / "kernel.py").write_text(text)
    return commit_all(where, text)


@pytest.fixture
def checkout(tmp_path):
    """(folder, hashes of three commits of its branch main)."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / ".gitignore").write_text("build/\n")
    return folder, [commit(folder, text) for text in ("one", "two", "three")]


def test_a_branch_has_the_merge_base(checkout):
    folder, commits = checkout
    git(folder, "checkout", "-q", "-b", "change", commits[1])
    commit(folder, "four")
    assert base.commit(folder) == commits[1]
    # A branch of the origin counts before one of this clone.
    git(folder, "update-ref", "refs/remotes/origin/main", commits[0])
    assert base.commit(folder) == commits[0]
    git(folder, "update-ref", "refs/remotes/origin/trunk", commits[1])
    git(folder, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    assert base.commit(folder) == commits[1]


def test_the_default_branch_itself_has_none_unless_it_is_changed(checkout):
    folder, commits = checkout
    with pytest.raises(NoBaseError, match="this is main itself"):
        base.commit(folder)
    (folder / "new.py").write_text("not yet known to git")
    with pytest.raises(NoBaseError, match="this is main itself"):
        base.commit(folder)
    (folder / "kernel.py").write_text("a change")
    assert base.commit(folder) == commits[2]


def test_a_named_base(checkout):
    folder, commits = checkout
    git(folder, "tag", "release", commits[0])
    for name in ("release", "HEAD~2", commits[0], commits[0][:8]):
        assert base.commit(folder, name) == commits[0]
    for name in ("gone", "HEAD~9", "--help", ""):
        with pytest.raises(ValueError, match=r"--base = .*must be a commit") as error:
            base.commit(folder, name)
        assert not isinstance(error.value, NoBaseError)


def test_a_shallow_clone_has_none(checkout, tmp_path):
    folder, commits = checkout
    git(folder, "checkout", "-q", "-b", "change", commits[0])
    commit(folder, "four")
    git(folder, "checkout", "-q", "main")
    clone, source = tmp_path / "clone", f"file://{folder}"
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", "--branch", "change", source, str(clone))
    with pytest.raises(NoBaseError, match="a shallow clone, which does not hold the merge base"):
        base.commit(clone)


def test_without_a_checkout_git_or_default_branch_there_is_none(checkout, tmp_path, monkeypatch):
    folder, _ = checkout
    (folder / "inside").mkdir()
    # An installed package may lie in some repository that is not ours.
    for where in (tmp_path, folder / "inside"):
        with pytest.raises(NoBaseError, match="no checkout"):
            base.commit(where)
    git(folder, "checkout", "-q", "-b", "other")
    git(folder, "branch", "-q", "-D", "main")
    with pytest.raises(NoBaseError, match="no default branch is known"):
        base.commit(folder)
    git(folder, "checkout", "-q", "--orphan", "main")
    commit(folder, "apart")
    git(folder, "checkout", "-q", "other")
    with pytest.raises(NoBaseError, match="no commit in common"):
        base.commit(folder)
    monkeypatch.setattr(base.shutil, "which", lambda name: None)
    with pytest.raises(NoBaseError, match="git is missing"):
        base.commit(folder)


def test_a_hook_of_git_does_not_lead_elsewhere(checkout, monkeypatch, tmp_path):
    folder, commits = checkout
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert base.commit(folder, "HEAD") == commits[2]


def test_the_worktree_holds_the_commit_and_is_used_again(checkout):
    folder, commits = checkout
    tree = base.worktree(folder, commits[0])
    assert (tree / "kernel.py").read_text() == "one" and tree == folder / "build" / "base" / commits[0][:12] / "tree"
    # What a run leaves there, such as compiled kernels, stays.
    (tree / "compiled.nbi").write_text("x")
    assert base.worktree(folder, commits[0]) == tree and (tree / "compiled.nbi").is_file()
    assert (folder / "kernel.py").read_text() == "three" and git(folder, "status", "--porcelain") == ""


def test_a_worktree_that_was_changed_or_removed_is_made_anew(checkout):
    folder, commits = checkout
    tree = base.worktree(folder, commits[0])
    (tree / "kernel.py").write_text("changed by hand")
    assert (base.worktree(folder, commits[0]) / "kernel.py").read_text() == "one"
    git(tree, "checkout", "-q", commits[1])
    assert (base.worktree(folder, commits[0]) / "kernel.py").read_text() == "one"
    base.shutil.rmtree(tree)
    assert (base.worktree(folder, commits[0]) / "kernel.py").read_text() == "one"
    base.shutil.rmtree(tree)
    tree.mkdir()
    assert (base.worktree(folder, commits[0]) / "kernel.py").read_text() == "one"


def test_one_environment_serves_both_unless_they_need_other_packages(checkout, monkeypatch):
    folder, commits = checkout
    tree = base.worktree(folder, commits[0])
    assert base.interpreter(folder, tree) == sys.executable
    # The list of folders, a description: no reason for an environment.
    (folder / "pyproject.toml").write_text(PROJECT + '[tool.setuptools]\npackages = ["a"]\n')
    assert base.interpreter(folder, tree) == sys.executable
    # An extra that is not installed here.
    monkeypatch.setattr(base, "installed_extra", lambda: "")
    (folder / "pyproject.toml").write_text(PROJECT.replace("cupy-cuda12x>=14", "cupy-cuda12x>=15"))
    assert base.interpreter(folder, tree) == sys.executable
    commands = []

    def run(command, seconds):
        commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        return base.process.Finished(0, "", 1.0)

    monkeypatch.setattr(base.process, "run", run)
    monkeypatch.setattr(base, "installed_extra", lambda: "cuda12")
    python = base.interpreter(folder, tree)
    assert python == str(tree.parent / "venv" / "bin" / "python") and len(commands) == 2
    assert commands[1][0] == python and commands[1][-2:] == ["numpy>=2.1", "cupy-cuda12x>=14"]
    # The second run uses it again; other requirements make another one.
    assert base.interpreter(folder, tree) == python and len(commands) == 2
    (tree / "pyproject.toml").write_text(PROJECT.replace("numpy>=2.1", "numpy>=2.0"))
    assert base.interpreter(folder, tree) == python and commands[-1][-2:] == ["numpy>=2.0", "cupy-cuda12x>=14"]
    monkeypatch.setattr(base.process, "run", lambda command, seconds: base.process.Finished(1, "no network", 1.0))
    (tree / "pyproject.toml").write_text(PROJECT.replace("numpy>=2.1", "numpy>=1.9"))
    for _ in range(2):  # what failed is not taken for finished
        with pytest.raises(NoBaseError, match=r"(?s)environment could not be made.*no network"):
            base.interpreter(folder, tree)
