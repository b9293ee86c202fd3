"""``goldens``: every golden recomputed by the backend under test and compared by hash with the stored record.

The case string of a golden is its recipe. On a mismatch the record names the blocks; the reference is then run on the
same recipe, so that the first wrong element can be shown too.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np

from qsa.golden import case
from qsa.golden.families import FAMILIES, grid, produce
from qsa.golden.record import GoldenError
from qsa.golden.store import Store

from .backend import UnsupportedError
from .compare import equal, verdict
from .localise import explain
from .margins import margins

AXES = {"attend": ("row", "head", "dim"), "select": ("row", "place")}


def cases(arithmetic):
    """(case string, recipe) of every golden of the grid and of the folder, in the order of their names."""
    store = Store()
    known = grid() | {name: store.load(name)["case"] for name in store.names()}
    for name in sorted(known):
        family, recipe = case.parse(known[name])
        yield known[name], {"family": family, **recipe}


def check(backend, recipe):
    """The comparisons of one golden, or of a recipe of which there is no golden with the reference."""
    family = recipe["family"]
    recipe = {key: value for key, value in recipe.items() if key != "family"}
    if family == "attend" and backend.arithmetic != "exact":
        raise UnsupportedError("goldens: attention is stored in the exact arithmetic")
    text = case.format(family, recipe)
    store = Store()
    name = next((name for name in store.names() if store.load(name)["case"] == text), None)
    kept = {}

    def compute(**given):
        kept["got"] = np.array(getattr(backend, family)(**given))
        return kept["got"]

    if name is None:
        if text in grid().values():
            raise GoldenError(f"{text}: there is no record: `qsa golden regen` and `accept`")
        compute(**FAMILIES[family].make_inputs(recipe))
        return [_in_full(backend, family, recipe, kept["got"])]
    lines = store.check(name, partial(produce, compute={family: compute}))
    size = kept["got"].size
    found = verdict(f"golden {name}", len(lines), 0, "a hash of the exact arithmetic", size=size, notes=lines)
    return [found] if found.passed else [found, _in_full(backend, family, recipe, kept["got"])]


def _in_full(backend, family, recipe, got):
    """The result against the reference's own, element by element."""
    given = FAMILIES[family].make_inputs(recipe)
    expected = next(iter(FAMILIES[family].produce(recipe).outputs.values()))
    found = equal(f"{family}: against the reference", expected, got, AXES[family])
    if found.passed or got.shape != expected.shape:
        return found
    if family == "attend":
        return found.noted(*explain(backend, SimpleNamespace(**given), expected, got))
    classes = margins(expected, got, given["scores"], given["steps"])
    return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes)
