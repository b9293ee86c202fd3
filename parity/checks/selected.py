"""Selected cells against the right ones, for every check that has ids."""

import numpy as np

from ..backend import Backend
from ..compare import index_causes
from ..compare.comparison import Comparison, equal, verdict
from ..compare.margins import margins


def ids_comparison(
    backend: Backend, name: str, expected: np.ndarray, got: np.ndarray, scores: np.ndarray, steps: np.ndarray
) -> Comparison:
    """Ids against the right ones: in the exact arithmetic bytes, with the class of every difference; else as sets with
    multiplicity, where a tie that is broken otherwise is a fault only of a backend that declares ``lowest``."""
    if backend.arithmetic == "exact":
        found = equal(name, expected, got, ("row", "index"), "the order is total: there is one right answer")
        if found.passed or got.shape != expected.shape:
            return found
        classes = margins(expected, got, scores, steps)
        likely = index_causes.explained(index_causes.selection(expected, got, scores, steps))
        return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes, *likely)
    kind = backend.declaration.types.index_scores
    # Scores come in the type in which they are compared: the type itself makes ties, and no rounding is left.
    return held_as_sets(backend, name, expected, got, scores, steps, np.zeros_like(scores), f"scores are {kind}")


def held_as_sets(
    backend: Backend,
    name: str,
    expected: np.ndarray,
    got: np.ndarray,
    scores: np.ndarray,
    steps: np.ndarray,
    tolerance: np.ndarray,
    text: str,
) -> Comparison:
    """Cells [rows, cap] of a float backend against the right ones; ``tolerance`` [rows, blocks] is by how much each of
    ``scores`` may be off, and ``text`` says why."""
    cap = max(expected.shape[1], got.shape[1])
    right, given = (np.full((len(steps), cap), -1, np.int64) for _ in range(2))
    right[:, : expected.shape[1]], given[:, : got.shape[1]] = expected, got
    classes = margins(right, given, scores, steps, tolerance=tolerance)
    lowest = backend.declaration.ties == "lowest"
    bad = classes.wrong + (classes.tie if lowest else 0)
    reason = f"cells may differ only where the scores at the cut are within rounding ({text})"
    reason += ", and ties go to the lower index, as declared" if lowest else ", or equal: ties are declared to be any"
    return verdict(
        name,
        bad,
        0,
        reason,
        size=max(1, int(steps[:, 3].sum())),
        bad=bad,
        notes=(*classes.notes, *index_causes.explained(index_causes.selection(right, given, scores, steps)))
        if bad
        else (),
        figures={"tie": classes.tie, "rounding": classes.rounding, "wrong": classes.wrong},
    )
