"""Checks of single parts of the suite, by name, for ``prove/suite_mutants.py``: what no kernel can show."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.reference.geometry import REAL, step_records

from ... import report, suite, wrong_outputs
from ...backend import UnsupportedError
from ...checks import accuracy, attend_inputs, indexer, nll
from ...compare import input_changes
from ...compare.comparison import Comparison, equal, error, most, verdict
from ...compare.input_changes import ChangedInputError, Given
from ...compare.margins import margins
from ...contract import own_storage
from ...isolation import messages
from ..patching import Check, FoundError
from . import kernels, selections
from .sentinel import ATTEND, INDEXER, SPLIT


def _same(what: str, expected: Any, got: Any) -> None:
    if expected != got:
        raise FoundError(f"{what}: must be {expected}, is {got}")


def _raises(what: str, kind: type[Exception], call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except kind:
        return
    raise FoundError(f"{what}: is accepted")


def empty() -> None:
    """A comparison of nothing does not pass, and neither does a case without comparisons."""
    none = np.zeros((0, 3), np.float32)
    for comparison in (equal("", none, none), error("", none, none, 1.0, ""), verdict("", 0, 0, "")):
        _same("nothing compared", False, comparison.passed)
    check = accuracy.check
    accuracy.check = lambda *_: []
    try:
        result = suite.run_case(suite.parse(ATTEND), kernels.backend("float", attend=kernels.right))
    finally:
        accuracy.check = check
    _same("case without comparisons", ("failed", "nothing was compared"), (result.status, result.reason))


def bounds() -> None:
    """A bound is finite and not negative; a NaN among figures is the worst one."""
    for bad in (np.inf, np.nan, -1.0):
        _raises(f"bound {bad}", ValueError, lambda bad=bad: Comparison("", "error", 0, bad, ""))
        _raises(f"bound {bad}", ValueError, most, "", np.array([1.0]), np.array([bad]))
    _same("NaN among figures", True, bool(np.isnan(most("", np.array([0.5, np.nan, 3.0]), 1.0)[0])))
    figures = np.array([0.1, 3.0, 0.2]), np.array([0.1, 4.0, 0.1])
    _same("figure that uses most of its bound", (0.2, 0.1), most("", *figures))
    _same("measure at the bound", True, verdict("", 3, 3, "", size=1).passed)
    _same("measure above the bound", False, verdict("", 4, 3, "", size=1).passed)
    _same("NaN as a measure", False, verdict("", np.nan, 3, "", size=1).passed)


_PAIRS: tuple[tuple[Any, Any, bool], ...] = (
    (0.0, -0.0, False),
    (np.nan, -np.nan, True),
    (np.nan, 1.0, False),
    (1.0, np.nan, False),
    (np.inf, -np.inf, False),
    (1.0, np.nextafter(np.float32(1), np.float32(2)), False),
    (3, 3, True),
    (3, 4, False),
    (True, False, False),
)
"""Expected, got, whether they are equal in the exact arithmetic."""


def pairs() -> None:
    """Equality of single elements, dtypes and shapes."""
    for expected, got, alike in _PAIRS:
        dtype = np.float32 if isinstance(expected, float) else np.asarray(expected).dtype
        a, b = np.zeros((2, 3), dtype), np.zeros((2, 3), dtype)
        a[1, 2], b[1, 2] = expected, got
        _same(f"{expected} and {got}", alike, equal("", a, b).passed)
    ones = np.ones((2, 3), np.int32)
    for other in (ones.astype(np.int64), ones.astype(np.float32), ones.reshape(3, 2), ones[:1], ones[..., None]):
        _same(f"{ones.dtype} {ones.shape} and {other.dtype} {other.shape}", False, equal("", ones, other).passed)


def exit_codes() -> None:
    """The exit code is 0 only where something passed and nothing failed."""
    case = suite.parse(ATTEND)
    for statuses, code in (
        (["passed"], 0), (["passed", "unsupported"], 0), (["unsupported"], 1), ([], 1), (["passed", "failed"], 1)
    ):  # fmt: skip
        tally = suite.Tally([suite.Result(case, status, 0.0) for status in statuses])
        _same(f"exit code of {statuses}", code, tally.exit_code)
        _same("count", statuses.count("passed"), tally.count("passed"))
    good, bad = verdict("good", 1, 2, "", size=1), verdict("bad", 3, 2, "", size=1)
    _same("worst comparison", "bad", getattr(suite.worst_of([good, bad, verdict("", 0, 0, "", size=1)]), "name", None))


def reports() -> None:
    """What a report says of a failed, a passed and an unsupported case."""
    case = suite.parse(ATTEND)
    wrong = verdict("wrong", 3, 2, "a reason", size=5, bad=4)
    results = [
        suite.Result(case, "failed", 1.0, (verdict("good", 1, 2, "", size=1), wrong)),
        suite.Result(case, "passed", 1.0, (verdict("good", 1, 2, "", size=1),)),
        suite.Result(case, "unsupported", 1.0, reason="not offered"),
    ]
    tally = suite.Tally(results)
    found = report.as_json(tally, {})
    _same("counts", [1, 1, 1], [found[status] for status in suite.STATUSES])
    _same("statuses", ["failed", "passed", "unsupported"], [each["status"] for each in found["cases"]])
    _same("share of the worst comparison", 1.5, found["cases"][0]["share"])
    _same("comparisons", [True, False], [each["passed"] for each in found["cases"][0]["detail"]["comparisons"]])
    text = report.as_junit(tally, {}, None)
    for words in ('tests="3" failures="1"', 'skipped="1"', "<failure", "wrong: FAILED", "a reason", "not offered"):
        _same(f"{words} in JUnit", True, words in text)
    _same("failures in JUnit", 1, text.count("<failure"))


def likelihoods() -> None:
    """A mean difference of 0.8 and 1.2 times what a change of rounding may make of a text's NLL, in either sense."""
    rng = np.random.default_rng(2)
    standing, next_ids = rng.normal(0, 1, (64, 50)).astype(np.float32), rng.integers(0, 50, 64)
    rows = np.arange(64)
    # An improbable token: its logit moves its own probability alone.
    standing[rows, next_ids] = -12
    for share in (0.8, 1.2, -1.2):
        changed = standing.copy()
        changed[rows, next_ids] -= np.float32(share * 0.005)
        found = nll.difference("nll", standing, changed, next_ids)
        _same(f"{share} of the bound of the NLL", abs(share) < 1, found.passed)
        if abs(found.share - abs(share)) > 0.01:
            raise FoundError(f"share of the bound of the NLL: must be {abs(share)}, is {found.share:.4g}")


def classes() -> None:
    """Two selections of one row, by hand: what is a tie, rounding, wrong."""
    steps = step_records([18], "blocks", REAL)
    blocks, tail = steps[0, 2], np.arange(16, 19)
    scores = np.array([[5, 4, 3, 3, 0]], np.float32)
    _same("blocks", 4, int(blocks))

    def row(*chosen: int) -> np.ndarray:
        cells = (np.array(chosen)[:, None] * 4 + np.arange(4)).ravel()
        return np.concatenate([cells, tail, [-1]])[None].astype(np.int32)

    steps[0, 3] = 11
    for what, got, tolerance, expected in (
        ("the same", row(0, 2), 0.0, (0, 0, 0)),
        ("a tie", row(0, 3), 0.0, (8, 0, 0)),
        ("rounding", row(0, 1), 0.6, (0, 8, 0)),
        ("more than rounding", row(0, 1), 0.4, (0, 0, 8)),
        ("a tie beside a wrong block", row(3, 1), 0.0, (0, 0, 16)),
        ("another order", row(2, 0), 0.0, (0, 0, 1)),
    ):
        found = margins(row(0, 2), got, scores, steps, 4, np.full_like(scores, tolerance))
        _same(what, expected, (found.tie, found.rounding, found.wrong))
    # The strongest block that was left has its equal among those taken, and another one is wrong.
    found = margins(row(0, 2), row(1, 3), np.array([[3, 3, 2, 1, 0]], np.float32), steps, 4)
    _same("a tie that hides a wrong block", (0, 0, 16), (found.tie, found.rounding, found.wrong))
    for what, place, cell in (("behind the width", 11, 5), ("selected twice", 1, 0), ("cells are 0 to 18", 0, 99)):
        got = row(0, 2)
        got[0, place] = cell
        found = margins(row(0, 2), got, scores, steps, 4)
        _same(what, (True, True), (found.wrong > 0, what in "".join(found.notes)))


def rounding() -> None:
    """How far a float indexer's scores may be off: 64 roundings of the sum of |key x query|."""
    seen: list[np.ndarray] = []
    held = indexer.held_as_sets

    def keep(*arguments: Any) -> Comparison:
        seen.append(arguments[6] / np.maximum(arguments[4], 1e-30))
        return held(*arguments)

    indexer.held_as_sets = keep  # type: ignore[assignment]
    try:
        suite.run_case(suite.parse(INDEXER), kernels.backend("float", indexer=selections.indexer(0.0)))
    finally:
        indexer.held_as_sets = held
    # Of positive dot products alone the sum of |key x query| would be the score; with both signs it is a few times it.
    middle = float(np.median(seen[0])) / 2.0**-24 if seen else 0.0
    if not 64 * 5 <= middle <= 64 * 40:
        raise FoundError(f"tolerance of the indexer's scores: {middle:.4g} x 2^-24 of a score, the median")
    ratio = indexer.ROUNDING / 2.0**-24
    _same("roundings of a score", 64.0, ratio)


def inputs() -> None:
    """A changed input is named and put back, whole or by its hashes."""
    whole = input_changes.WHOLE
    for limit in (whole, 1 << 10):
        input_changes.WHOLE = limit
        try:
            x, many = np.arange(1 << 19, dtype=np.float32), [np.zeros(3), 7]
            given = Given("attend", {"x": x, "many": many, "count": 3})
            given.check()
            x[-1] += 1
            _same("changes", ["x"], list(given.changes()))
            _raises("a changed input", ChangedInputError, given.check)
            if limit == whole:
                _same("value that was put back", float((1 << 19) - 1), float(x[-1]))
            many[1] = 8
            _same("changes of a list", True, "many[1]" in given.changes())
        finally:
            input_changes.WHOLE = whole
    pool = SimpleNamespace(name="append_kv")
    k = np.ones(4)
    given = Given(pool.name, {"k": k})
    k[0] = 0
    _raises("k of append_kv", ChangedInputError, given.check)


def storage() -> None:
    """Own storage of another shape, and what own storage holds behind a failed call."""
    functions = kernels.own_storage(0.0)
    good = functions["read"]
    functions["read"] = lambda cache, positions: tuple(side[:1] for side in good(cache, positions))
    own = kernels.backend("float", **functions)
    k = np.ones((3, REAL.n_head_kv, REAL.head_dim), np.float32)
    _raises("K and V of fewer cells", ValueError, own_storage.store, own.kernel, k, k, np.arange(3), 4)


def unusual_values() -> None:
    """Values that a backend has not declared never reach it."""
    judged = kernels.backend("float", attend=kernels.right)
    w = attend_inputs.attend_inputs({"format": "int8", "context": 8, "tail": 1, "rows": 1, "seed": 1})
    for value in (np.nan, np.inf):
        q = w.q.copy()
        q[0, 0, 0] = value
        _raises(f"{value} in q", UnsupportedError, judged.attend, q, w.kv, w.ids, w.steps)


def answers() -> None:
    """What a child may send: no objects, and no more bytes than an array has."""
    _raises("an array of objects", TypeError, messages.dtype_of, "O")
    for shape in ([3], [5]):
        _raises(f"16 bytes as float32 {shape}", ValueError, _answered, shape)
    _same("16 bytes as float32 [4]", [4], list(_answered([4])[1][0].shape))


def _answered(shape: list[int]) -> Any:
    import socket

    import msgspec

    ours, theirs = socket.socketpair()
    with ours, theirs:
        header = messages.Header("result", arrays=[("<f4", shape)])
        messages.send(ours, msgspec.msgpack.encode(header), b"\0" * 16)
        return messages.read_answer(theirs)


def families() -> None:
    """Every allowed word of every parameter of every operation occurs in some case, of either arithmetic."""
    for name in wrong_outputs.MODULES:
        cases = [case.recipe for arithmetic in ("exact", "float") for case in suite.collect([name], arithmetic)]
        if not cases:
            raise FoundError(f"{name}: has no cases")
        for op, allowed in suite.MODULES[name].OPERATIONS.items() if name != "goldens" else ():
            own = [recipe for recipe in cases if recipe.get("op") == op]
            for parameter, values in allowed.items() if own else ():
                words = values if isinstance(values, tuple) else ()
                missing = {value for value in words if isinstance(value, str) and value != "own"}
                missing -= {recipe.get(parameter) for recipe in own}
                if (op, parameter) == ("unused", "scores"):
                    # An unused row selects nothing whatever its scores.
                    continue
                if missing:
                    raise FoundError(f"{name}: {op}: no case with {parameter} = {', '.join(map(str, sorted(missing)))}")
            if not own and op not in _OF_OWN_CALLS:
                raise FoundError(f"{name}: {op}: no case")
    golden = {case.recipe["family"] for case in suite.collect(["goldens"], "exact")}
    _same("families of goldens", {"append_index", "append_kv", "attend", "block_scores", "select"}, golden)


_OF_OWN_CALLS = ("gated", "sparse_attention")
"""Operations that only a backend with such a fused call has cases of."""


def survivors() -> None:
    """A case that passes whatever a kernel gives is named by the run over wrong outputs."""
    case, check = suite.parse(SPLIT), suite.MODULES["split"].check

    def passing(backend: Any, recipe: dict[str, Any]) -> list[Comparison]:
        check(backend, recipe)
        return [verdict("nothing", 0, 0, "", size=1)]

    module: Any = suite.MODULES["split"]
    module.check = passing
    try:
        found = wrong_outputs.survivors([case], "exact", "exact")
    finally:
        module.check = check
    # A changed input is seen whatever the module compares.
    _same("survivors", [(case.text, kind) for kind in wrong_outputs.KINDS if kind != "input"], found)
    _same("survivors of a real check", [], wrong_outputs.survivors([case], "exact", "exact"))


CHECKS: dict[str, Check] = {
    each.__name__: each
    for each in (
        empty,
        bounds,
        pairs,
        exit_codes,
        reports,
        likelihoods,
        classes,
        rounding,
        inputs,
        storage,
        unusual_values,
        answers,
        families,
        survivors,
    )
}
"""Name -> check of a part of the suite."""
