"""The switches: environment variables, read once, each a branch in front of the standing path.

Source: design section 8. Names of the STRATA family keep the names under which their users know them.
"""

import os
from dataclasses import dataclass, fields
from functools import cache

ARITHMETICS = ("exact", "float")


@dataclass(frozen=True)
class Switches:
    """State of every switch. ``from_environment`` reads them; :func:`switches` does so once per process."""

    split_attn: bool = False
    batch_qsa_attn: bool = False
    topk_scan: bool = False
    scores_transposed: bool = False
    merge_active: bool = False
    arithmetic: str = "exact"

    @classmethod
    def from_environment(cls, environment=os.environ):
        """Switches of an environment. Raises ValueError naming the variable when a value is not one of those
        allowed."""
        values = {}
        for field in fields(cls):
            text = environment.get(VARIABLES[field.name], "")
            allowed = ARITHMETICS if field.name == "arithmetic" else ("0", "1")
            if text == "":
                continue
            if text not in allowed:
                raise ValueError(f"{VARIABLES[field.name]} = {text!r}: allowed are {' and '.join(allowed)}")
            values[field.name] = text if field.name == "arithmetic" else text == "1"
        return cls(**values)


VARIABLES = {
    "split_attn": "STRATA_QSA_SPLIT_ATTN",
    "batch_qsa_attn": "STRATA_BATCH_QSA_ATTN",
    "topk_scan": "STRATA_QSA_TOPK_SCAN",
    "scores_transposed": "STRATA_QSA_SCORES_TRANSPOSED",
    "merge_active": "STRATA_ATTN_MERGE_ACTIVE",
    "arithmetic": "QSA_ARITHMETIC",
}
"""Field of :class:`Switches` -> environment variable."""


@cache
def switches():
    """The process's switches, read from the environment at the first call."""
    return Switches.from_environment()
