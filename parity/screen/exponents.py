"""How times grow with rows and with context: exponents fitted to the timed cases of a run."""

import math
from collections.abc import Sequence

from . import cases
from .results import Exponent, Timing

AXES = ("context", "rows")


def fitted(points: Sequence[tuple[float, float]]) -> float:
    """The exponent e of y = c * x^e by least squares over the logarithms. Raises ValueError on fewer than two points, a
    number that is not above 0, or points of one x."""
    if len(points) < 2 or any(not 0 < value < math.inf for point in points for value in point):
        raise ValueError(f"points = {list(points)}: must be two or more pairs of numbers above 0")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    spread = sum((x - middle[0]) ** 2 for x, _ in logs)
    if spread == 0:
        raise ValueError(f"points = {list(points)}: must have several values of x")
    return sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / spread


def of(timings: Sequence[Timing]) -> list[Exponent]:
    """The exponents of every series of three and more timed cases that differ in one axis alone."""
    found = []
    for contestant in dict.fromkeys(timing.contestant for timing in timings):
        timed = {one.case: one for one in timings if one.contestant == contestant and one.us is not None}
        for axis in AXES:
            for text, group in cases.series(map(cases.parse, timed), axis).items():
                points = tuple(_point(case.get(axis), timed[case.text]) for case in group)
                pairs = [(x, us) for x, us, _ in points]
                found.append(Exponent(text, contestant, axis, fitted(pairs), fitted(pairs[-2:]), points))
    return found


def _point(value: int, timing: Timing) -> tuple[int, float, float]:
    assert timing.us is not None and timing.floor is not None
    return value, timing.us, timing.floor.us
