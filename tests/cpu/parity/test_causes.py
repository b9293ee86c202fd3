"""Place and cause of wrong attention: every cause is named for a kernel that has it, exact and float.

One file: both tables of mistakes are made of the same small kernels, and their causes are counted together.
"""

import copy
import sys
import types
from itertools import pairwise

import numpy as np
import pytest

from qsa.parity.backend import Backend
from qsa.parity.compare.localise import explain
from qsa.parity.contract import UnsupportedError, declared
from qsa.parity.contract.number_types import rounded
from qsa.parity.isolation import RemoteKernel
from qsa.reference import exact
from qsa.reference.append_kv import append_kv
from qsa.reference.attend import attend as attend64
from qsa.reference.attend import selected_cells
from qsa.reference.formats import rotate
from qsa.reference.geometry import step_records
from qsa.reference.kv import PagedKV, read_kv
from support.float_kernel import FloatKernel, Staged
from support.mutants import run

F = np.float32
LOG2_E = float(np.log2(np.e))


def softmax(s, v):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def plain(q, k, v):
    return softmax(k @ q / 16, v)


def rounding(**types_):
    """A head that rounds its query, its weights or its output."""

    def head(q, k, v):
        q = rounded(q, types_.get("query", "float32"))
        s = k @ q / 16
        p = np.exp(s - s.max())
        out = rounded(p, types_.get("weights", "float32")) @ v / p.sum()
        return rounded(out, types_.get("output", "float32"))

    return head


def unrescaled(parts, which):
    def head(q, k, v):
        s = k @ q / 16
        cuts = np.linspace(0, len(s), parts + 1).astype(int)
        total, mass = 0, 0
        for number, (a, b) in enumerate(pairwise(cuts)):
            factor = 1 if which in (None, number) else np.exp(s[a:b].max() - s.max())
            p = np.exp(s[a:b] - s[a:b].max()) * factor
            total, mass = total + p @ v[a:b], mass + p.sum()
        return total / mass

    return head


def without(select):
    """A head over the cells that ``select`` gives as indices of the selection."""

    def head(q, k, v):
        at = select(len(k))
        return plain(q, k[at], v[at])

    return head


def scaled_dims(q, k, v):
    out = plain(q, k, v)
    out[64:128] *= 1.5
    return out


def one_cell(times):
    def head(q, k, v):
        s = k @ q / 16
        p = np.exp(s - s.max())
        p[5] *= times
        return p @ v / p.sum()

    return head


def k_without_group(q, k, v):
    q = q.copy()
    q[128:192] = 0
    return plain(q, k, v)


HEADS = {
    "the last selected cell left out": without(lambda n: np.arange(n - 1)),
    "the first selected cell left out": without(lambda n: np.arange(1, n)),
    "left out (part 2 of 3 parts)": without(lambda n: np.arange(n * 2 // 3)),
    "left out (part 1 of tiles of 64)": without(lambda n: np.delete(np.arange(n), np.arange(64, 128))),
    "cell 5 left out": without(lambda n: np.delete(np.arange(n), 5)),
    "cell 5 counted twice": without(lambda n: np.append(np.arange(n), 5)),
    "counted twice (part 2 of tiles of 64)": without(lambda n: np.append(np.arange(n), np.arange(128, 192))),
    "a wrong weight of one cell, 5 (1.5 times": one_cell(1.5),
    "scores without 1/sqrt(head_dim)": lambda q, k, v: plain(q * 16, k, v),
    "1/sqrt(head_dim) applied twice": lambda q, k, v: plain(q / 16, k, v),
    "scores in log2 units taken for natural": lambda q, k, v: plain(q * F(LOG2_E), k, v),
    "natural scores taken for log2 units": lambda q, k, v: plain(q / F(LOG2_E), k, v),
    "scores of the opposite sign": lambda q, k, v: plain(-q, k, v),
    "a plain mean of V": lambda q, k, v: plain(0 * q, k, v),
    "not divided by the sum of the weights": lambda q, k, v: np.exp(k @ q / 16 - (k @ q / 16).max()) @ v,
    "the best cell alone": lambda q, k, v: v[np.argmax(k @ q)],
    "weights that include 1 for no cell": lambda q, k, v: np.exp(k @ q / 16) @ v / (1 + np.exp(k @ q / 16).sum()),
    "K and V exchanged": lambda q, k, v: plain(q, v, k),
    "V of the next selected cell": lambda q, k, v: plain(q, k, np.roll(v, -1, axis=0)),
    "V of the previous selected cell": lambda q, k, v: plain(q, k, np.roll(v, 1, axis=0)),
    "group 2 of K left out of the scores": k_without_group,
    "no part rescaled to the common maximum (3 parts)": unrescaled(3, None),
    "part 1 not rescaled to the common maximum (4 parts)": unrescaled(4, 1),
    "the query rounded to bf16": rounding(query="bf16"),
    "weights rounded to bf16": rounding(weights="bf16"),
    "weights rounded to fp8_e4m3": rounding(weights="fp8_e4m3"),
    "the output rounded to bf16": rounding(output="bf16"),
    "the output rounded to fp16": rounding(output="fp16"),
    "the query times log2(e)/sqrt(head_dim) rounded to bf16": lambda q, k, v: plain(
        rounded(q * F(LOG2_E / 16), "bf16") / F(LOG2_E / 16), k, v
    ),
    "K rounded to bf16": lambda q, k, v: plain(q, rounded(k, "bf16"), v),
    "V rounded to bf16": lambda q, k, v: plain(q, k, rounded(v, "bf16")),
    "the opposite sign": lambda q, k, v: -plain(q, k, v),
    "a factor of 1.25 on the output": lambda q, k, v: plain(q, k, v) * F(1.25),
    "a factor of 1.5 on value group 1": scaled_dims,
    "NaN throughout": lambda q, k, v: plain(q, k, v) * np.nan,
    "zeros: nothing was written": lambda q, k, v: plain(q, k, v) * 0,
    "the filling of the buffer": lambda q, k, v: np.full(256, -(2.0**93)),
    "the output rotated though V is not": lambda q, k, v: rotate(plain(q, k, v)),
    "off by rounding alone": lambda q, k, v: plain(q, k, v) * (1 + np.linspace(-4e-5, 5e-5, 256)),
}
"""Words of the report -> one head of a kernel, q [dim], k and v [n, dim], with the mistake."""


def of_heads(head):
    """attend(q [heads, dim], k, v [n, kv heads, dim]) of one row by a function of one head."""

    def row(q, k, v):
        return np.stack([head(q[h], k[:, h // 12], v[:, h // 12]) for h in range(len(q))])

    return row


class Mutant(FloatKernel):
    """A float kernel with own storage whose rows are made by ``row``."""

    def __init__(self, row):
        self.row = row

    def attend(self, q, kv, ids, steps):
        rows = []
        for number, width in enumerate(steps[:, 3]):
            k, v = kv[:, ids[number, :width]]
            rows.append(self.row(q[number], k, v))
        return np.stack(rows).astype(np.float32)


def exact_mutant(row):
    """The backend of a kernel over our pools that declares the exact arithmetic, its rows made by ``row``."""

    def attend(q, kv, ids, steps):
        out = np.zeros(q.shape, np.float32)
        for number, width in enumerate(steps[:, 3]):
            k, v = selected_cells(kv, ids[number], width).values()
            out[number] = row(q[number].astype(np.float64), k, v)
        return out

    return types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})


@pytest.fixture
def backend_of(monkeypatch):
    def make(kernel):
        module = types.ModuleType("theirs")
        module.kernel = kernel
        monkeypatch.setitem(sys.modules, "theirs", module)
        return Backend("theirs:kernel")

    return make


CASE = "accuracy:op=attend,format={},scores=ordinary,context={},rows=2,tail=2,seed=1"


def explained(text, backend, *words):
    result = run(text, backend)
    report = "\n".join(result.lines(backend))
    assert result.status == "failed", report
    assert "position: row " in report, report
    for word in words:
        assert word in report, report
    return report


@pytest.mark.parametrize("words", HEADS)
def test_a_cause_is_named_for_a_float_kernel(words, backend_of):
    explained(CASE.format("own", 300), backend_of(Mutant(of_heads(HEADS[words]))), words)


@pytest.mark.parametrize("words", HEADS)
def test_a_cause_is_named_in_the_exact_arithmetic(words, backend_of):
    explained(CASE.format("int8", 300), backend_of(exact_mutant(of_heads(HEADS[words]))), words)


# Mistakes of reading pools: pages, ids, heads, codes


def window(format="int8", page=4, absent=False, minus_one=False, behind=False, shift=0.0):
    """The arguments of ``attend`` of 2 rows over 102 cells of a pool whose other pages hold cells too."""
    rng = np.random.default_rng(3)
    capacity, n = 160, 102
    table = rng.permutation(-(-capacity // page)).astype(np.int32)
    kv = PagedKV.new(format, capacity, page, table=table)
    k, v = rng.standard_normal((2, capacity, 2, 256)).astype(np.float32)
    k[..., 0] = 4.0 if shift else k[..., 0]
    steps = step_records([n - 2, n - 1])
    append_kv(k, v, kv, step_records(np.arange(capacity)))
    if absent:
        kv.table[n // page // 2] = -1
    q = rng.standard_normal((2, 24, 256)).astype(np.float32)
    q[..., 0] = shift / 4 * 16 if shift else q[..., 0]
    ids = np.full((2, 128), -1, np.int32)
    for row, width in enumerate(steps[:, 3]):
        ids[row, :width] = np.arange(width)
        if behind:
            ids[row, width:] = np.arange(130, 130 + 128 - width) % capacity
        if minus_one:
            ids[row, 7] = -1
    return types.SimpleNamespace(q=q, kv=kv, ids=ids, steps=steps)


def with_ids(change):
    return lambda w: attend64(w.q, w.kv, *change(w))


def tailless(w):
    return np.where(w.ids >= w.steps[:, 2:3] * 4, -1, w.ids), w.steps


def wide(w):
    steps = w.steps.copy()
    steps[:, 3] = w.ids.shape[1]
    return w.ids, steps


def with_values(change):
    """Attention over the values of every row, changed: K and V [n, kv heads, dim] in the coding's basis."""

    def out(w):
        rows = []
        for row, width in enumerate(w.steps[:, 3]):
            cells = selected_cells(w.kv, w.ids[row], width)
            k, v = change(cells)
            q = rotate(w.q[row].astype(np.float64)) if w.kv.pool.k.coding == "q4_0" else w.q[row]
            rows.append(of_heads(plain)(q, k, v))
        return rotate(np.stack(rows)) if w.kv.pool.v.coding == "q4_0" else np.stack(rows)

    return out


def zeros_for_absent(w):
    rows = []
    for row, width in enumerate(w.steps[:, 3]):
        k, v = read_kv(w.kv, w.ids[row, :width]).values()
        rows.append(of_heads(plain)(w.q[row], k, v))
    return np.stack(rows)


def next_page(w):
    table = (w.kv.table + 1) % w.kv.pool.n_pages
    return attend64(w.q, PagedKV(w.kv.pool, table), w.ids, w.steps)


def permuted_heads(order):
    def out(w):
        found = np.empty(w.q.shape)
        found[:, order] = attend64(w.q[:, order], w.kv, w.ids, w.steps)
        return found

    return out


def transposed(w):
    kv = copy.deepcopy(w.kv)
    codes = kv.pool.v.codes
    codes[...] = codes.reshape(*codes.shape[:2], 256, -1).transpose(0, 1, 3, 2).copy()
    return attend64(w.q, kv, w.ids, w.steps)


def scale_of_next_group(cells):
    scale = cells.v_scale.copy()
    scale[..., 1] = scale[..., 2]
    return cells._replace(v_scale=scale).values()


def k_scale_of_next_group(cells):
    scale = cells.k_scale.copy()
    scale[..., 2] = scale[..., 1]
    return cells._replace(k_scale=scale).values()


def float32_softmax(start):
    def head(q, k, v):
        s = (k @ q / 16).astype(np.float32)
        p = np.exp(s - (F(0) if start is None else max(s.max(), F(start))))
        return (p @ v.astype(np.float32) / p.sum()).astype(np.float64)

    return with_values_of(head)


def with_values_of(head):
    def out(w):
        rows = []
        for row, width in enumerate(w.steps[:, 3]):
            rows.append(of_heads(head)(w.q[row], *selected_cells(w.kv, w.ids[row], width).values()))
        return np.stack(rows)

    return out


def interleaved(codes):
    return codes.reshape(*codes.shape[:-1], -1, 2, 16)[..., ::-1, :].reshape(codes.shape)


MODULO = np.concatenate([np.arange(0, 24, 2), np.arange(1, 24, 2)])

POOLS = {
    "the tail left out": ({}, with_ids(tailless)),
    "ids behind the width read": ({"behind": True}, with_ids(wide)),
    "an id of -1 read as cell 0": ({"minus_one": True}, with_ids(lambda w: (np.maximum(w.ids, 0), w.steps))),
    "every id one cell too high": ({}, with_ids(lambda w: (w.ids + (w.ids >= 0), w.steps))),
    "every id one cell too low": ({}, with_ids(lambda w: (w.ids - (w.ids >= 0), w.steps))),
    "cells of pages that are not resident counted as zero rows": ({"absent": True}, zeros_for_absent),
    "the next page of the pool read": ({}, next_page),
    "(head modulo n_head_kv)": ({}, permuted_heads(MODULO)),
    "(KV heads in reversed order)": ({}, permuted_heads(np.roll(np.arange(24), 12))),
    "V transposed within its pages": ({}, transposed),
    "V of KV head 1 beside the right K": ({}, with_values(lambda c: (c.values()[0], c.values()[1][:, ::-1]))),
    "K of KV head 1 beside the right V": ({}, with_values(lambda c: (c.values()[0][:, ::-1], c.values()[1]))),
    "group 1 of V with the scale of group 2": ({}, with_values(scale_of_next_group)),
    "group 2 of K with the scale of group 1": ({}, with_values(k_scale_of_next_group)),
    "V with the scales of the next selected cell": (
        {},
        with_values(lambda c: c._replace(v_scale=np.roll(c.v_scale, -1, axis=0)).values()),
    ),
    "K with the scales of the previous selected cell": (
        {},
        with_values(lambda c: c._replace(k_scale=np.roll(c.k_scale, 1, axis=0)).values()),
    ),
    "a running maximum that starts at 0": ({"shift": -600.0}, float32_softmax(0)),
    "a running maximum that starts at -64": ({"shift": -600.0}, float32_softmax(-64)),
    "the maximum not subtracted: exp overflows": ({"shift": 600.0}, float32_softmax(None)),
    "the output of another row: row": ({}, lambda w: attend64(w.q, w.kv, w.ids, w.steps)[::-1]),
    "the output of another head: row": (
        {},
        lambda w: np.roll(attend64(w.q, w.kv, w.ids, w.steps), -1, axis=1),
    ),
    "the output not rotated back": ({"format": "q4_0"}, lambda w: rotate(attend64(w.q, w.kv, w.ids, w.steps))),
    "a rotation without 1/sqrt(head_dim)": ({"format": "q4_0"}, lambda w: 16 * attend64(w.q, w.kv, w.ids, w.steps)),
    "the query not rotated": (
        {"format": "q4_0"},
        lambda w: attend64(rotate(w.q.astype(np.float64)), w.kv, w.ids, w.steps),
    ),
    "the codes of V without their offset of 8": (
        {"format": "k8v4"},
        with_values(lambda c: c._replace(v_codes=c.v_codes.astype(np.int64) + 8).values()),
    ),
    "the two nibbles of V exchanged": (
        {"format": "k8v4"},
        with_values(lambda c: c._replace(v_codes=interleaved(c.v_codes)).values()),
    ),
    "the sign of the scales of K dropped": (
        {"format": "q4_0"},
        with_values(lambda c: c._replace(k_scale=np.abs(c.k_scale)).values()),
    ),
}
"""Words of the report -> (options of the window, its wrong output)."""


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("words", POOLS)
def test_a_cause_in_reading_pools_is_named(words, arithmetic):
    options, wrong = POOLS[words]
    w = window(**options)
    with np.errstate(all="ignore"):
        got = wrong(w).astype(np.float32)
    backend = types.SimpleNamespace(declaration=declared(None), attend_stages=no_stages, experiments=False)
    if arithmetic == "exact":
        lines = explain(backend, w, exact.attend(w.q, w.kv, w.ids, w.steps), got)
    else:
        lines = explain(backend, w, attend64(w.q, w.kv, w.ids, w.steps), got, np.full((2, 1), 1e-5))
    assert any(line.startswith("consistent with") and words in line for line in lines) or (
        words in lines[-1] and lines[-1].startswith("consistent with: NaN")
    ), lines


def no_stages(*given):
    raise UnsupportedError("none")


def test_there_are_enough_causes():
    assert len(HEADS) + len(POOLS) >= 25


def test_a_right_output_has_no_place():
    w = window()
    right = exact.attend(w.q, w.kv, w.ids, w.steps)
    backend = types.SimpleNamespace(declaration=declared(None), attend_stages=no_stages, experiments=False)
    assert explain(backend, w, right, right.copy()) == ()
    truth = attend64(w.q, w.kv, w.ids, w.steps)
    assert explain(backend, w, truth, right, np.full((2, 1), 1e-5)) == ()


# Stages


@pytest.mark.parametrize("stage", ["scores", "weights", "output"])
def test_the_first_wrong_stage_of_a_float_kernel_is_named(stage, backend_of):
    words = f"first wrong in {stage} at [3, "
    explained(CASE.format("own", 300), backend_of(Staged(**{stage: 1.2})), "head 3:", words)


def test_wrong_cells_of_a_float_kernel_are_named(backend_of):
    class Short(Staged):
        def stages(self, q, kv, ids):
            return super().stages(q, kv, ids[2:])

    report = explained(CASE.format("own", 300), backend_of(Short()), "first wrong in cells: without [0, 1]")
    assert "cells 0 to 1 of the selection left out" in report


def test_a_tap_that_fails_does_not_hide_the_failure(backend_of):
    class Broken(Staged):
        def attend_stages(self, q, kv, ids, steps, row):
            return [1]

    text = "attend_stages itself: ValueError: attend_stages: gave list: must be a dict of arrays"
    explained(CASE.format("own", 300), backend_of(Broken(output=2)), text)


def test_stages_come_through_the_isolated_process(tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text("from support.float_kernel import Staged\n\nkernel = Staged(weights=1.3)\n")
    kernel = RemoteKernel(f"{path}:kernel")
    try:
        backend = Backend("theirs:kernel", kernel=kernel)
        explained(CASE.format("own", 300), backend, "head 3:", "first wrong in weights at [3, 5]")
    finally:
        kernel.close()
