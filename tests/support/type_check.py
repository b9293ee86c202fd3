"""Runs mypy over all packages: ``python tests/support/type_check.py``, a part of ``make lint``.

A folder ``reference`` of this repository is imported as ``qsa.reference``. In an editable install an import hook does
that, and a type checker runs no hook: it would take every import of ``qsa`` for ``Any`` and report nothing. So mypy is
given a folder ``qsa`` that holds a link to every package. Its settings are in ``pyproject.toml``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

PACKAGES = ("reference", "kernels", "model", "engine", "golden", "parity")
"""The packages of ``qsa``, each a folder of the repository. A package imports only those before it."""

TYPED_TESTS = ("tests/cpu/kernels/test_backends.py",)
"""Tests that mypy reads too: they assign our backends to the protocols of ``kernels/backend.py``."""

FEWEST_FILES = 150
"""mypy must have read more files than this. It reads about 280; fewer mean that it does not see the packages."""


class Result(NamedTuple):
    """What mypy said: its exit status, its text, and the number of files that it read (0 when it does not say)."""

    status: int
    text: str
    files: int


def link_packages(folder: Path) -> Path:
    """Makes ``folder``/qsa with a link to every package; returns ``folder``. A folder that stands there stays."""
    package = folder / "qsa"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.pyi").touch()
    for name in PACKAGES:
        link = package / name
        if link.is_symlink():
            link.unlink()  # it may lead into another checkout
        if not link.exists():
            link.symlink_to(ROOT / name, target_is_directory=True)
    return folder


def run_mypy(folder: Path, cache: Path, files: Iterable[str] = ()) -> Result:
    """Checks the package ``qsa`` in ``folder``, and then ``files``; ``cache`` is mypy's cache folder.

    File names in the text are those of the repository.
    """
    text, status, counts = "", 0, [0]
    for targets in (["--package", "qsa"], list(files)):
        if not targets:
            continue
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-color-output", *targets]
        environment = os.environ | {"MYPYPATH": str(folder)}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        text += run.stdout + run.stderr
        status = status or run.returncode
        counts += [int(number) for number in re.findall(r"(\d+) source files?\b", run.stdout)]
    for prefix in (f"{os.path.relpath(folder, ROOT)}/qsa/", f"{folder}/qsa/"):
        text = text.replace(prefix, "")
    return Result(status, text, max(counts))


def main() -> int:
    """Prints what mypy says; returns its exit status, or 1 when it read too few files."""
    result = run_mypy(link_packages(ROOT / "build" / "typing"), ROOT / "build" / "mypy", TYPED_TESTS)
    print(result.text, end="", flush=True)
    if result.files <= FEWEST_FILES:
        print(f"mypy read {result.files} source files: more than {FEWEST_FILES} are required", file=sys.stderr)
        return 1
    return result.status


if __name__ == "__main__":
    sys.exit(main())
