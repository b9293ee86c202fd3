"""The judge's side: a child process per backend, started anew when it is gone."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from typing import Any, BinaryIO

import msgspec
import numpy as np

from qsa.kernels.switches import switches

from ..compare.input_changes import ChangedInputError, Given
from ..contract.arrays import mapped
from ..contract.declaration import Declaration
from ..contract.kernel import Gives, UnsupportedError
from ..contract.storage import Own
from .messages import Handle, Header, SharedMemory, place, read_answer, send, take

START_SECONDS = 300.0
"""Seconds that a backend may take to be imported: compilers run then."""

SECONDS = 300.0
"""Seconds that one call may take unless the command says otherwise: a first call compiles."""

_TAIL = 8
"""Lines of a dead child's error output that the reason shows."""

_LASTING = re.compile(
    "CUDA error|CUDA_ERROR|cudaError|illegal memory access|misaligned address|device-side assert|launch failure"
    "|launch timed out|out of memory|^MemoryError",
    re.IGNORECASE,
)
"""Errors after which a process is good for nothing: a device's error comes again from every later call, and memory that
ran out may stay so. The next call has a new process."""

_KNOWN: dict[str, type[Exception]] = {
    each.__name__: each for each in (ValueError, IndexError, TypeError, KeyError, ImportError, ModuleNotFoundError)
}


class BackendError(RuntimeError):
    """The backend raised an exception in its process; the text has its type, message and place."""


class BackendDiedError(RuntimeError):
    """The backend's process is gone, or took longer than it may; the text says how."""


class RemoteKernel:
    """The functions of one backend in a process of its own; the same calls as ``contract.kernel.Kernel``.

    ``seconds`` limits one call. The backend is imported while the judge goes on, where ``wait`` is False: then
    :meth:`wait` comes before anything else. Raises ValueError when the backend cannot be loaded, with the reason.
    """

    def __init__(self, name: str, seconds: float = SECONDS, wait: bool = True) -> None:
        self.name, self.seconds = name, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._start()
        if wait:
            self.wait()

    def _start(self) -> None:
        """Starts the child, which imports the backend."""
        ours, theirs = socket.socketpair()
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
        # The current folder can be imported from, as in the judge's process.
        paths = os.pathsep.join([*(path or os.getcwd() for path in sys.path), os.getcwd()])
        command = [sys.executable, "-m", "qsa.parity.isolation.child", str(theirs.fileno()), self.name]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": paths},
            # Ctrl-C is the judge's: it ends the child itself.
            start_new_session=True,
        )
        theirs.close()
        self._channel = ours

    def wait(self) -> None:
        """Waits until the child has imported the backend. Raises ValueError when it cannot be loaded."""
        try:
            header, _ = self._answer("loading", START_SECONDS)
        except BackendDiedError as error:
            raise ValueError(f"backend = {self.name!r}: {error}") from None
        if header.kind != "result":
            self.close()
            raise ValueError(header.text)
        about = msgspec.json.decode(header.text)
        self.declaration = msgspec.convert(about["declaration"], Declaration)
        self._functions: dict[str, list[str]] = about["functions"]
        self._near: dict[str, str] = about["near"]

    def has(self, name: str) -> bool:
        """Whether the backend defines the function ``name``."""
        return name in self._functions

    def near(self, name: str) -> str:
        """As ``Kernel.near``."""
        return self._near.get(name, "")

    def takes(self, name: str, keyword: str) -> bool:
        """Whether the function ``name`` takes ``keyword``."""
        return keyword in self._functions.get(name, ())

    def close(self) -> None:
        """Ends the child."""
        process, self._process = self._process, None
        if process is not None:
            self._channel.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._errors.close()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            try:
                self.close()
            except KeyboardInterrupt:
                # Python would print it and go on, so nothing is lost; the child must end all the same.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, name: str, arguments: dict[str, Any], keywords: dict[str, Any], gives: Gives, guarded: Any) -> Any:
        """One call, as ``Kernel.run`` has it. The inputs are compared here, in memory that the child shares.

        Raises UnsupportedError, ChangedInputError, BackendError, BackendDiedError, or a ValueError, IndexError or
        TypeError that the backend raised."""
        if self._process is None:
            self._start()
            self.wait()
        given = Given(name, {key: value for key, value in arguments.items() if not _own(value)})
        message = (name, arguments, keywords, gives, guarded, asdict(switches()))
        head, memory = place(list(message))
        try:
            send(self._channel, head)
            socket.send_fds(self._channel, [b"\0"], [memory.descriptor])
            header, arrays = self._answer(name, self.seconds)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(name) from None
        finally:
            after = take(head, memory, lambda handle: Own(handle))[1]
            memory.close()
        if header.kind == "changed":
            raise ChangedInputError(header.text)
        # The child has compared too; this comparison is out of its reach.
        given.check({key: value for key, value in after.items() if key in given.arguments})
        return self._result(header, arrays, after, gives)

    def _result(self, header: Header, arrays: list[np.ndarray], after: dict[str, Any], gives: Gives) -> Any:
        if header.kind == "unsupported":
            raise UnsupportedError(header.text)
        if header.kind == "error":
            if _LASTING.search(f"{header.error}: {header.text}"):
                self.close()
            kind = _KNOWN.get(header.error)
            error = kind(header.text) if kind else BackendError(f"{header.error}: {header.text}")
            error.located = True  # type: ignore[attr-defined]  # the text ends with the place in the backend
            raise error
        if gives == "own":
            return Own(None if header.handle is None else Handle(header.handle))
        if gives in ("kv", "index"):
            return mapped(after[gives], np.array)
        if gives == "named":
            if len(header.names) != len(arrays):
                raise ValueError(f"an answer of {len(arrays)} arrays with {len(header.names)} names")
            return dict(zip(header.names, arrays, strict=True))
        if not header.many and len(arrays) != 1:
            raise ValueError("an answer without its array")
        return arrays if header.many else arrays[0]

    def _answer(self, name: str, seconds: float) -> tuple[Header, list[np.ndarray]]:
        """The child's answer. Raises BackendDiedError when there is none, or none that can be read."""
        self._channel.settimeout(seconds)
        started = time.monotonic()
        try:
            return read_answer(self._channel)
        except TimeoutError:
            self.close()
            spent = time.monotonic() - started
            raise BackendDiedError(f"{name}: no answer within {spent:.0f} s: the process was ended") from None
        except (EOFError, ConnectionResetError):
            raise self._death(name) from None
        except ValueError as error:
            self.close()
            raise BackendDiedError(f"{name}: the process gave {error}") from None

    def _death(self, name: str) -> BackendDiedError:
        """The error for a child that is gone: how it ended, and the last lines that it printed."""
        assert self._process is not None
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            how = "closed its side and went on"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4096))
        lines = self._errors.read().decode(errors="replace").splitlines()[-_TAIL:]
        self.close()
        printed = "".join(f"\n  {line}" for line in lines)
        return BackendDiedError(f"{name}: the backend's process {how}{printed}")


def _own(value: Any) -> bool:
    return isinstance(value, Own) or (isinstance(value, list) and any(map(_own, value)))


__all__ = ["SECONDS", "BackendDiedError", "BackendError", "RemoteKernel", "SharedMemory"]
