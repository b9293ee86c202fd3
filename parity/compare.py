"""The one comparison helper: two arrays in, a :class:`Comparison` out that can say what is wrong and where.

Two kinds of check. :func:`equal` asks for equal bytes; a NaN of any payload equals a NaN and nothing else, and -0
differs from +0. :func:`error` measures a result against float64 truth as the relative norm of every vector of the last
axis, so that one bad head does not vanish among a thousand good ones. :func:`verdict` takes a number measured
elsewhere. Text, JSON and JUnit come from the same object.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np


class Element(NamedTuple):
    """One bad element: coordinate, both values as text, both bit patterns in hex, ULP distance (None where there is
    none: a NaN, another dtype)."""

    coordinate: tuple[int, ...]
    expected: str
    got: str
    expected_bits: str
    got_bits: str
    ulp: int | None


@dataclass(frozen=True)
class Comparison:
    """Outcome of one check. ``measure`` must not exceed ``bound``; ``reason`` says why the bound is what it is.

    Raises ValueError on a bound that is not finite or below 0: such a bound is a fault of the suite.

    ``kind`` is ``equal`` (the measure counts bad elements), ``error`` (a relative error) or ``count``. ``size`` and
    ``bad`` count elements. ``worst`` maps an axis to (index, figure) of its worst slice. ``figures`` are further
    numbers that nothing depends on; ``notes`` are lines for the reader, the suspected stage among them.
    """

    name: str
    kind: str
    measure: float
    bound: float
    reason: str
    size: int = 0
    bad: int = 0
    first: Element | None = None
    worst: dict = field(default_factory=dict)
    figures: dict = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        _check_bounds(self.name, self.bound)

    @property
    def passed(self):
        """Whether something was compared and the measure is a number within the bound."""
        return bool(self.size > 0 and self.measure <= self.bound)

    @property
    def share(self):
        """Share of the bound used; with a bound of 0: 0 when met, infinite when not."""
        if self.bound > 0:
            return self.measure / self.bound
        return 0.0 if self.measure == 0 else math.inf

    def noted(self, *notes):
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def as_dict(self):
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
        }

    def lines(self):
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
            at, a, b, bits_a, bits_b, ulp = self.first
            far = "" if ulp is None else f", {ulp} ULP apart"
            yield f"  first: {list(at)}: expected {a} ({bits_a}), got {b} ({bits_b}){far}"
        if self.worst and not self.passed:
            yield "  worst: " + ", ".join(
                f"{axis} {index} ({figure:.3g})" for axis, (index, figure) in self.worst.items()
            )
        if self.figures:
            yield "  figures: " + ", ".join(f"{key} {value:.3g}" for key, value in self.figures.items())
        for note in self.notes:
            yield f"  {note}"


def finite(value):
    """``value`` as a plain number, None where JSON has no word for it."""
    value = float(value)
    return value if math.isfinite(value) else None


def _check_bounds(name, bounds):
    """Raises ValueError, naming the first, on a bound that is not finite or below 0."""
    bounds = np.asarray(bounds, np.float64)
    wrong = ~(np.isfinite(bounds) & (bounds >= 0))
    if wrong.any():
        raise ValueError(f"{name}: bound = {bounds[wrong][0]}: must be a finite number, 0 or more")


def most(name, figures, bounds):
    """(figure, its bound) where ``figures`` use most of their bounds, a NaN before all else; (0, the largest bound)
    without figures. ``bounds`` has the shape of the figures or broadcasts to it.

    Raises ValueError, naming the comparison ``name``, on a bound that is not finite or below 0.
    """
    _check_bounds(name, bounds)
    if not figures.size:
        return 0.0, float(np.max(bounds, initial=0))
    bounds = np.broadcast_to(np.asarray(bounds, np.float64), figures.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(figures == 0, 0, figures / bounds)
    place = np.unravel_index(int(np.where(np.isnan(share), np.inf, share).argmax()), figures.shape)
    if np.isnan(share).any():
        place = np.unravel_index(int(np.isnan(share).argmax()), figures.shape)
    return float(figures[place]), float(bounds[place])


def _unsigned(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _differs(expected, got):
    if expected.dtype.kind == "f":
        nan = np.isnan(expected)
        return np.where(nan, ~np.isnan(got), _unsigned(expected) != _unsigned(got))
    return expected != got


def ulp_distance(a, b):
    """Number of representable steps between two scalars of one float dtype; +0 and -0 are 0 apart; None at a NaN."""
    if np.isnan(a) or np.isnan(b):
        return None

    def place(x):
        bits = int(_unsigned(np.asarray(x)[None])[0])
        half = 1 << (8 * x.dtype.itemsize - 1)
        return half - bits if bits >= half else bits

    return abs(place(a) - place(b))


def _bits(x):
    return f"0x{int(_unsigned(np.asarray(x)[None])[0]):0{2 * x.dtype.itemsize}x}"


def element(expected, got, coordinate):
    """The :class:`Element` at ``coordinate``; bits and ULP of ``expected`` are those of ``got``'s dtype."""
    a, b = expected[coordinate], got[coordinate]
    with np.errstate(over="ignore"):
        near = got.dtype.type(a)
    ulp = ulp_distance(near, b) if got.dtype.kind == "f" else None
    return Element(tuple(int(x) for x in coordinate), f"{a:.9g}", f"{b:.9g}", _bits(near), _bits(b), ulp)


def _first(bad, expected, got):
    place = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return element(expected, got, place)


def _worst(figures, axes, reduce):
    """Axis -> (index, figure) of the slice with the largest figure, for the axes of ``figures``."""
    found = {}
    for number, axis in enumerate(axes[: figures.ndim]):
        others = tuple(i for i in range(figures.ndim) if i != number)
        along = reduce(figures, axis=others) if others else figures
        index = int(np.argmax(along))
        found[axis] = (index, float(along[index]))
    return found


def _mismatch(name, expected, got, reason):
    if expected.shape == got.shape and (expected.dtype == got.dtype or reason):
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


def equal(name, expected, got, axes=("row", "head", "dim"), reason="the exact arithmetic has one right answer"):
    """Equality of bytes of two arrays; ``axes`` names them in order.

    A differing shape or dtype is a failed comparison whose note names both.
    """
    expected, got = np.asarray(expected), np.asarray(got)
    mismatch = _mismatch(name, expected, got, None)
    if mismatch:
        return mismatch
    bad = _differs(expected, got)
    count = int(bad.sum())
    if not count:
        return Comparison(name, "equal", 0, 0, reason, bad.size)
    return Comparison(
        name, "equal", count, 0, reason, bad.size, count, _first(bad, expected, got), _worst(bad, axes, np.sum)
    )


def _distance(truth, got):
    """|got - truth|: 0 between equal values, infinities and NaNs included, infinite where one side alone is NaN."""
    with np.errstate(invalid="ignore"):
        off = np.abs(got.astype(np.float64) - truth)
    alike = (truth == got) | (np.isnan(truth) & np.isnan(got))
    return np.where(alike, 0, np.where(np.isnan(off), np.inf, off))


def relative_error(truth, got):
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


def error(name, truth, got, bound, reason, axes=("row", "head", "dim"), scale=None):
    """The relative error of every vector of the last axis against float64 ``truth``, held to ``bound``: a number, or an
    array that broadcasts to the errors, so that every vector has a bound of its own. Measure and bound are those of the
    vector that uses most of its bound.

    With ``scale`` (float64, shape of the truth, positive) it is instead the error of every element relative to its own
    scale. An element counts as bad when it is off by more than the bound times its scale, which is the largest
    magnitude of its vector unless given. The figure ``peak`` is the largest error relative to the largest magnitude of
    the whole truth.
    """
    truth, got = np.asarray(truth, np.float64), np.asarray(got)
    mismatch = _mismatch(name, truth, got, reason)
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


def verdict(name, measure, bound, reason, *, kind="count", size=0, bad=0, notes=(), figures=None):
    """A number measured elsewhere, held to a bound."""
    return Comparison(name, kind, measure, bound, reason, size, bad, figures=figures or {}, notes=tuple(notes))
