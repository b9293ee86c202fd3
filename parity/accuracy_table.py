"""The table of ``docs/accuracy.md``: derived bounds beside measured errors for every kind of attention input.

    python -m qsa.parity.accuracy_table

A line is the case of ``accuracy`` with that kind and format, and of its heads the one that uses most of its bound.
"""

from collections.abc import Iterator

import numpy as np

from qsa.reference.exact import attend

from .checks import accuracy
from .checks import attend_inputs as data
from .compare.ceiling import exact_ceiling
from .compare.comparison import relative_error
from .compare.twin import FACTOR, attention, slack

HEAD = "| inputs | format | cells | measured | plain float32 | detector | ceiling |\n|---|---|---|---|---|---|---|"


def rows() -> Iterator[str]:
    """The lines of the table, in Markdown."""
    yield HEAD
    for recipe in accuracy.cases("exact"):
        if recipe["op"] != "attend" or (recipe["scores"] == "ordinary" and recipe["context"] != 16384):
            continue
        w = data.attend_inputs(recipe)
        truth = data.truth(w)
        errors = relative_error(truth, attend(w.q, w.kv, w.ids, w.steps))
        plain = relative_error(truth, attention(w, data.FLOAT32))
        detector = FACTOR * plain.max(axis=1, keepdims=True) + slack("float32")
        share = errors / detector
        row, at = (int(x) for x in np.unravel_index(int(share.argmax()), share.shape))
        ceiling = exact_ceiling(w, truth, share.argmax(axis=1))[row]
        numbers = (errors[row, at], plain[row].max(), detector[row, 0], ceiling)
        text = " | ".join(f"{number:.1e}" for number in numbers)
        yield f"| {recipe['scores']} | {recipe['format']} | {int(w.steps[row, 3])} | {text} |"


if __name__ == "__main__":
    print("\n".join(rows()))
