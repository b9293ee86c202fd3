"""The list of all case strings, kept as a golden: ``golden/case-strings.txt``.

A case that disappears, or is made otherwise, is seen in the review. After a change of cases run
``python -m qsa.parity.case_list``.
"""

from pathlib import Path

from qsa.kernels.switches import ARITHMETICS

from . import suite

PATH = Path(__file__).parents[1] / "golden" / "case-strings.txt"


def lines() -> list[str]:
    """The case strings of every module in every schedule, each behind the arithmetics that have it."""
    arithmetics: dict[str, list[str]] = {}
    for arithmetic in ARITHMETICS:
        for case in suite.collect(suite.MODULES, arithmetic, full=True):
            arithmetics.setdefault(case.text, []).append(arithmetic)
    return [f"{'+'.join(found)} {text}" for text, found in arithmetics.items()]


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n", encoding="utf-8")
