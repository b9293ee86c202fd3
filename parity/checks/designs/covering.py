"""Cases by design: the few combinations in which every pair of values of any two parameters occurs.

Most faults of kernels show as soon as two circumstances meet (a schedule and an absent page, a number of rows and a
format), so pairs are what is covered. Source: pairwise testing (Cohen and others, "The AETG system", 1997), here
greedy and without chance, so the list never changes by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[str, Any, str, Any]
"""Two parameters, in the order of the design, and their values."""


def pairs_of(case: Mapping[str, Any], names: Sequence[str]) -> list[Pair]:
    """Every pair of values in ``case``."""
    return [(a, case[a], b, case[b]) for a, b in combinations(names, 2)]


def cover(
    parameters: Mapping[str, Sequence[Any]], allowed: Callable[[Mapping[str, Any]], bool] = lambda chosen: True
) -> list[dict[str, Any]]:
    """Cases in which every pair occurs that some case may have.

    parameters  name -> its values, the common one first
    allowed     whether some values, of a part of the parameters, may stand in one case

    Raises ValueError on a parameter without values.
    """
    for name, values in parameters.items():
        if not values:
            raise ValueError(f"{name}: has no values")
    names = list(parameters)
    open_pairs: dict[Pair, None] = {
        (a, x, b, y): None
        for a, b in combinations(names, 2)
        for x in parameters[a]
        for y in parameters[b]
        if allowed({a: x, b: y})
    }
    found: list[dict[str, Any]] = []
    while open_pairs:
        a, x, b, y = first = next(iter(open_pairs))
        case = _completed({a: x, b: y}, parameters, allowed, open_pairs)
        if case is None:
            # No case may have this pair.
            del open_pairs[first]
            continue
        case = {name: case[name] for name in names}
        for pair in pairs_of(case, names):
            open_pairs.pop(pair, None)
        found.append(case)
    return found


def _completed(
    chosen: dict[str, Any],
    parameters: Mapping[str, Sequence[Any]],
    allowed: Callable[[Mapping[str, Any]], bool],
    open_pairs: Mapping[Pair, None],
) -> dict[str, Any] | None:
    """``chosen`` with a value for every parameter, each the one that covers most open pairs; None where there is no
    allowed case."""
    order = list(parameters)
    left = [name for name in order if name not in chosen]
    if not left:
        return chosen
    name = left[0]

    def gain(value: Any) -> int:
        count = 0
        for other, given in chosen.items():
            one, two = ((name, value), (other, given))
            if order.index(other) < order.index(name):
                one, two = two, one
            count += (*one, *two) in open_pairs
        return count

    for value in sorted(parameters[name], key=gain, reverse=True):
        if allowed({**chosen, name: value}):
            case = _completed({**chosen, name: value}, parameters, allowed, open_pairs)
            if case is not None:
                return case
    return None
