"""The families of goldens: which recipe makes which inputs, and what the reference gives for them.

A family is a module with ``ALLOWED`` (parameter -> allowed values), ``make_inputs(recipe)``, ``produce(recipe,
compute)`` whose ``compute`` is the reference unless another is given, and ``grid()``, the recipes that are kept as
goldens. A kernel under test is checked by ``Store.check(name, partial(produce, compute={"attend": kernel}))``. A family
is called as its operation is; that of ``verify_batch`` is an object with several operations.
"""

from collections.abc import Mapping
from typing import Any

from .. import case
from ..recipe import Recipe, name_of
from ..record import Produced
from . import append_index, append_kv, attend, block_scores, captured, needle, score, select, text, verify_batch

FAMILIES = {
    "append_kv": append_kv,
    "append_index": append_index,
    "block_scores": block_scores,
    "select": select,
    "attend": attend,
    "verify_batch": verify_batch,
    "text": text,
    "score": score,
    "needle": needle,
    "captured": captured,
}


def produce(family: str, recipe: Recipe, compute: Mapping[str, Any] | None = None) -> Produced:
    """What ``recipe`` of ``family`` gives: a :class:`qsa.golden.record.Produced`.

    compute  family name -> function that takes the place of the reference, for the families that it names

    Raises CaseError, a ValueError, on an unknown family or a recipe that it does not allow.
    """
    if family not in FAMILIES:
        raise case.CaseError(f"family {family!r}: there are {', '.join(FAMILIES)}")
    module = FAMILIES[family]
    if compute and family in compute:
        return module.produce(recipe, compute[family])
    return module.produce(recipe)


def grid() -> dict[str, str]:
    """The goldens of this repository: name -> case string."""
    return {
        name_of(family, recipe): case.format(family, recipe)
        for family, module in FAMILIES.items()
        for recipe in module.grid()
    }
