"""What both compilers, the real one and the simulator's, share on the host's side."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, NamedTuple, TypeAlias

DeviceArray: TypeAlias = Any
"""An array on the device: a CuPy array; the simulator's are NumPy arrays. Neither package is needed to name it."""


@dataclass(frozen=True)
class Properties:
    """What the kernels ask about a device. ``shared_per_block``, ``shared_per_multiprocessor`` and ``l2`` in bytes."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    l2: int


class Operand(NamedTuple):
    """An array that every call of a plan gives: C-contiguous, at a multiple of ``alignment`` bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    alignment: int = 16


class Argument(NamedTuple):
    """An array argument of a prepared launch: ``shape`` elements of the call's array ``position``, from row ``first``
    on; ``row`` bytes of that array are a row."""

    position: int
    dtype: str
    shape: tuple[int, ...]
    first: int = 0
    row: int = 0


class Numbers(NamedTuple):
    """A tuple argument of a prepared launch: entries ``start`` to ``stop`` - 1 of the numbers that a call gives, then
    zeros, ``length`` in all."""

    start: int
    stop: int
    length: int

    def of(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """The argument's value in a call that gives ``numbers``."""
        return (*numbers[self.start : self.stop], *(0,) * (self.length - (self.stop - self.start)))


WAIT = "wait_for_earlier"
"""Name of the instruction in ``ptx.py`` with which a kernel waits for the launches before it."""


def waits_for_earlier(kernel: Any) -> bool:
    """Whether ``kernel``, of either compiler, itself waits for the launches before it: only such a one may be launched
    early. That it does so in time is what the PTX check and the simulator see to."""
    code = kernel.py_func.__code__
    return WAIT in code.co_names or WAIT in code.co_freevars


_launches: Counter[str] = Counter()


def count_launch(name: str) -> None:
    """Count one launch of the kernel ``name``."""
    _launches[name] += 1


def launches() -> dict[str, int]:
    """Launches so far: kernel name -> times. A launch during a graph capture counts once, its replays do not."""
    return dict(_launches)


def per_device(current_device: Callable[[], int]) -> Callable[[Callable[..., Any]], Any]:
    """The decorator ``specialised`` of a compiler whose current device is ``current_device()``."""

    def specialised(build):
        """Decorator of a function that builds kernels for a geometry or format: one build per device and arguments.

        ``build`` itself stays reachable as the attribute ``build``.
        """
        built = cache(lambda _, *arguments: build(*arguments))

        @wraps(build)
        def get(*arguments):
            return built(current_device(), *arguments)

        get.build = build
        return get

    return specialised
