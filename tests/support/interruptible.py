"""Commands that tests interrupt."""

import signal
import subprocess
from contextlib import contextmanager


def _take_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(command, **options):
    """A process that takes SIGINT, also where the tests run without it, as whatever a shell starts in the background
    does; ended at the latest with the block. ``options``: ``subprocess.Popen``'s."""
    process = subprocess.Popen(command, preexec_fn=_take_interrupts, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
