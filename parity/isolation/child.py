"""The child: loads the backend by its name and carries out calls until the judge's socket closes.

usage: python -m qsa.parity.isolation.child DESCRIPTOR NAME
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from qsa.kernels.ops import BACKENDS
from qsa.kernels.switches import override

from ..compare.input_changes import ChangedInputError, leaves
from ..contract import Kernel, UnsupportedError, declared, load
from ..contract.arrays import is_array
from ..contract.operations import FUNCTIONS
from ..contract.storage import Own
from . import barrier
from .messages import Handle, Header, SharedMemory, answer, receive, take


class Child:
    """One backend and its storage, behind a socket."""

    def __init__(self, channel: socket.socket, name: str) -> None:
        self.channel = channel
        if name not in BACKENDS:
            barrier.install()
        module = load(name)
        self.file = getattr(sys.modules.get(type(module).__module__), "__file__", None)
        self.kernel = Kernel(module, declared(module))
        self.own: dict[int, Any] = {}
        # What Kernel reads from the class is asked for once: a backend may answer otherwise later.
        self.offered = {
            each: [option for option in (*FUNCTIONS[each].options, "slots") if self.kernel.takes(each, option)]
            for each in FUNCTIONS
            if self.kernel.has(each)
        }

    def describe(self) -> dict[str, Any]:
        """What the judge has to know: the declaration, the functions with the options that they take."""
        import msgspec

        return {
            "declaration": msgspec.to_builtins(self.kernel.declaration),
            "functions": self.offered,
            "near": {each: near for each in FUNCTIONS if (near := self.kernel.near(each))},
        }

    def carry_out(self, head: bytes, memory: SharedMemory) -> None:
        """One call, and its answer."""
        name, arguments, keywords, gives, guarded, switches = take(head, memory, self._handle)
        try:
            with override(**switches):
                result = self.kernel.run(name, arguments, keywords, gives, guarded)
            self._give(result, arguments, gives)
        except ChangedInputError as error:
            answer(self.channel, Header("changed", sendable(str(error))), [])
        except UnsupportedError as error:
            answer(self.channel, Header("unsupported", sendable(str(error))), [])
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            # The last line of the backend's own file says more than the library's below it.
            own = [frame for frame in frames if frame.filename == getattr(self.kernel.module, "__file__", self.file)]
            frame = (own or frames)[-1]
            place = f"at {Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
            answer(self.channel, Header("error", sendable(f"{error}\n{place}"), error=type(error).__name__), [])

    def _handle(self, handle: Handle) -> Own:
        return Own(self.own[handle.number])

    def _give(self, result: Any, arguments: dict[str, Any], gives: str) -> None:
        if gives == "own":
            if result.handle is None or isinstance(result.handle, bool):
                answer(self.channel, Header("result"), [])
                return
            number = len(self.own)
            self.own[number] = result.handle
            answer(self.channel, Header("result", handle=number), [])
        elif gives in ("kv", "index"):
            _write_back(result, arguments[gives])
            answer(self.channel, Header("result"), [])
        elif gives == "named":
            answer(self.channel, Header("result", names=list(result)), list(result.values()))
        else:
            many = isinstance(result, list)
            answer(self.channel, Header("result", many=many), result if many else [result])


def sendable(text: str) -> str:
    """``text`` with ? for what UTF-8 has not: a backend's error text may hold anything."""
    return text.encode("utf-8", "replace").decode()


def _write_back(result: Any, argument: Any) -> None:
    """Copies the arrays of a result into those of the argument, which lie in the judge's memory."""
    if result is argument:
        return
    # By name: a backend's own copy may have its attributes in another order.
    found, targets = (
        {name: part for name, part in leaves({"": value}) if is_array(part)} for value in (result, argument)
    )
    shapes, wanted = ({name: array.shape for name, array in part.items()} for part in (found, targets))
    if shapes != wanted:
        name = next(name for name in wanted if shapes.get(name) != wanted[name])
        raise ValueError(f"{name.lstrip('.')}: has shape {shapes.get(name)} after the call: must be {wanted[name]}")
    for name, target in targets.items():
        target[...] = found[name]


def main(descriptor: int, name: str) -> None:
    """Serves until the socket closes."""
    with contextlib.suppress(OSError, AttributeError):
        # A kernel that hangs must not outlive a judge that was killed (Linux: PR_SET_PDEATHSIG).
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # When memory runs out, this process goes first, and not the judge.
        Path("/proc/self/oom_score_adj").write_text("900")
    channel = socket.socket(fileno=descriptor)
    try:
        child = Child(channel, name)
    except Exception as error:
        answer(channel, Header("error", sendable(str(error)), error=type(error).__name__), [])
        return
    import msgspec

    answer(channel, Header("result", msgspec.json.encode(child.describe()).decode()), [])
    while True:
        try:
            head = receive(channel)
        except EOFError:
            return
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        memory = SharedMemory(os.fstat(descriptors[0]).st_size, descriptors[0])
        child.carry_out(bytes(head), memory)
        memory.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
