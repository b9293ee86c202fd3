"""The one comparison helper: from two arrays to a :class:`Comparison`, whose text says what is wrong and where.

Two kinds of check. :func:`equal` asks for equal bytes; a NaN of any payload equals a NaN and nothing else, and -0
differs from +0. :func:`error` measures a result against float64 truth as the relative norm of every vector of the last
axis, so that one bad head does not vanish among a thousand good ones. :func:`verdict` takes a number measured
elsewhere. Text, JSON and JUnit come from the same object.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .element import Element, bit_patterns, element

Axes = tuple[str, ...]
"""Names of the axes of an array, in order."""


@dataclass(frozen=True)
class Comparison:
    """Outcome of one check. ``measure`` must not exceed ``bound``; ``reason`` says why the bound is what it is.

    Raises ValueError on a bound that is not finite or below 0: such a bound is a fault of the suite.

    ``kind`` is ``equal`` (the measure counts bad elements), ``error`` (a relative error) or ``count``. ``size`` and
    ``bad`` count elements. ``worst`` maps an axis to (index, figure) of its worst slice. ``figures`` are further
    numbers that decide nothing; ``notes`` are lines for the reader, the suspected stage among them. ``budget`` maps a
    stage to (its part of the error, its share); ``maps`` a pair of axes to rows of figures (``budget.py``).
    """

    name: str
    kind: str
    measure: float
    bound: float
    reason: str
    size: int = 0
    bad: int = 0
    first: Element | None = None
    worst: dict[str, tuple[int, float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    budget: dict[str, tuple[float, float]] = field(default_factory=dict)
    maps: dict[str, list[list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_bounds(self.name, self.bound)

    @property
    def passed(self) -> bool:
        """Whether something was compared and the measure is a number within the bound."""
        return bool(self.size > 0 and self.measure <= self.bound)

    @property
    def share(self) -> float:
        """Share of the bound used; with a bound of 0: 0 when met, infinite when not."""
        if self.bound > 0:
            return self.measure / self.bound
        return 0.0 if self.measure == 0 else math.inf

    def noted(self, *notes: str) -> "Comparison":
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite become None."""
        first = None if self.first is None else {**self.first._asdict(), "coordinate": list(self.first.coordinate)}
        return {
            "name": self.name,
            "kind": self.kind,
            "passed": self.passed,
            "measure": finite(self.measure),
            "bound": finite(self.bound),
            "share": finite(self.share),
            "reason": self.reason,
            "size": self.size,
            "bad": self.bad,
            "first": first,
            "worst": {axis: [index, finite(figure)] for axis, (index, figure) in self.worst.items()},
            "figures": {key: finite(value) for key, value in self.figures.items()},
            "notes": list(self.notes),
            "budget": {stage: [short(part), short(share)] for stage, (part, share) in self.budget.items()},
            "maps": {axes: [[short(x) for x in row] for row in rows] for axes, rows in self.maps.items()},
        }

    def lines(self) -> Iterator[str]:
        """The comparison for a reader, a line each."""
        share = "" if not self.bound else f", {self.share:.3g} of the bound"
        status = "passed" if self.passed else "FAILED"
        yield f"{self.name}: {status}: {self.measure:.4g} of {self.bound:.4g} allowed{share}"
        yield f"  bound: {self.reason}"
        if not self.size:
            yield "  nothing was compared"
        if self.bad:
            yield f"  bad: {self.bad} of {self.size} elements ({100 * self.bad / self.size:.3g} %)"
        if self.first is not None:
            bad = self.first
            far = "" if bad.ulp is None else f", {bad.ulp} ULP apart"
            values = f"expected {bad.expected} ({bad.expected_bits}), got {bad.got} ({bad.got_bits})"
            yield f"  first: {list(bad.coordinate)}: {values}{far}"
        if self.worst and not self.passed:
            yield "  worst: " + ", ".join(
                f"{axis} {index} ({figure:.3g})" for axis, (index, figure) in self.worst.items()
            )
        if self.figures:
            yield "  figures: " + ", ".join(f"{key} {value:.3g}" for key, value in self.figures.items())
        if self.budget:
            parts = (f"{stage} {part:.2g} ({share:.2%})" for stage, (part, share) in self.budget.items())
            yield f"  budget: {', '.join(parts)}"
        for note in self.notes:
            yield f"  {note}"


def finite(value: float) -> float | None:
    """``value`` as a plain number; None for a NaN or an infinity, which JSON does not have."""
    value = float(value)
    return value if math.isfinite(value) else None


def short(value: float) -> float | None:
    """:func:`finite` of ``value`` with three significant digits: a map has many."""
    return finite(float(f"{value:.3g}"))


def _check_bounds(name: str, bounds: float | np.ndarray) -> None:
    """Raises ValueError, naming the first, on a bound that is not finite or below 0."""
    bounds = np.asarray(bounds, np.float64)
    wrong = ~(np.isfinite(bounds) & (bounds >= 0))
    if wrong.any():
        raise ValueError(f"{name}: bound = {bounds[wrong][0]}: must be a finite number, 0 or more")


def most(name: str, figures: np.ndarray, bounds: float | np.ndarray) -> tuple[float, float]:
    """(figure, its bound) where ``figures`` use most of their bounds, the first NaN if there is one; (0, the largest
    bound) without figures. ``bounds`` has the shape of the figures or broadcasts to it.

    Raises ValueError, naming the comparison ``name``, on a bound that is not finite or below 0.
    """
    _check_bounds(name, bounds)
    if not figures.size:
        return 0.0, float(np.max(bounds, initial=0))
    bounds = np.broadcast_to(np.asarray(bounds, np.float64), figures.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(figures == 0, 0, figures / bounds)
    undefined = np.isnan(share)
    flat = undefined.argmax() if undefined.any() else share.argmax()
    index = np.unravel_index(int(flat), figures.shape)
    return float(figures[index]), float(bounds[index])


def _differs(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """bool: where two arrays of one shape and dtype differ in a byte and are not both NaN."""
    if expected.dtype.kind == "f":
        nan = np.isnan(expected)
        return np.where(nan, ~np.isnan(got), bit_patterns(expected) != bit_patterns(got))
    return expected != got


def _first(bad: np.ndarray, expected: np.ndarray, got: np.ndarray) -> Element:
    return element(expected, got, np.unravel_index(int(np.argmax(bad)), bad.shape))


def _worst(figures: np.ndarray, axes: Axes, reduce: Callable[..., Any]) -> dict[str, tuple[int, float]]:
    """Axis -> (index, figure) of the slice with the largest figure, for the axes of ``figures``."""
    found = {}
    for number, axis in enumerate(axes[: figures.ndim]):
        others = tuple(i for i in range(figures.ndim) if i != number)
        along = reduce(figures, axis=others) if others else figures
        index = int(np.argmax(along))
        found[axis] = (index, float(along[index]))
    return found


def _mismatch(name: str, expected: np.ndarray, got: np.ndarray, *, dtypes: bool) -> Comparison | None:
    """A failed comparison where the shapes differ, or with ``dtypes`` the dtypes; None where they do not."""
    if expected.shape == got.shape and (expected.dtype == got.dtype or not dtypes):
        return None
    text = f"expected {expected.dtype} {list(expected.shape)}, got {got.dtype} {list(got.shape)}"
    return Comparison(
        name,
        "equal",
        max(1, got.size),
        0,
        "shape and dtype are part of the result",
        max(1, got.size),
        got.size,
        notes=(text,),
    )


def equal(
    name: str,
    expected: np.ndarray,
    got: np.ndarray,
    axes: Axes = ("row", "head", "dim"),
    reason: str = "the exact arithmetic has one right answer",
) -> Comparison:
    """Equality of bytes of two arrays; ``axes`` names them in order.

    A differing shape or dtype is a failed comparison whose note names both.
    """
    expected, got = np.asarray(expected), np.asarray(got)
    mismatch = _mismatch(name, expected, got, dtypes=True)
    if mismatch:
        return mismatch
    bad = _differs(expected, got)
    count = int(bad.sum())
    if not count:
        return Comparison(name, "equal", 0, 0, reason, bad.size)
    return Comparison(
        name, "equal", count, 0, reason, bad.size, count, _first(bad, expected, got), _worst(bad, axes, np.sum)
    )


def _distance(truth: np.ndarray, got: np.ndarray) -> np.ndarray:
    """|got - truth|: 0 between equal values, infinities and NaNs included, infinite where one side alone is NaN."""
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(np.float64) - truth)
    alike = (truth == got) | (np.isnan(truth) & np.isnan(got))
    return np.where(alike, 0, np.where(np.isnan(off), np.inf, off))


def relative_error(truth: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Relative norm of the error of every vector of the last axis, float64 [...]; infinite where only one side has a
    value that is not finite, or where the truth is 0 and the result is not."""
    truth, got = np.asarray(truth, np.float64), np.asarray(got, np.float64)
    alike = np.isfinite(truth) == np.isfinite(got)
    with np.errstate(invalid="ignore", over="ignore"):
        alike &= np.isfinite(truth) | (truth == got) | (np.isnan(truth) & np.isnan(got))
        both = np.isfinite(truth) & np.isfinite(got)
        off = np.linalg.norm(np.where(both, got - truth, 0), axis=-1)
        size = np.linalg.norm(np.where(both, truth, 0), axis=-1)
    relative = np.where(off == 0, 0.0, off / np.where(size > 0, size, 1))
    return np.where(alike.all(axis=-1) & ((size > 0) | (off == 0)), relative, np.inf)


def error(
    name: str,
    truth: np.ndarray,
    got: np.ndarray,
    bound: float | np.ndarray,
    reason: str,
    axes: Axes = ("row", "head", "dim"),
    scale: np.ndarray | None = None,
) -> Comparison:
    """The relative error of every vector of the last axis against float64 ``truth``, held to ``bound``: a number, or an
    array that broadcasts to the errors, so that every vector has a bound of its own. Measure and bound are those of the
    vector that uses most of its bound.

    With ``scale`` (float64, shape of the truth, positive) it is instead the error of every element relative to its own
    scale. An element counts as bad when it is off by more than the bound times its scale, which is the largest
    magnitude of its vector unless given. The figure ``peak`` is the largest error relative to the largest magnitude of
    the whole truth.
    """
    truth, got = np.asarray(truth, np.float64), np.asarray(got)
    mismatch = _mismatch(name, truth, got, dtypes=False)
    if mismatch:
        return mismatch
    off = _distance(truth, got)
    relative = relative_error(truth, got) if scale is None else off / scale
    measure, limit = most(name, relative, bound)
    magnitude = np.abs(np.where(np.isfinite(truth), truth, 0))
    figures = {"peak": float(off.max(initial=0) / (magnitude.max(initial=0) or 1))}
    if measure <= limit:
        return Comparison(name, "error", measure, limit, reason, got.size, figures=figures)
    bound = np.broadcast_to(bound, relative.shape)
    bad = off > (bound[..., None] * magnitude.max(axis=-1, keepdims=True) if scale is None else bound * scale)
    if not bad.any():
        # Only the norm is over the bound: show the element that adds most to it.
        bad = off == off.max()
    worst = _worst(relative, axes, np.max)
    return Comparison(
        name, "error", measure, limit, reason, got.size, int(bad.sum()), _first(bad, truth, got), worst, figures
    )


def verdict(
    name: str,
    measure: float,
    bound: float,
    reason: str,
    *,
    kind: str = "count",
    size: int = 0,
    bad: int = 0,
    notes: Iterable[str] = (),
    figures: dict[str, float] | None = None,
) -> Comparison:
    """A number measured elsewhere, held to a bound."""
    return Comparison(name, kind, measure, bound, reason, size, bad, figures=figures or {}, notes=tuple(notes))
