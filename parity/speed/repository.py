"""The speed of a kernel in somebody's own repository: their working tree against their base commit.

The judge is this project as it is installed, on both sides; what differs is the kernel's files. Both sides run in this
environment: what the base's kernel needs beyond it makes its cases unsupported.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..evidence import process
from . import base as bases
from . import kernel_times
from .compare import COMPILE_SECONDS, Arm, ArmError

SCRIPT = ("-m", kernel_times.__name__)


@dataclass(frozen=True)
class Kernel:
    """A kernel under the gate: ``repository`` is the folder that the user named, ``file`` the backend's path in it, and
    ``attribute`` what is meant in the file, with its colon, or empty."""

    repository: Path
    file: str
    attribute: str = ""

    @property
    def name(self) -> str:
        """As ``--backend`` takes it, in the repository's folder."""
        return self.file + self.attribute

    @property
    def path(self) -> Path:
        """The file."""
        return self.repository / self.file


def kernel(backend: str, repository: str | None) -> Kernel:
    """The kernel of ``--backend`` and ``--repo``. Raises ValueError where there is no such folder or file."""
    folder = Path(repository or ".").resolve()
    if not folder.is_dir():
        raise ValueError(f"--repo = {repository!r}: must be a folder")
    place, colon, attribute = backend.partition(":")
    path = (folder / place).resolve()
    if not path.is_file():
        raise ValueError(f"--backend = {backend!r}: there is no such file in {folder}")
    if not path.is_relative_to(folder):
        raise ValueError(f"--backend = {backend!r}: must lie in {folder}: name its repository with --repo")
    return Kernel(folder, path.relative_to(folder).as_posix(), colon + attribute)


def base_of(kernel: Kernel, revision: str | None) -> str:
    """The full hash of the base commit, as ``base.commit`` finds it. Raises NoBaseError, or ValueError when
    ``revision`` is no commit of the repository."""
    return bases.commit(bases.top(kernel.repository), revision)


def arms(kernel: Kernel, revision: str | None) -> tuple[Arm, Arm]:
    """(the base, the working tree). Raises NoBaseError, or ValueError when ``revision`` is no commit."""
    top = bases.top(kernel.repository)
    inside = kernel.repository.relative_to(top)
    commit = bases.commit(top, revision)
    tree = bases.worktree(top, commit, folder(top))
    if not (tree / inside / kernel.file).is_file():
        raise bases.NoBaseError(f"{(inside / kernel.file).as_posix()} is not in the base {commit[:12]}")
    base = Arm(f"base {commit[:12]}", tree / inside, script=SCRIPT)
    return base, Arm("the working tree", kernel.repository, script=SCRIPT)


def folder(top: Path) -> Path:
    """Where the worktrees of the checkout ``top`` lie: among the caches, since its own folders are not ours."""
    chosen = os.environ.get("QSA_CACHE")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qsa-parity"
    return Path(chosen or caches).resolve() / "base" / f"{top.name}-{xxhash.xxh3_64_hexdigest(str(top).encode())}"


def cases(arm: Arm, backend: str) -> list[str]:
    """The case strings that are timed of ``backend`` in ``arm``. Raises ArmError when it cannot be loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        options = ["--tree", str(arm.tree), "--backend", backend, "--json", str(path), "--list"]
        finished = process.run([sys.executable, "-P", *arm.script, *options], COMPILE_SECONDS)
        if finished.code != 0 or not path.is_file():
            raise ArmError(f"{arm.name}: {backend}: {finished.reason}")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return list(found["cases"])
