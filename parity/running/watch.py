"""``--watch``: run a command again whenever a source file changes. Needs watchfiles (extra ``watch``).

Every run is a process of its own, with the judge and the backend started anew: a change in either of them counts. A
change during a run ends that run.
"""

import importlib.util
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from qsa.kernels.ops import BACKENDS
from qsa.kernels.sources import root

ENDINGS = (".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".pyd")
"""Ends of the names of files that a backend is made of."""

IGNORED = (".git", "__pycache__", ".venv", "build", "node_modules")
"""Folders in which nothing is looked at."""


def folders(backend: str | None) -> list[Path]:
    """Folders to be watched: of a backend in a file that file's, of a module the current one; else this project's own,
    without its tests."""
    if backend is None or backend in BACKENDS:
        return [root() / name for name in ("reference", "kernels", "model", "engine", "golden", "parity")]
    place = backend.partition(":")[0]
    return [Path(place).resolve().parent] if place.endswith(".py") else [Path.cwd()]


def is_source(change: object, path: str) -> bool:
    """Whether a change of ``path`` matters."""
    parts = Path(path).parts
    return path.endswith(ENDINGS) and not any(part in IGNORED for part in parts)


def without_watch(argv: Iterable[str]) -> list[str]:
    """The command line of one run. An abbreviation of the option is one too."""
    return [each for each in argv if not (len(each) > 3 and "--watch".startswith(each))]


def run(argv: Sequence[str], backend: str | None) -> int:
    """Run ``qsa ARGV`` again after every change until Ctrl-C; returns 130. Raises ValueError without watchfiles."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ValueError("--watch: watchfiles is missing: pip install 'qsa-parity[watch]'")
    from watchfiles import run_process

    watched = folders(backend)
    print(f"qsa parity: watching {', '.join(map(str, watched))}; Ctrl-C ends", file=sys.stderr, flush=True)
    command = shlex.join([sys.executable, "-m", "qsa.parity.cli", *without_watch(argv)])

    def told(changes: Iterable[tuple[object, str]]) -> None:
        names = sorted({Path(path).name for _, path in changes})
        print(f"qsa parity: changed: {', '.join(names)}", file=sys.stderr, flush=True)

    run_process(*watched, target=command, target_type="command", watch_filter=is_source, callback=told)
    return 130
