"""``verify-batch``: batch windows over several slots, as verification of drafts runs them.

``window``: the scores, selected cells and attention of a window of slots x rows, against hashes made by the reference
(15 windows, so 45 hashes under each rule), the reference itself, calls of one row each, and the step kernel.
``scores``: 1 to 8 rows of one slot against one call per row. ``draft``: the draft layer's call, one row over the last
32,768 cells given as ids, against the step kernel and the reference.

Every case runs in three passes: ``standing``; ``switches``, with the three kernel switches set; ``schedules``, in every
schedule that the backend offers. The operations get the reference's own scores and ids, so that a failing one stands
alone. In the float arithmetic attention is held to the standing path's own bits, which a switch may not change, and the
standing path to float64.
"""

from functools import cache, lru_cache
from types import SimpleNamespace

import numpy as np

from qsa.golden import case, inputs
from qsa.golden import verify_batch as family
from qsa.golden.attend import paged
from qsa.golden.block_scores import seen
from qsa.golden.families import grid
from qsa.golden.record import Produced, differences, make
from qsa.golden.store import Store
from qsa.kernels.ops import MAX_SPLITS
from qsa.kernels.ops import OPERATIONS as TABLE
from qsa.kernels.switches import override
from qsa.reference import exact
from qsa.reference.exact import CONTRACT
from qsa.reference.geometry import REAL, RULES, step_records

from . import data
from .backend import UnsupportedError
from .compare import equal, error, verdict
from .localise import explain
from .margins import margins
from .window_operations import Operations

PASSES = ("standing", "switches", "schedules")

KERNEL_SWITCHES = ("topk_scan", "scores_transposed", "merge_active")

DRAFT_CELLS = 32768
"""Cells of the draft layer's window: 512 chunks of 64."""

OPERATIONS = {
    "window": {"pass": PASSES, **family.ALLOWED},
    "scores": {"pass": PASSES, "context": family.ALLOWED["context"], "seed": family.ALLOWED["seed"]},
    "draft": {"pass": PASSES, "context": family.ALLOWED["context"], "seed": family.ALLOWED["seed"]},
}

OUTPUTS = {"scores": "block_scores", "ids": "select", "attention": "attend"}
"""Output of a window -> operation that makes it."""

AXES = {"scores": ("row", "block"), "ids": ("row", "place"), "attention": ("row", "head", "dim")}


def cases(arithmetic):
    """(case string, recipe) of every case: a window's passes one after the other, as they share its inputs."""
    for context in family.CONTEXTS:
        for slots, rows in family.WINDOWS:
            for rule in RULES:
                for one in PASSES:
                    yield _case("window", one, slots=slots, rows=rows, context=context, rule=rule, seed=7)
        for op in ("scores", "draft"):
            for one in PASSES:
                yield _case(op, one, context=context, seed=7)


def _case(op, one, **recipe):
    recipe = {"op": op, "pass": one, **recipe}
    return case.format("verify_batch", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    found, refused = {"window": _window, "scores": _scores, "draft": _draft}[recipe["op"]](backend, recipe)
    if not found:
        raise UnsupportedError(refused[0] if refused else "window: the backend has none of its operations")
    return [found[0].noted(*(f"not offered: {text}" for text in refused)), *found[1:]]


def _switched(recipe):
    """The three kernel switches, set or not as the pass has them, whatever the environment says."""
    return override(**dict.fromkeys(KERNEL_SWITCHES, recipe["pass"] == "switches"))


# Windows


@lru_cache(maxsize=1)
def _prepared(slots, rows, context, rule, seed):
    """(Window, its outputs by the reference, lines about a golden that the reference does not give)."""
    recipe = {"slots": slots, "rows": rows, "context": context, "rule": rule, "seed": seed}
    w = family.make_inputs(recipe)
    right = {"scores": family.batch_scores(exact, w.q_idx, w.indexes, w.steps, w.slots), "ids": w.ids}
    right["attention"] = exact.attend(w.q, w.kvs, w.ids, w.steps, w.slots)
    name = _golden(recipe)
    lines = Store().check(name, lambda *_: Produced(family.input_arrays(w), right, family.AXES)) if name else []
    return w, right, lines


@cache
def _goldens():
    return {text: name for name, text in grid().items()}


def _golden(recipe):
    """Name of the golden of a window's recipe, None when there is none."""
    recipe = {key: value for key, value in recipe.items() if key in family.ALLOWED}
    return _goldens().get(case.format("verify_batch", recipe))


def _hashed(recipe, got):
    """A verdict for each output: its hash against the golden's."""
    name = _golden(recipe)
    if name is None:
        return []
    record = Store().load(name)
    fresh = make(name, record["case"], CONTRACT, Produced({}, got, family.AXES))
    found = []
    for key in got:
        lines = differences(*({**one, "inputs": {}, "outputs": {key: one["outputs"][key]}} for one in (record, fresh)))
        reason = "a hash made by the reference has one right value"
        found.append(verdict(f"golden {name}: {key}", len(lines), 0, reason, size=got[key].size, notes=lines))
    return found


def _asked(recipe):
    return [recipe[key] for key in ("slots", "rows", "context", "rule", "seed")]


def _window(backend, recipe):
    w, right, lines = _prepared(*_asked(recipe))
    if lines:
        reason, size = "the golden was made by it", len(lines)
        return [verdict("golden: the reference's own", size, 0, reason, size=size, notes=lines)], []
    run = Operations(backend, w)
    offered = [name for name in OUTPUTS if backend.has(OUTPUTS[name])]
    right, found = {name: right[name] for name in offered}, []
    if backend.arithmetic == "float" and "attention" in right:
        with _switched({"pass": "standing"}):
            right["attention"] = run.attention()
        found = [_against_float64("attention", right["attention"], *_window_float64(*_asked(recipe)))]
    with _switched(recipe):
        if recipe["pass"] == "schedules":
            scheduled, refused = _scheduled(backend, w, right, run)
            return scheduled + found, refused
        got = {name: getattr(run, name)() for name in offered}
        found = [_held(backend, w, name, name, right[name], got[name]) for name in offered] + found
        stored = {name: got[name] for name in offered if name != "attention" or backend.arithmetic == "exact"}
        found += _hashed(recipe, stored)
        for name in offered if recipe["pass"] == "standing" else ():
            schedule = "step" if name == "attention" else None
            label = f"{name}: one call per row against the batch"
            try:
                rows = getattr(run, name)(schedule, alone=True)
            except UnsupportedError as unsupported:
                rows = getattr(run, name)(alone=True)
                label += f" ({unsupported})"
            found.append(_held(backend, w, label, name, got[name], rows))
    return found, []


def _scheduled(backend, w, right, run):
    """(comparisons, refusals) of every output in every schedule."""
    found, refused = [], []
    for name, expected in right.items():
        for schedule in TABLE[OUTPUTS[name]].schedules:
            if (backend.arithmetic, schedule) == ("float", "split"):
                # Another order of additions: the module `split` holds it to its bound.
                continue
            try:
                got = getattr(run, name)(schedule)
            except UnsupportedError as unsupported:
                refused.append(str(unsupported))
                continue
            found.append(_held(backend, w, f"{name}: {schedule}", name, expected, got))
    return found, refused


def _held(backend, w, label, name, expected, got):
    """Equal bytes of one output of a window, and what a difference looks like."""
    found = equal(label, expected, got, AXES[name], "every form and schedule has the bits of the others")
    if found.passed or got.shape != expected.shape:
        return found
    if name == "ids":
        classes = margins(expected, got, w.scores, w.steps)
        return found.noted(f"cells: {classes.tie} tie, {classes.wrong} wrong", *classes.notes)
    if name == "attention" and backend.arithmetic == "exact":
        slot = w.slots[found.first.coordinate[0]]
        mine = w.slots == slot
        explained = explain(backend, _of_slot(w, slot), expected[mine], got[mine])
        return found.noted(f"slot {slot}, its rows from 0:", *explained)
    return found


def _of_slot(w, slot):
    """``q``, ``kv``, ``ids`` and ``steps`` of the rows of one slot."""
    mine = w.slots == slot
    return SimpleNamespace(q=w.q[mine], kv=w.kvs[slot], ids=w.ids[mine], steps=w.steps[mine])


def _float64(windows):
    """(truth float64 [rows, heads, dims], bounds [rows, 1], their reason) of windows that stand one after the other."""
    truths = [data.truth(w) for w in windows]
    bounds = [data.float_bound(w, truth) for w, truth in zip(windows, truths, strict=True)]
    return np.concatenate(truths), np.concatenate([bound for bound, _ in bounds]), bounds[0][1]


@lru_cache(maxsize=1)
def _window_float64(*asked):
    """:func:`_float64` of a window, slot by slot, which its passes share."""
    w = _prepared(*asked)[0]
    return _float64([_of_slot(w, slot) for slot in range(len(w.kvs))])


@lru_cache(maxsize=1)
def _draft_float64(context, seed):
    """:func:`_float64` of a draft call, which its passes share."""
    *given, _ = _draft_inputs(context, seed)
    return _float64([SimpleNamespace(**dict(zip(("q", "kv", "ids", "steps"), given, strict=True)))])


def _against_float64(name, standing, truth, bound, reason):
    return error(f"{name}: standing path against float64", truth, standing, bound, reason)


# Scores of 1 to 8 rows


@lru_cache(maxsize=1)
def _rows(context, seed):
    """(q_idx [8, 4, 128], Index, steps [8, 4], scores by the reference) of the last 8 rows of one slot."""
    index = family.index_of(family.slot_seed(seed, 0), context)
    q_idx = inputs.bell(seed, "verify_batch.rows", family.MAX_ROWS, REAL.idx_heads * REAL.idx_dim)
    q_idx = q_idx.reshape(-1, REAL.idx_heads, REAL.idx_dim)
    steps = step_records(np.arange(context - family.MAX_ROWS, context))
    return q_idx, index, steps, seen(exact.block_scores(q_idx, index, steps), steps)


def _scores(backend, recipe):
    q_idx, index, steps, right = _rows(recipe["context"], recipe["seed"])
    schedules = TABLE["block_scores"].schedules if recipe["pass"] == "schedules" else (None,)
    found, refused = [], []

    def call(rows, schedule):
        return seen(backend.block_scores(q_idx[rows], index, steps[rows], schedule=schedule), steps[rows])

    with _switched(recipe):
        single = np.concatenate([call(slice(row, row + 1), None) for row in range(len(q_idx))])
        for schedule in schedules:
            for rows in range(1, len(q_idx) + 1):
                label = f"scores: {rows} rows{f', {schedule}' if schedule else ''} against one call per row"
                try:
                    got = call(slice(rows), schedule)
                except UnsupportedError as unsupported:
                    refused.append(f"{rows} rows: {unsupported}")
                    continue
                found.append(equal(label, single[:rows], got, AXES["scores"]))
    return found and [equal("scores: one call per row", right, single, AXES["scores"]), *found], refused


# The draft call


@lru_cache(maxsize=1)
def _draft_inputs(context, seed):
    """(q [1, 24, 256], PagedKV, ids [1, n], steps [1, 4], attention by the reference): one row over its last cells."""
    ids = np.arange(max(0, context - DRAFT_CELLS), context, dtype=np.int32)[None]
    kv = paged({"format": "int8", "page": 4, "seed": seed}, ids[0].astype(np.int64), context)
    steps = step_records([context - 1])
    steps[:, 3] = ids.shape[1]
    q = inputs.bell(seed, "verify_batch.draft", 1, REAL.n_head * REAL.head_dim, 2.0)
    q = q.reshape(1, REAL.n_head, REAL.head_dim)
    return q, kv, ids, steps, exact.attend(q, kv, ids, steps)


def _draft(backend, recipe):
    *given, right = _draft_inputs(recipe["context"], recipe["seed"])
    with _switched({"pass": "standing"}):
        standing = backend.attend(*given)
    if backend.arithmetic == "float":
        right = standing
    found, refused = [], []
    schedules = TABLE["attend"].schedules if recipe["pass"] == "schedules" else ("batch", "step")
    for schedule in schedules:
        if (backend.arithmetic, schedule) == ("float", "split"):
            # Another order of additions: the module `split` holds it to its bound.
            continue
        keywords = {"splits": MAX_SPLITS} if schedule == "split" else {}
        try:
            with _switched(recipe):
                got = backend.attend(*given, schedule=schedule, **keywords)
        except UnsupportedError as unsupported:
            refused.append(str(unsupported))
            continue
        found.append(equal(f"draft: {schedule} against the reference", right, got))
        if not found[-1].passed and backend.arithmetic == "exact":
            own = SimpleNamespace(**dict(zip(("q", "kv", "ids", "steps"), given, strict=True)))
            found[-1] = found[-1].noted(*explain(backend, own, right, got))
    if backend.arithmetic == "float":
        found.append(_against_float64("draft", standing, *_draft_float64(recipe["context"], recipe["seed"])))
    return found, refused
