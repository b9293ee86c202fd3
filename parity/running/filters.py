"""Which of the cases run: filters over the parameters of their recipes.

A value is written as in a case string. Several values of one parameter are alternatives; all parameters must fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..suite import Case

OP = "op"
"""The parameter that every case has: its operation; of a golden it is the family."""


def parameters(case: Case) -> dict[str, str]:
    """Parameter -> value of a case, as its case string writes them, ``op`` among them."""
    written = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in case.recipe.items()}
    family = written.pop("family", None)
    return written if family is None else {OP: family, **written}


def wanted(ops: Iterable[str], formats: Iterable[str], pairs: Iterable[str]) -> dict[str, list[str]]:
    """Parameter -> allowed values, of the options ``--op``, ``--format`` and ``--where``.

    pairs  ``key=value`` each

    Raises ValueError on a pair of another form.
    """
    found: dict[str, list[str]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--where = {pair!r}: must be key=value, as a case string has them")
        found.setdefault(key, []).append(value)
    for key, values in ((OP, ops), ("format", formats)):
        found.setdefault(key, []).extend(values)
    return {key: values for key, values in found.items() if values}


def chosen(cases: Sequence[Case], filters: Mapping[str, Sequence[str]]) -> list[Case]:
    """Those of ``cases`` that have one of the values for each parameter of ``filters``.

    Raises ValueError, naming what there is, on a parameter or a value that no case has, or when no case has all.
    """
    known = [(case, parameters(case)) for case in cases]
    for key, values in filters.items():
        option = f"--{key}" if key in (OP, "format") else f"--where {key}"
        having = sorted({written[key] for _, written in known if key in written}, key=_order)
        if not having:
            names = sorted({name for _, written in known for name in written})
            raise ValueError(f"{option}: no case has the parameter {key!r}: there are {', '.join(names)}")
        for value in values:
            if value not in having:
                raise ValueError(f"{option} = {value!r}: no case has it: there are {', '.join(having)}")
    found = [case for case, written in known if all(written.get(key) in values for key, values in filters.items())]
    if not found:
        asked = ", ".join(f"{key} = {' or '.join(values)}" for key, values in filters.items())
        raise ValueError(f"{asked}: no case has all of these")
    return found


def _order(value: str) -> tuple[Any, ...]:
    """Numbers by their size, before words."""
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
