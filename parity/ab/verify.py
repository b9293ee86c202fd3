"""The checks under the speed table: parity of both sides, the seven computations, NLL on minus off, needles, and the
texts of the screens. Rules of the change proposals; what is exact must be equal."""

from collections.abc import Mapping, Sequence

import numpy as np

from qsa.golden.families import text

from ..checks import nll
from . import judge
from .structs import Arm, ArmRun, Check, Checks, Output, Parity

SIDES = ("A", "B")


def check(name: str, rule: str, cells: Sequence[str], right: Sequence[bool], detail: Sequence[str] = ()) -> Check:
    """A :class:`Check` with a rule; ``cells``: what A and B gave, ``right``: whether they kept it."""
    wrong = [side for side, kept in zip(SIDES, right, strict=True) if not kept]
    a, b = cells
    return Check(name, rule, a, b, "failed" if wrong else "passed", wrong, list(detail))


def parity(a: Parity, b: Parity) -> Check:
    """No case fails, and one passes."""
    counts = [f"{one.passed} passed, {one.failed} failed, {one.unsupported} unsupported" for one in (a, b)]
    detail = [f"{side}: {case}" for side, one in zip(SIDES, (a, b), strict=True) for case in one.failures]
    return check("parity", "no case fails", counts, [one.passed > 0 and not one.failed for one in (a, b)], detail)


def comparable(arms: Sequence[Arm], arithmetics: Sequence[str]) -> bool:
    """Whether the two sides must give the same bytes: both exact, over the same codes."""
    return set(arithmetics) == {"exact"} and arms[0].kv_format == arms[1].kv_format


def seven(a: Checks, b: Checks, equal: bool) -> list[Check]:
    """Each side against the goldens, where there are some for its setting, and the sides against each other; ``equal``:
    whether they must be."""
    found = []
    cells, right, detail = [], [], []
    for side, one in zip(SIDES, (a, b), strict=True):
        golden = [each.golden for each in one.seven]
        if None in golden:
            cells.append("no golden for this setting")
            right.append(True)
        else:
            cells.append(f"{golden.count('')} of {len(golden)} equal")
            right.append(not any(golden))
            detail += [f"{side}: {each.name}: {each.golden}" for each in one.seven if each.golden]
    if any(each.golden is not None for one in (a, b) for each in one.seven):
        found.append(check("seven computations", "equal to the goldens", cells, right, detail))
    pairs = judge.seven_outputs(a.seven, b.seven)
    return [*found, between("seven, A and B", pairs, equal)]


def between(name: str, pairs: Sequence[Output], equal: bool) -> Check:
    """Texts of A and B: equal hashes, or where each parts. Only where they must be equal is there a rule, and B broke
    it: B is held to A."""
    same = sum(one.first < 0 for one in pairs)
    said = f"{same} of {len(pairs)} hashes equal"
    detail = [f"{one.name}: {parts(one)}" for one in pairs if one.first >= 0]
    if not equal:
        return Check(name, "none: rounding or drafts differ", "", said, "", [], detail)
    return check(name, "equal hashes", ("", said), [True, same == len(pairs)], detail)


def parts(one: Output) -> str:
    """Where two texts part, in words."""
    if one.first < 0:
        return "equal"
    if one.first == one.tokens:
        return "equal tokens, other logits behind them"
    return f"first differing token: {one.first}"


def scores(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], equal: bool) -> list[Check]:
    """NLL of B minus that of A on each held-out text; logits float32 [positions, vocab] by the text's name."""
    found = []
    for name in a:
        next_ids = text.held_out(name)[1 : len(a[name]) + 1]
        held = nll.difference(name, a[name], b[name], next_ids)
        figures = held.figures
        mean, error = figures["mean"], figures["standard error"]
        said = f"{mean:+.5f} ± {error:.5f}, top-1 agreement {100 * figures['top-1 agreement']:.2f} %"
        same = a[name].tobytes() == b[name].tobytes()
        if same:
            said = "0, equal logits"
        right = held.passed and (same or not equal)
        rule = f"B minus A below {nll.BOUND:g} nats" + (", equal logits" if equal else "")
        title = f"NLL of {name}, {len(a[name])} tokens"
        found.append(
            check(title, rule, (f"{figures['nll']:.4f} nats", said), (True, right), () if same else held.notes)
        )
    return found


def needles(a: Checks, b: Checks) -> Check:
    """Every needle is found."""
    counts = [f"{sum(one.needles.values())} of {len(one.needles)}" for one in (a, b)]
    detail = [
        f"{side}: {name} not found"
        for side, one in zip(SIDES, (a, b), strict=True)
        for name, found in one.needles.items()
        if not found
    ]
    return check("needles", "all are found", counts, [all(one.needles.values()) for one in (a, b)], detail)


def repeated(runs: Sequence[ArmRun]) -> Check:
    """The two processes of each side give the same texts. In the exact arithmetic that is a rule."""
    cells, right, detail = [], [], []
    for side, first, second in (("A", runs[0], runs[3]), ("B", runs[1], runs[2])):
        pairs = judge.outputs(first, second)
        cells.append(f"{sum(one.first < 0 for one in pairs)} of {len(pairs)} hashes equal")
        differ = [one for one in pairs if one.first >= 0]
        right.append(not differ or first.arithmetic != "exact")
        detail += [f"{side}: {one.name}: {parts(one)}" for one in differ]
    return check("screens, arm against arm of a side", "equal hashes, where exact", cells, right, detail)


def screens(arms: Sequence[Arm], runs: Sequence[ArmRun]) -> Check:
    """The screens' texts of A and B. Under rejection sampling they follow the drafts too."""
    equal = comparable(arms, [run.arithmetic for run in runs])
    rejection = {arm.acceptance for arm in arms} == {"rejection"}
    drafts = {(arm.spec, arm.spec_min_p, arm.slots, arm.groups) for arm in arms}
    mixed = len({arm.acceptance for arm in arms}) > 1 or (rejection and len(drafts) > 1)
    return between("screens, A and B", judge.outputs(runs[0], runs[1]), equal and not mixed)
