"""Checking a recipe against the keys and values that its family allows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qsa.reference.geometry import step_records

from .case import CaseError

Recipe = Mapping[str, Any]
"""Parameter -> value: what a case string holds behind the name of its family."""

CONTEXTS = (1024, 16384, 65536, 1048576)
ROWS = (1, 4, 8)
TAILS = (0, 1, 2, 3)


def check(family: str, recipe: Recipe, allowed: Mapping[str, Sequence[Any]]) -> None:
    """Raises CaseError, a ValueError, unless ``recipe`` holds just the keys of ``allowed``, with values that it allows.

    allowed  key -> a tuple of values, or (for ``range``) the integers it holds. A key with None among its values may be
             missing
    """
    for key in recipe:
        if key not in allowed:
            raise CaseError(f"{family}: {key}: is no parameter; there are {', '.join(allowed)}")
    for key, values in allowed.items():
        if isinstance(values, tuple) and None in values:
            values = tuple(value for value in values if value is not None)
            if key not in recipe:
                continue
        if key not in recipe:
            raise CaseError(f"{family}: {key}: is missing")
        value = recipe[key]
        if isinstance(value, (bool, float)) or value not in values:
            shown = f"{values[0]} to {values[-1]}" if isinstance(values, range) else ", ".join(map(str, values))
            raise CaseError(f"{family}: {key} = {value!r}: allowed are {shown}")


def window(recipe: Recipe) -> np.ndarray:
    """Step records [rows, 4] int32 of a window whose last row sees ``context + tail`` cells, earlier rows one fewer
    each."""
    end = recipe["context"] + recipe["tail"]
    return step_records(np.arange(end - recipe["rows"], end), recipe["rule"])


def name_of(family: str, recipe: Recipe) -> str:
    """A golden's name from its recipe, without the seed: ``attend-64k-int8-4rows-tail3-blocks-page4``."""
    if "context" not in recipe:
        return "-".join([family, *map(str, recipe.values())]).lower()
    words = {"slots": "{}slots", "rows": "{}rows", "tail": "tail{}", "page": "page{}", "queries": "{}-queries"}
    parts = [words.get(key, "{}").format(value) for key, value in recipe.items() if key not in ("context", "seed")]
    cells = recipe["context"]
    large = ((2**20, "m"), (2**10, "k"))
    size = next((f"{cells // unit}{letter}" for unit, letter in large if cells and cells % unit == 0), f"{cells}cells")
    return "-".join([family, size, *parts]).lower()
