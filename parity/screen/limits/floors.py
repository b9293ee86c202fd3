"""The least time that a case can take on a machine, and times that no machine has."""

from typing import Any

from msgspec.structs import replace

from ..results import Floor, Limits, Rate, Timing

ROOM = 1.25
"""A time is impossible when the floor is more than so many times as long. The rates under a floor are measured, by
copies and reads that a better one may beat by some percent; one that needs a quarter less has left work out."""


def cell_bytes(pool: Any) -> int:
    """Bytes of one cell of one KV head: K and V, codes and scales. ``pool``: a Pool or a device's K/V."""
    sides = (pool.k, pool.v)
    return sum(array.shape[-1] * array.dtype.itemsize for side in sides for array in (side.codes, side.scale))


def rate(limits: Limits, touched: int, cache: str) -> float:
    """GB/s at most at which a set of ``touched`` bytes comes to the processor.

    ``cold``: from the memory. ``hot``: from wherever a set of that size lies, which is never slower than a larger one.
    """
    memory = limits.rates[-1].most
    if cache == "cold":
        return memory
    larger = [each.most for each in limits.rates if each.bytes >= touched]
    smaller = [each.most for each in limits.rates if each.bytes < touched]
    # A set between two measured sizes may lie where the smaller one does.
    return max([*larger, *smaller[-1:], memory])


def floor(limits: Limits, touched: int, macs: int, cache: str) -> Floor:
    """The :class:`Floor` of a case that must touch ``touched`` bytes and do ``macs`` multiply-adds."""
    bytes_us = touched / rate(limits, touched, cache) / 1e3
    macs_us = macs / limits.macs_per_s * 1e6
    return Floor(touched, macs, bytes_us, macs_us, limits.least_us, max(bytes_us, macs_us, limits.least_us))


def impossible(us: float, least: Floor) -> str:
    """Why a time of ``us`` microseconds is impossible; empty where it is not."""
    if us * ROOM >= least.us:
        return ""
    return (
        f"{us:.3g} us is below the floor of {least.us:.3g} us ({least.bytes:,} bytes {least.bytes_us:.3g} us, "
        f"{least.macs:,} multiply-adds {least.macs_us:.3g} us, a launch {least.least_us:.3g} us): work is left out"
    )


def best(first: Limits, second: Limits) -> Limits:
    """The higher of two measurements of one machine's rates: other work on it only lowers them."""
    rates = tuple(
        Rate(a.bytes, max(a.copy_gb_s, b.copy_gb_s), max(a.read_gb_s, b.read_gb_s))
        for a, b in zip(first.rates, second.rates, strict=True)
    )
    small, least = min(first.small_us, second.small_us), min(first.least_us, second.least_us)
    return replace(first, rates=rates, small_us=small, least_us=least)


def beside(timing: Timing, limits: Limits) -> Timing:
    """``timing`` beside the floor by ``limits``."""
    if timing.floor is None:
        return timing
    found = floor(limits, timing.floor.bytes, timing.floor.macs, str(timing.parameters["cache"]))
    return replace(timing, floor=found, share=None if timing.us is None else found.us / timing.us)
