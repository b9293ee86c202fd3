"""Progress of long work: on a terminal a bar with the time left, elsewhere a line on standard error every few seconds.

Standard output stays what the command prints, so that a report or a table can be piped.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

INTERVAL = 8.0
"""Seconds between two lines where there is no terminal."""


def clock_text(seconds: float) -> str:
    """Seconds as ``1:05`` or ``1:02:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Work:
    """The work in progress: what is done at the moment, and how much of how much, in any unit.

    what   the work as a whole, such as ``qsa golden check``
    total  the whole amount, None where it is not known
    """

    def __init__(self, what: str, total: float | None = None) -> None:
        self.what, self.note, self.total, self.done = what, "", total, 0.0
        self.estimate: float | None = None
        self._started = self._counted = time.monotonic()

    def begin(self, note: str, total: float | None = None, estimate: float | None = None) -> None:
        """The next part, ``note``, begins: the count and the time that is estimated from it begin anew.

        estimate  seconds that the part takes, about: what is told until something of it is done
        """
        self.note, self.total, self.done, self.estimate = note, total, 0.0, estimate
        self._counted = time.monotonic()

    def advance(self, amount: float = 1.0) -> None:
        """So much more is done."""
        self.done += amount

    def seconds_left(self) -> float | None:
        """The time left at the rate so far, or what is left of the estimate; None where there is neither."""
        spent = time.monotonic() - self._counted
        if not self.total or self.done <= 0 or spent <= 0:
            return None if self.estimate is None else max(0.0, self.estimate - spent)
        return max(0.0, (self.total - self.done) * spent / self.done)

    def line(self) -> str:
        """The state as text."""
        spent = clock_text(time.monotonic() - self._started)
        parts = [f"{self.what}: {self.note}" if self.note else self.what]
        if self.total:
            parts.append(f"{100 * min(1.0, self.done / self.total):.0f} % done")
        left = self.seconds_left()
        parts.append(f"{spent} passed" + (f", about {clock_text(left)} left" if left is not None else ""))
        return ", ".join(parts)


@contextlib.contextmanager
def shown(
    what: str, stream: TextIO | None = None, interval: float = INTERVAL, work: Work | None = None
) -> Iterator[Work]:
    """Show the :class:`Work` that is yielded, ``work`` itself where it is given, while the body runs.

    stream    where to, standard error unless given
    interval  seconds between two lines where ``stream`` is no terminal, or of the bar's look at the work's state
    """
    stream = sys.stderr if stream is None else stream
    work = Work(what) if work is None else work
    if stream.isatty():
        with _bar(work, stream):
            yield work
        return

    def tell() -> None:
        print(work.line(), file=stream, flush=True)

    with _repeated(tell, interval):
        yield work


@contextlib.contextmanager
def _bar(work: Work, stream: TextIO) -> Iterator[None]:
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    # What is printed goes above the bar, unless it goes to a file.
    options: dict[str, Any] = {"redirect_stdout": sys.stdout.isatty(), "redirect_stderr": False, "transient": True}
    with Progress(*columns, console=Console(file=stream), **options) as progress:
        task = progress.add_task(work.what, total=None, left="")

        def update() -> None:
            left = work.seconds_left()
            text = "" if left is None else f"about {clock_text(left)} left"
            note = work.note or work.what
            progress.update(task, description=note, total=work.total, completed=work.done, left=text)

        with _repeated(update, 0.2):
            yield


@contextlib.contextmanager
def _repeated(act: Callable[[], None], interval: float) -> Iterator[None]:
    """Call ``act`` every ``interval`` seconds, in a thread, while the body runs."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(interval):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
