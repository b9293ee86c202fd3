"""A contestant's call with arguments of its own, made again and again, and the judgement of what it gave.

The judge is the parity comparison of ``problems``: before the timing it calls the backend as ``qsa parity`` does, and
this call is noted (:class:`Noting`). What a timed call gave is put before the same comparison (:class:`Given`).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xxhash

from qsa.kernels.ops import BACKENDS

from ..backend import Backend, UnsupportedError
from ..compare.comparison import Comparison
from ..contract.arrays import arrays_of, mapped, to_numpy
from ..contract.kernel import GUARD, Gives, Kernel, call
from ..contract.storage import Own
from .problems import Problem


@dataclass(frozen=True)
class Noted:
    """A call as the contract has it: values of the host by name, options, what the function gives.

    ``output`` is the keyword by which the function takes an array for its result; empty where it makes one itself.
    """

    name: str
    arguments: dict[str, Any]
    keywords: dict[str, Any]
    gives: Gives
    guarded: Any
    output: str = ""


OUTPUTS = {"block_scores": "out", "select": "ids", "attend": "out"}
"""Operation -> the keyword by which our own backends take an array for the result: an engine gives one."""


class Noting(Kernel):
    """A kernel that notes its last call of each function."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.module, kernel.declaration)
        self.noted: dict[str, Noted] = {}

    def run(self, name: str, arguments: dict[str, Any], keywords: dict[str, Any], gives: Gives, guarded: Any) -> Any:
        """As :meth:`Kernel.run`."""
        self.noted[name] = Noted(name, arguments, keywords, gives, guarded)
        return super().run(name, arguments, keywords, gives, guarded)


class Given(Kernel):
    """A kernel whose function has given ``output`` already: nothing is called."""

    def __init__(self, kernel: Kernel, output: Any) -> None:
        super().__init__(kernel.module, kernel.declaration)
        self.output = output

    def run(self, name: str, arguments: dict[str, Any], keywords: dict[str, Any], gives: Gives, guarded: Any) -> Any:
        """The output, whatever the arguments."""
        # Comparisons may write into what they get (ids in another form).
        return copy.deepcopy(self.output)


class Call:
    """One call with copies of the noted arguments: ``function()`` makes it, ``result`` is what it gives.

    Raises UnsupportedError where the backend's own storage cannot be copied for a second one (``number`` above 0).
    """

    def __init__(self, kernel: Kernel, noted: Noted, number: int = 0) -> None:
        self.kernel, self.noted = kernel, noted
        self.moved = {name: kernel.device(_copied(value, number)) for name, value in noted.arguments.items()}
        keywords = dict(noted.keywords)
        self.out: Any = None
        if noted.guarded is not None and kernel.on_host and kernel.takes(noted.name, "out"):
            self.out = keywords["out"] = np.full(noted.guarded, GUARD, np.float32)
        if "slots" in self.moved:
            keywords["slots"] = self.moved["slots"]
        in_order = [value for name, value in self.moved.items() if name != "slots"]
        self.function: Callable[[], Any] = partial(kernel.function(noted.name), *in_order, **keywords)
        if noted.output and self.out is None and kernel.takes(noted.name, noted.output):
            self.function = partial(self.function, **{noted.output: self.first()})

    def first(self) -> Any:
        """The call, with its refusals. Raises UnsupportedError."""
        return call(self.noted.name, self.function)

    def result(self, returned: Any) -> Any:
        """What a call that returned ``returned`` gave, as values of the host."""
        if self.out is not None and (returned is None or isinstance(returned, (bool, np.bool_))):
            returned = self.out
        return self.kernel.given(self.noted.name, returned, self.moved, self.noted.gives)

    def change(self, values: dict[str, Any]) -> None:
        """Write ``values`` (of the host, by name of the argument) over the arguments, in place."""
        for name, value in values.items():
            self.moved[name][...] = self.kernel.device(value)


def _copied(value: Any, number: int) -> Any:
    """``value`` with arrays of its own; own storage is the backend's for the first call, a deep copy for others."""
    if isinstance(value, list):
        return [_copied(item, number) for item in value]
    if isinstance(value, Own):
        try:
            return Own(value.handle if number == 0 else copy.deepcopy(value.handle))
        except Exception as error:
            raise UnsupportedError(f"cold: the backend's own storage cannot be copied: {error}") from error
    return mapped(value, lambda array: np.array(to_numpy(array)))


def digest(output: Any) -> str:
    """Hash of the arrays in what a call gave."""
    hasher = xxhash.xxh3_128()
    for array in arrays_of(output if isinstance(output, list) else [output]):
        hasher.update(f"{array.dtype} {array.shape}".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()


class Judge:
    """Judges what calls gave, each output of other bytes once.

    backend  the contestant's; ``noted`` are its calls of both variants as they were judged before the timing
    """

    def __init__(self, backend: Backend, problem: Problem) -> None:
        assert isinstance(backend.kernel, Kernel)
        self.backend, self.problem = backend, problem
        self._right: tuple[set[str], set[str]] = (set(), set())
        self.noted: list[Noted] = []

    def before(self, operation: str) -> str:
        """Call the backend with both variants; why a result is wrong, empty where both are right.

        Raises UnsupportedError, and whatever the backend raises."""
        assert isinstance(self.backend.kernel, Kernel)
        for variant in range(2):
            noting = Noting(self.backend.kernel)
            wrong = _wrong(self.problem.check(Backend(self.backend.name, self.backend.arithmetic, noting), variant))
            if wrong:
                return wrong
            output = OUTPUTS.get(operation, "") if self.backend.name in BACKENDS else ""
            self.noted.append(replace(noting.noted[operation], output=output))
        return ""

    def other_values(self) -> dict[str, Any]:
        """Name -> the second variant's value of every argument that differs."""
        return {name: self.noted[1].arguments[name] for name in self.problem.changed}

    def wrong(self, output: Any, variant: int = 0) -> str:
        """Why what a call of ``variant`` gave is wrong; empty where it is right."""
        key = digest(output)
        if key in self._right[variant]:
            return ""
        assert isinstance(self.backend.kernel, Kernel)
        given = Backend(self.backend.name, self.backend.arithmetic, Given(self.backend.kernel, output))
        wrong = _wrong(self.problem.check(given, variant))
        if not wrong:
            self._right[variant].add(key)
        return wrong


def _wrong(comparisons: list[Comparison]) -> str:
    """The first failed comparison as one line."""
    if not comparisons:
        return "nothing was compared"
    for one in comparisons:
        if not one.passed:
            return "; ".join(line.strip() for line in one.lines())
    return ""
