"""What the CPU can do at most, measured now, and its state: clock, temperature, whether heat has lowered its clock."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np

from ...environment import cores, cpu_name
from ...speed.measure import throttle_counts
from ..results import Limits, Rate, State

SIZES = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28)
"""Bytes of the sets that are copied and read: from the first caches to the memory."""

REPEATS, PIECE_SECONDS = 5, 0.01

MACS_PER_CYCLE = (
    (("amx-int8",), 1024, "AMX"),
    (("avx512vnni",), 128, "AVX512-VNNI"),
    (("avx512f",), 128, "AVX-512"),
    (("avxvnni",), 64, "AVX-VNNI"),
    (("avx2",), 64, "AVX2"),
    (("i8mm",), 128, "I8MM"),
    (("dotprod",), 64, "DotProd"),
)
"""Features of a processor -> 8-bit multiply-adds that a core does in a cycle at most; the first that fits counts.
Source: two vector units of 512 bits (four of 128 bits on AArch64), and a tile of AMX in 16 cycles."""

MOST_MHZ = 6000.0
"""Taken where the system tells no highest clock: no processor has a higher one by its maker."""


def read_number(path: str) -> float | None:
    """The number in a file of the system; None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return float(Path(path).read_text())
    return None


def last_cache() -> int:
    """Bytes of the largest cache of one processor; 32 MiB where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = path.read_text().strip()
            found.append(int(text[:-1]) * units[text[-1]])
    return max(found, default=32 << 20)


def most_mhz() -> float | None:
    """The highest clock that the system tells."""
    khz = read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return None if khz is None else khz / 1e3


def macs_per_s(features: dict[str, bool], count: int, mhz: float | None) -> tuple[float, str]:
    """(8-bit multiply-adds a second at most, from what) of ``count`` cores with these features."""
    each, name = 128, "unknown vector units"
    for wanted, macs, called in MACS_PER_CYCLE:
        if all(features.get(feature) for feature in wanted):
            each, name = macs, called
            break
    clock = MOST_MHZ if mhz is None else mhz
    told = f"{clock:.0f} MHz" if mhz is not None else f"{clock:.0f} MHz, the system tells no highest clock"
    return count * each * clock * 1e6, f"{count} cores x {each} a cycle ({name}) x {told}"


def state_reader() -> Callable[[], State]:
    """A function that reads the :class:`State`; heat counts from now on."""
    before = throttle_counts()

    def read() -> State:
        mhz = read_number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        temperature = read_number("/sys/class/thermal/thermal_zone0/temp")
        with contextlib.suppress(OSError):
            return State(
                clock_mhz=mhz / 1e3 if mhz else _clock_of_cpuinfo(),
                most_mhz=most_mhz(),
                temperature=temperature / 1e3 if temperature else None,
                throttled=("thermal slowdown of the CPU",) if throttle_counts() > before else (),
                load=round(os.getloadavg()[0], 2),
            )
        return State()

    return read


def _clock_of_cpuinfo() -> float | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2])
    return None


def limits() -> Limits:
    """The :class:`Limits` of the cores that this process may use; takes about two seconds."""
    count = cores()
    rates = tuple(rate(size, count) for size in SIZES)
    one = np.zeros(1)
    small = min(_seconds(lambda: np.add(one, 1, out=one), 2000) for _ in range(REPEATS))
    least = min(_seconds(_nothing, 2000) for _ in range(REPEATS))
    features = dict(llvmlite.binding.get_host_cpu_features().items())
    macs, source = macs_per_s(features, count, most_mhz())
    return Limits(cpu_name(), last_cache(), rates, 1e6 * small, 1e6 * least, macs, source)


def _nothing(*_: Any) -> None:
    """A call of Python's that does nothing: no call is faster."""


def _seconds(call: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def rate(size: int, threads: int) -> Rate:
    """The best rates of ``threads`` threads, each over its part of a set of ``size`` bytes."""
    part = size // threads // 2
    copied = max(_together(threads, part, 2 * part, _copier) for _ in range(REPEATS))
    read = max(_together(threads, 2 * part, 2 * part, _reader) for _ in range(REPEATS))
    return Rate(size, round(copied / 1e9, 2), round(read / 1e9, 2))


def _copier(nbytes: int) -> Callable[[], Any]:
    # Not zeros: pages that nobody wrote are all the same one.
    source, target = (np.arange(nbytes // 4, dtype=np.int32) for _ in range(2))
    return lambda: np.copyto(target, source)


def _reader(nbytes: int) -> Callable[[], Any]:
    source = np.arange(nbytes // 4, dtype=np.int32)
    return lambda: source.max()


def _together(threads: int, nbytes: int, moved: int, make: Callable[[int], Callable[[], Any]]) -> float:
    """Bytes a second of all threads at once; each moves ``moved`` bytes a call."""
    barrier, found = threading.Barrier(threads), [0.0] * threads

    def work(number: int) -> None:
        call = make(nbytes)
        call()
        count = max(1, round(PIECE_SECONDS / max(_seconds(call, 1), 1e-7)))
        barrier.wait()
        found[number] = moved / _seconds(call, count)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(found)
