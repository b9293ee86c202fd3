"""A hint at the arithmetic, where a kernel of somebody else's fails in bytes alone.

A float32 kernel that declares the exact arithmetic, and is right, fails every case: of a text nothing tells it from a
wrong one but other bytes.
"""

from collections.abc import Iterable

from .comparison import Comparison

OURS = ("cpu", "cuda", "exact")
"""Names of our own backends, whose arithmetic is no question."""


def arithmetic(name: str, asked: str, declared: Iterable[str], comparisons: Iterable[Comparison]) -> str:
    """The hint to a failed case of backend ``name``, judged in the arithmetic ``asked`` of those ``declared``; empty
    where its arithmetic is not exact, or a bound is missed that rounding explains as little in another one."""
    failed = [comparison for comparison in comparisons if not comparison.passed]
    if asked != "exact" or name in OURS or not failed or any(comparison.bound for comparison in failed):
        return ""
    way = "pass --arithmetic float" if "float" in declared else 'declare {"arithmetic": "float"}'
    return f"held to bytes, as the exact arithmetic promises: for a kernel that keeps bounds, {way} (docs/contract.md)"
