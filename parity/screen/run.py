"""A run of ``qsa bench``: its contestants, the limits of their machines, the timings so far, the report."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qsa.kernels.ops import BACKENDS
from qsa.kernels.sources import root

from ..backend import Backend
from ..bench import device
from ..contract.kernel import Kernel
from ..running import runs
from ..speed import base
from . import exponents
from .cases import BenchCase
from .limits import cpu, floors, nvml
from .measure import Entry, Options, measured
from .results import Bench, Contestant, Limits, State, Timing

SECONDS, MOST_SECONDS = 0.3, 600.0
"""Of sampling a contestant of a case, unless the command says otherwise; and at most."""


class Run:
    """A run of ``backends``, the first of which the others stand against; ``facts`` are those of ``qsa env``."""

    def __init__(self, backends: Sequence[Backend], facts: dict[str, Any], seconds: float = SECONDS) -> None:
        names = distinct(
            [short_name(backend.name) for backend in backends], [backend.arithmetic for backend in backends]
        )
        self.entries = [Entry(name, backend, kind_of(backend)) for name, backend in zip(names, backends, strict=True)]
        self.facts, self.seconds, self.interrupted = facts, seconds, ""
        self.limits: dict[str, Limits] = {}
        self.start: tuple[State, ...] = ()
        self.timings: list[Timing] = []
        self._state: dict[str, Callable[[], State]] = {}
        self._options: Options | None = None
        self._began = time.monotonic()
        self.contestants = tuple(
            Contestant(entry.name, entry.backend.name, entry.backend.arithmetic, runs.sources_hash(entry.backend.name))
            for entry in self.entries
        )

    def begin(self) -> None:
        """Measure the limits of the machines that the contestants compute on."""
        again: dict[str, Callable[[], Limits]] = {}
        for kind in dict.fromkeys(entry.kind for entry in self.entries):
            if kind == "cpu":
                self._state[kind], again[kind] = cpu.state_reader(), cpu.limits
                continue
            try:
                # Imported here: it needs numba-cuda and CuPy.
                from .limits import cuda
            except ImportError as error:
                text = f"the limits of a device are measured with numba-cuda and CuPy (extra cuda12 or cuda13): {error}"
                raise ValueError(text) from error
            self._state[kind] = read = nvml.state_reader(cuda.bus_address())
            self.facts = {**self.facts, "driver": device.facts()["driver"]}
            again[kind] = partial(_of_device, cuda.measured_limits, read)
        self.limits |= {kind: measure() for kind, measure in again.items()}
        self.start = tuple(read() for read in self._state.values())
        self._options = Options(self.seconds, self.limits, again, self._state)

    def time(self, case: BenchCase) -> list[Timing]:
        """The timings of one case, a contestant each."""
        assert self._options is not None
        found = measured(case, self.entries, self._options)
        self.timings += found
        return found

    def report(self, interrupted: str = "") -> Bench:
        """The report of what is finished; floors are those of the best limits that were measured."""
        kinds = {entry.name: entry.kind for entry in self.entries}
        timings = tuple(floors.beside(one, self.limits[kinds[one.contestant]]) for one in self.timings)
        return Bench(
            environment={**self.facts, **commit()},
            contestants=self.contestants,
            limits=tuple(self.limits.values()),
            start=self.start,
            end=tuple(read() for read in self._state.values()),
            timings=timings,
            exponents=tuple(exponents.of(timings)),
            seconds=round(time.monotonic() - self._began, 1),
            interrupted=interrupted,
        )


def _of_device(measure: Callable[[State], Limits], read: Callable[[], State]) -> Limits:
    return measure(read())


def short_name(backend: str) -> str:
    """A backend's name without the folder and the ending of a file."""
    place, colon, attribute = backend.partition(":")
    if place.endswith((".py", ".json")):
        place = Path(place).stem
    return f"{place}{colon}{attribute}"


def distinct(names: Sequence[str], arithmetics: Sequence[str]) -> list[str]:
    """A name for each contestant: the backend's, with its arithmetic or a number where two are alike."""
    found: list[str] = []
    for name, arithmetic in zip(names, arithmetics, strict=True):
        made = name if names.count(name) == 1 else f"{name} {arithmetic}"
        same = sum(each == made or each.startswith(f"{made} #") for each in found)
        found.append(f"{made} #{same + 1}" if same else made)
    return found


def kind_of(backend: Backend) -> str:
    """``cuda`` where the backend's arrays lie on a CUDA device, else ``cpu``."""
    kernel = backend.kernel
    if not isinstance(kernel, Kernel) or backend.name in BACKENDS:
        return "cuda" if backend.name == "cuda" else "cpu"
    array = kernel.device(np.zeros(1, np.float32))
    library = type(array).__module__.split(".")[0]
    return "cuda" if library == "cupy" or (library == "torch" and array.is_cuda) else "cpu"


def commit() -> dict[str, str]:
    """``commit`` of the checkout, marked where files differ from it; nothing outside of one."""
    try:
        found = base.git(root(), "rev-parse", "HEAD")
        changed = base.git(root(), "status", "--porcelain", "--untracked-files=no")
    except base.NoBaseError:
        return {}
    return {} if found is None else {"commit": f"{found} with changes" if changed else found}
