"""Child processes with a time limit, and their JUnit reports: a crash or a hang ends one child, never the run."""

import ast
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
"""Top of the checkout; in an installed package the tests are not there."""

TAIL = 6
"""Lines of a child's output that a reason quotes."""


@dataclass(frozen=True)
class Finished:
    """The end of a child: ``code`` (negative: minus the signal; None: stopped at its limit), ``output`` (both streams),
    ``seconds``."""

    code: int | None
    output: str
    seconds: float

    @property
    def reason(self) -> str:
        """How it ended, with the last lines of its output; without this machine's folders."""
        if self.code is None:
            ended = f"stopped at its limit after {self.seconds:.0f} s"
        elif self.code < 0:
            ended = f"died of {signal.Signals(-self.code).name}"
        else:
            ended = f"exit status {self.code}"
        lines = [line for line in self.output.splitlines() if line.strip()][-TAIL:]
        return "\n".join([ended, *(impersonal(line) for line in lines)])


def impersonal(text: str) -> str:
    """``text`` without the folders of this machine and user, for a record that others read."""
    for folder, name in ((Path.cwd(), "."), (tempfile.gettempdir(), "TMP"), (sys.prefix, "PREFIX"), (Path.home(), "~")):
        if len(str(folder)) > 1:
            text = text.replace(str(folder), name)
    return text


_running: set[subprocess.Popen] = set()


def stop() -> None:
    """Stop every running child, for a program that ends early; each :func:`run` then returns."""
    for child in list(_running):
        _kill(child)


def _kill(child: subprocess.Popen) -> None:
    # The group: the child and all that it started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def run(
    command: Sequence[str],
    seconds: float,
    where: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run ``command`` (list of strings) for at most ``seconds``, in the folder ``where`` and in ``environment``, each
    this process's own unless given; returns :class:`Finished`.

    A child that is stopped is stopped with all that it started. A command that cannot be started raises OSError.
    """
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        # To a file and not a pipe: a grandchild that holds a pipe open would keep the reader waiting past the limit.
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=where,
            start_new_session=True,
        )
        _running.add(child)
        try:
            code: int | None = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                _kill(child)
                child.wait()
            _running.discard(child)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Finished(code, text, time.perf_counter() - started)


@dataclass(frozen=True)
class Entry:
    """One test of a JUnit file: ``status`` as in :mod:`suite`, ``reason`` why it did not pass."""

    name: str
    status: str
    reason: str
    seconds: float


def _reason(node: ElementTree.Element) -> str:
    """Why a test did not pass. Of a file that was skipped as a whole pytest gives a Python tuple: file, line, why."""
    message, text = node.get("message") or "", node.text or ""
    if message == "collection skipped":
        with contextlib.suppress(ValueError, SyntaxError):
            return str(ast.literal_eval(text)[-1]).removeprefix("Skipped: ")
    return message or text


def read_junit(path: Path) -> list[Entry]:
    """The :class:`Entry` list of a JUnit XML file as pytest writes it. Raises ValueError naming the file when it is
    damaged, and OSError."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: is not JUnit XML: {error}") from error
    found = []
    for test in root.iter("testcase"):
        name = "::".join(part for part in (test.get("classname"), test.get("name")) if part)
        status, reason = "passed", ""
        for tag, word in (("skipped", "unsupported"), ("failure", "failed"), ("error", "failed")):
            node = test.find(tag)
            if node is not None:
                status, reason = word, " ".join(impersonal(_reason(node)).split())
        found.append(Entry(name, status, reason[:400], float(test.get("time") or 0)))
    return found
