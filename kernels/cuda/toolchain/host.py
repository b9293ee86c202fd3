"""What both compilers, the real one and the simulator's, share on the host's side."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeAlias

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
