"""Files written whole: reports, records, goldens.

A regular file is written under a temporary name in the same folder and moved into place: a killed run leaves the old
file or none. A link, a character device or a FIFO is no file of ours to replace: it is opened and written through, and
stays what it is. ``-`` is standard output where a command takes it (:data:`STDOUT`).
"""

import os
import stat
import sys
import tempfile
from pathlib import Path

STDOUT = "-"
"""The name that stands for standard output."""


def _written_through(path: Path) -> bool:
    """Whether ``path`` is opened as it is; False: a regular file, or nothing yet. Raises OSError, its text one line
    that says what cannot be written to, when it is neither."""
    if not os.path.lexists(path):
        return False
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise OSError(f"it is a link that leads to no file: {error.strerror}") from error
    for matches, what in ((stat.S_ISDIR, "folder"), (stat.S_ISSOCK, "socket"), (stat.S_ISBLK, "block device")):
        if matches(mode):
            raise OSError(f"it is a {what}")
    return os.path.islink(path) or not stat.S_ISREG(mode)


def _temporary(path: Path) -> tuple[int, str]:
    """(handle, name) of a new file beside ``path``, whose folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)


def is_replaced(path: str | Path) -> bool:
    """Whether :func:`write` replaces ``path`` in one step: a regular file, or nothing yet. Raises OSError."""
    return not _written_through(Path(path))


def probe(path: str | Path) -> None:
    """See that :func:`write` can write to ``path``, before the work; makes its folder. Raises OSError."""
    path = Path(path)
    if _written_through(path):
        # Not opened: a FIFO would wait for its reader, and see its end.
        if not os.access(path, os.W_OK):
            raise PermissionError("it may not be written to")
        return
    try:
        handle, temporary = _temporary(path)
    except OSError as error:
        raise OSError(f"folder {str(path.parent)!r}: {error.strerror}") from error
    os.close(handle)
    os.unlink(temporary)


def write(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8: a regular file in one step, its folder made when missing; a link, a
    character device or a FIFO through. Raises OSError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path`` as :func:`write` does."""
    path = Path(path)
    if _written_through(path):
        with open(path, "wb") as file:
            file.write(content)
        return
    handle, temporary = _temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files private; these are read by everybody.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_report(path: str | Path, text: str) -> None:
    """Write ``text`` as :func:`write` does, or to standard output when ``path`` is ``-``. Raises OSError."""
    if path == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write(path, text)
