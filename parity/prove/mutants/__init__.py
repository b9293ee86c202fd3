"""The built-in wrong kernels; importing this package enters all of them into the catalogue."""

from ..mutant import CATALOGUE
from . import (
    appends,
    attention,
    attention_arithmetic,
    attention_state,
    coded_appends,
    coded_dots,
    coded_scores,
    kept,
    relations,
    scores,
    selection,
    shared_rows,
)

__all__ = [
    "CATALOGUE",
    "appends",
    "attention",
    "attention_arithmetic",
    "attention_state",
    "coded_appends",
    "coded_dots",
    "coded_scores",
    "kept",
    "relations",
    "scores",
    "selection",
    "shared_rows",
]
