"""The base commit that a change is compared with: which one it is, its files in a git worktree, its interpreter."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from ..evidence import process

FOLDER = Path("build") / "base"
"""Under the checkout: a folder for each base commit, with ``tree`` and, where one is needed, ``venv``. Both are used
again by later runs."""

DEFAULT_BRANCHES = ("origin/main", "origin/master", "main", "master")
"""Where a clone does not say which branch of its origin is the default one."""

INSTALL_SECONDS = 900.0


class NoBaseError(ValueError):
    """There is no base to compare with; the message is the reason, for a verdict ``unsupported``."""


def git(where: Path, *words: str) -> str | None:
    """What ``git`` prints in the folder ``where``, without the line end; None when it fails. Raises NoBaseError where
    there is no git."""
    if shutil.which("git") is None:
        raise NoBaseError("git is missing")
    # A hook of git sets variables that name its own repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(where), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def top(where: Path) -> Path:
    """The top folder of the checkout that holds the folder ``where``. Raises NoBaseError where there is none."""
    found = git(where, "rev-parse", "--show-toplevel")
    if found is None:
        raise NoBaseError(f"{where} is in no git checkout")
    return Path(found).resolve()


def commit(root: Path, revision: str | None = None) -> str:
    """The full hash of the base commit of the checkout ``root``.

    revision  the base, as git names commits; None: the merge base of HEAD and the default branch

    Raises NoBaseError, with the reason, where there is none, and ValueError when ``revision`` is no commit.
    """
    found = git(root, "rev-parse", "--show-toplevel")
    if found is None or Path(found).resolve() != root.resolve():
        raise NoBaseError("this is no checkout of the repository")
    if revision is not None:
        found = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found is None:
            raise ValueError(f"--base = {revision!r}: must be a commit of this checkout")
        return found
    branch = default_branch(root)
    found = git(root, "merge-base", "HEAD", branch)
    if found is None:
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            raise NoBaseError(f"a shallow clone, which does not hold the merge base of HEAD and {branch}")
        raise NoBaseError(f"HEAD and {branch} have no commit in common")
    unchanged = git(root, "status", "--porcelain", "--untracked-files=no") == ""
    if found == git(root, "rev-parse", "HEAD") and unchanged:
        raise NoBaseError(f"this is {branch} itself, without a change: name a base (make gate BASE=REV)")
    return found


def default_branch(root: Path) -> str:
    """The default branch of the checkout. Raises NoBaseError where none is known."""
    named = git(root, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    for branch in filter(None, (named, *DEFAULT_BRANCHES)):
        if git(root, "rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}") is not None:
            return branch
    raise NoBaseError(f"no default branch is known: there is none of {', '.join(DEFAULT_BRANCHES)}")


def worktree(root: Path, base: str, folder: Path | None = None) -> Path:
    """The folder of the commit's files: one that is there and unchanged, else made. Raises NoBaseError.

    folder  where the worktrees of this checkout lie; None: :data:`FOLDER` in it
    """
    tree = (root / FOLDER if folder is None else folder) / base[:12] / "tree"
    if tree.is_dir():
        same = git(tree, "rev-parse", "HEAD") == base
        if same and git(tree, "status", "--porcelain", "--untracked-files=no") == "":
            return tree
        git(root, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(tree, ignore_errors=True)
    # A worktree whose folder was removed by hand is still known to git, which then refuses to make it anew.
    git(root, "worktree", "prune")
    tree.parent.mkdir(parents=True, exist_ok=True)
    if git(root, "worktree", "add", "--detach", str(tree), base) is None:
        raise NoBaseError(f"git could not make a worktree of {base[:12]}")
    return tree


def requirements(tree: Path, extra: str = "") -> list[str]:
    """What ``pyproject.toml`` of ``tree`` asks of an environment, for ``extra`` too where one is named."""
    project: dict[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    more = project.get("optional-dependencies", {}).get(extra, []) if extra else []
    return [f"python{project.get('requires-python', '')}", *project.get("dependencies", []), *more]


def installed_extra() -> str:
    """The extra with which this environment has CUDA: ``cuda12``, ``cuda13`` or nothing."""
    for extra, package in (("cuda12", "cupy-cuda12x"), ("cuda13", "cupy-cuda13x")):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return extra
    return ""


def interpreter(root: Path, tree: Path) -> str:
    """The interpreter that measures ``tree``: this one, or that of an environment of its own where the two
    ``pyproject.toml`` ask for other packages. Raises NoBaseError when such an environment cannot be made."""
    extra = installed_extra()
    wanted = requirements(tree, extra)
    if wanted == requirements(root, extra):
        return sys.executable
    folder = tree.parent / "venv"
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    text = "\n".join(wanted) + "\n"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted[1:]]
        for command in ([sys.executable, "-m", "venv", str(folder)], install):
            finished = process.run(command, INSTALL_SECONDS)
            if finished.code != 0:
                raise NoBaseError(f"the base's environment could not be made: {finished.reason}")
        stamp.write_text(text, encoding="utf-8")
    return str(python)
