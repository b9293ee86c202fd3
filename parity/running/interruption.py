"""What may end a run before its end: Ctrl-C and SIGTERM, both as a KeyboardInterrupt in the main thread."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


CODES = {"Ctrl-C": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}
"""Name of an interruption -> exit status of the command that it ended."""


def name_of(error: KeyboardInterrupt) -> str:
    """The key of :data:`CODES` for what ended the run."""
    return "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """While the body runs SIGTERM raises :class:`Terminated` in it; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
