"""What four arms say: figures, changes and their verdicts, and whether two sides gave the same outputs.

Arms run in the order A B B A, so an even drift cancels. The *noise* of a row is the larger difference of the two arms
of one side. Four arms are too few for the gate's rank test: of the six ways to give two of four places to B one has B
in front, which is no evidence. So a change counts when it is above the floor and above twice the noise. If all four are
draws of one normal distribution, that happens in 7 % of rows, 3.5 % in each direction, where the floor is no hindrance;
the gate, which measures nine rounds, is held to 0.4 %. A row near its floor belongs to the gate.

This file measures nothing and reads no file.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..speed.verdict import AMBIGUOUS, FASTER, SAME, SLOWER, Floors
from .structs import Arm, ArmRun, Output, Row, SevenText, TextRun

ORDER = ("A", "B", "B", "A")
"""Sides of arms 1 to 4."""

NOISES = 2.0
"""A change counts when it is above so many times the noise."""


OTHERS = {"cuda": 0.5}
OTHERS_CPU = 0.1
"""Share of the processors that other processes may take while an arm is timed: on a CPU they take it from the kernels,
beside a GPU from a host that has more of them than it needs."""


class Figure(NamedTuple):
    """A figure of one arm. ``higher``: whether a larger one is better; ``timed``: whether it is a time or a rate, which
    other work changes, and not a count."""

    value: float
    higher: bool
    timed: bool = True


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _decoded(texts: Sequence[TextRun]) -> int:
    """Tokens that windows emitted: all but the one after each prompt."""
    return sum(max(0, len(text.tokens) - 1) for text in texts)


def figures(run: ArmRun) -> dict[str, Figure]:
    """Name -> :class:`Figure` of one arm, in the order of the table."""
    texts = run.decode_texts
    rounds, drafted = sum(text.rounds for text in texts), sum(text.drafted for text in texts)
    found = {
        "decode, tokens/s": Figure(_rate(_decoded(texts), run.decode), True),
        "ms per verify round": Figure(1000 * run.decode / run.windows if run.windows else 0.0, False),
        "device ms per verify round": Figure(1000 * run.device / run.windows if run.windows else 0.0, False),
        "tokens per round": Figure(_decoded(texts) / rounds if rounds else 0.0, True, False),
        "acceptance, %": Figure(100 * sum(text.accepted for text in texts) / drafted if drafted else 0.0, True, False),
    }
    for title, name in (("maths", "math"), ("code", "code"), ("short questions", "short"), ("long prompt", "long")):
        chosen = [text for text in texts if text.name.partition(" ")[0] == name]
        found[f"{title}, tokens/s"] = Figure(_rate(_decoded(chosen), sum(text.decode for text in chosen)), True)
    for tokens in dict.fromkeys(text.prompt for text in run.prompt_texts):
        times = [text.first for text in run.prompt_texts if text.prompt == tokens]
        found[f"first token of {tokens}, ms"] = Figure(1000 * sum(times) / len(times), False)
    return found | {"total, s": Figure(run.total, False)}


def disturbances(arms: Sequence[Arm], runs: Sequence[ArmRun]) -> list[str]:
    """Why times of ``runs`` cannot be judged: a clock that was lowered, other work on the processors."""
    found = sorted({f"the clock was lowered: {reason}" for run in runs for reason in run.throttled})
    backends = {arm.side: arm.backend for arm in arms}
    shares = [
        f"{100 * run.others:.0f} % (arm {number})"
        for number, (side, run) in enumerate(zip(ORDER, runs, strict=False), 1)
        if run.others is not None and run.others > OTHERS.get(backends[side], OTHERS_CPU)
    ]
    return [*found, f"other work took {', '.join(shares)} of the processors"] if shares else found


def rows(runs: Sequence[ArmRun], floors: Floors, disturbed: Sequence[str] = ()) -> list[Row]:
    """The speed table of four ``runs``, in the order of :data:`ORDER`.

    disturbed  of :func:`disturbances`: then no time has a verdict

    Raises ValueError when there are not four.
    """
    if len(runs) != len(ORDER):
        raise ValueError(f"runs: {len(runs)}: must be {len(ORDER)}")
    each, found = [figures(run) for run in runs], []
    for name, figure in each[0].items():
        values = [one[name].value for one in each]
        a, b, why = (values[0], values[3]), (values[1], values[2]), disturbed if figure.timed else ()
        found.append(judge(name, a, b, figure.higher, floors, why))
    return found


def judge(
    name: str,
    a: tuple[float, float],
    b: tuple[float, float],
    higher: bool,
    floors: Floors,
    disturbed: Sequence[str] = (),
) -> Row:
    """The :class:`Row` of a figure: ``a`` of arms 1 and 4, ``b`` of arms 2 and 3.

    higher     whether a larger figure is better
    disturbed  why no verdict can be had
    """
    if a == b and a[0] == a[1]:
        return Row(name, a, b, 0.0, 0.0, SAME, "equal")
    if min(*a, *b) <= 0:
        return Row(name, a, b, None, 0.0, "", "not compared: an arm has none")
    noise = math.expm1(max(abs(math.log(a[0] / a[1])), abs(math.log(b[0] / b[1]))))
    change = (b[0] + b[1]) / (a[0] + a[1]) - 1
    floor = floors.relative
    if "ms" in name.split():
        floor = floors.share(1000 * (a[0] + a[1]) / 2)
    size = abs(math.log1p(change))

    def found(verdict: str, reason: str) -> Row:
        return Row(name, a, b, change, noise, verdict, reason)

    if disturbed:
        return found(AMBIGUOUS, "; ".join(disturbed))
    if size <= math.log1p(floor):
        if noise > floor:
            return found(AMBIGUOUS, f"noise {_percent(noise)} is above the floor of {_percent(floor)}")
        return found(SAME, f"within the floor of {_percent(floor)}")
    if size <= NOISES * math.log1p(noise):
        return found(AMBIGUOUS, f"not above {NOISES:g} times the noise of {_percent(noise)}")
    better = (change > 0) == higher
    return found(FASTER if better else SLOWER, f"floor {_percent(floor)}, noise {_percent(noise)}")


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first token in which two texts differ, the length of the shorter one where it is the other's
    beginning; -1 where they are equal."""
    if list(a) == list(b):
        return -1
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def outputs(a: ArmRun, b: ArmRun) -> list[Output]:
    """The texts of both screens on two arms."""
    pairs = zip([*a.decode_texts, *a.prompt_texts], [*b.decode_texts, *b.prompt_texts], strict=True)
    return [Output(x.name, x.hash, y.hash, first_difference(x.tokens, y.tokens), len(x.tokens)) for x, y in pairs]


def seven_outputs(a: Sequence[SevenText], b: Sequence[SevenText]) -> list[Output]:
    """The seven computations on two sides, by tokens and the logits behind them."""
    found = []
    for x, y in zip(a, b, strict=True):
        first = first_difference(x.tokens, y.tokens)
        if first < 0 and x.logits != y.logits:
            first = len(x.tokens)
        found.append(Output(x.name, f"{x.hash} {x.logits}", f"{y.hash} {y.logits}", first, len(x.tokens)))
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
