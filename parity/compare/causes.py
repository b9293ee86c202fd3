"""Simple mistakes of attention: the float64 output of one row and head as a kernel with that one mistake gives it.

``likely.py`` finds those that a wrong output is consistent with.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from qsa.reference.attend import selected_cells
from qsa.reference.formats import GROUP, rotate
from qsa.reference.kv import PagedKV, read_kv

from ..contract.number_types import rounded
from .ranges import parts
from .twin import paged

Candidates = Iterator[tuple[str, np.ndarray]]

LOG2_E = float(np.log2(np.e))


class Head:
    """One row and query head of a call of ``attend``, in float64.

    ``w`` has the arguments as attributes ``q``, ``kv``, ``ids``, ``steps``. Of the row: ``ids`` (its first width),
    ``all_ids``, ``present`` (ids whose page is resident), ``n_kv``. Of the head: ``q`` [dim] as it meets K, ``k`` and
    ``v`` [n, dim] in the coding's own basis, ``scores`` [n] in nats, ``p`` [n] = exp(scores - maximum).
    """

    def __init__(self, w: Any, row: int, head: int) -> None:
        self.w, self.row, self.head = w, row, head
        self.kv: PagedKV = paged(w.kv)
        self.g = self.kv.pool.geometry
        self.kv_head = head // self.g.group
        self.n_kv, width = int(w.steps[row, 1]), int(w.steps[row, 3])
        self.all_ids = np.asarray(w.ids[row], np.int64)
        self.ids = self.all_ids[:width]
        self.present = self.ids[self.kv.locate(self.ids)[0] >= 0]
        self.turned_k = self.kv.pool.k.coding == "q4_0"
        self.turned_v = self.kv.pool.v.coding == "q4_0"
        self.plain_q = np.asarray(w.q[row, head], np.float64)
        self.q = rotate(self.plain_q) if self.turned_k else self.plain_q
        self.scale = float(self.g.head_dim**-0.5)

    @cached_property
    def cells(self) -> Any:
        """The row's selected cells, of all KV heads."""
        return selected_cells(self.kv, self.ids, len(self.ids))

    @cached_property
    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """K and V [n, n_head_kv, dim] of the selected cells."""
        return self.cells.values()

    @cached_property
    def k(self) -> np.ndarray:
        return self.values[0][:, self.kv_head]

    @cached_property
    def v(self) -> np.ndarray:
        return self.values[1][:, self.kv_head]

    @cached_property
    def scores(self) -> np.ndarray:
        return self.k @ self.q * self.scale

    @cached_property
    def p(self) -> np.ndarray:
        return np.exp(self.scores - self.scores.max(initial=-np.inf))

    def back(self, out: np.ndarray) -> np.ndarray:
        """A value of V's basis [..., dim] as attention gives it."""
        return rotate(out) if self.turned_v else out

    def weighted(self, p: np.ndarray, v: np.ndarray | None = None, mass: Any = None) -> np.ndarray:
        """The output [..., dim] of weights ``p`` [..., n] over ``v``."""
        total = p.sum(axis=-1, keepdims=True) if mass is None else mass
        return self.back(p @ (self.v if v is None else v) / total)

    def softmax(self, scores: np.ndarray, v: np.ndarray | None = None) -> np.ndarray:
        """The output [..., dim] of scores [..., n] in nats."""
        return self.weighted(np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf)), v)

    def over(self, ids: np.ndarray, kv: PagedKV | None = None) -> np.ndarray:
        """The output over other cells, or another pool; a cell that is not there is a row of zeros."""
        kv = self.kv if kv is None else kv
        ids = ids[(ids >= 0) & (ids < kv.capacity)]
        k, v = (x[:, self.kv_head] for x in read_kv(kv, ids).values())
        return self.softmax(k @ self.q * self.scale, v)


def _selection(h: Head) -> Candidates:
    ids, tail = h.ids[h.ids >= 0], h.n_kv // h.g.ratio * h.g.ratio
    here = h.present
    if h.n_kv % h.g.ratio:
        yield "the tail left out", h.over(here[here < tail])
    yield "the last selected cell left out", h.over(here[:-1])
    yield "the first selected cell left out", h.over(here[1:])
    if len(h.all_ids) > len(h.ids) and (h.all_ids[len(h.ids) :] >= 0).any():
        yield "ids behind the width read", h.over(h.all_ids)
    if (h.ids < 0).any():
        yield "an id of -1 read as cell 0", h.over(np.maximum(h.ids, 0))
    if len(here) < len(ids):
        yield "cells of pages that are not resident counted as zero rows", h.over(ids)
    yield "every id one cell too high", h.over(here + 1)
    yield "every id one cell too low", h.over(here - 1)
    pool = h.kv.pool
    for step in (1, -1) if pool.n_pages > 1 else ():
        table = np.where(h.kv.table >= 0, (h.kv.table + step) % pool.n_pages, -1)
        side = "next" if step > 0 else "previous"
        yield f"the {side} page of the pool read", h.over(here, PagedKV(pool, table))


def _heads(h: Head) -> Candidates:
    k, v = h.values
    for text, other in (
        ("KV head {} (head modulo n_head_kv)", h.head % h.g.n_head_kv),
        ("KV head {} (KV heads in reversed order)", h.g.n_head_kv - 1 - h.kv_head),
    ):
        yield text.format(other), h.softmax(k[:, other] @ h.q * h.scale, v[:, other])
    other = h.g.n_head_kv - 1 - h.kv_head
    yield f"K of KV head {other} beside the right V", h.softmax(k[:, other] @ h.q * h.scale)
    yield f"V of KV head {other} beside the right K", h.weighted(h.p, v[:, other])


def _factors(h: Head) -> Candidates:
    for text, factor in (
        ("scores without 1/sqrt(head_dim)", 1 / h.scale),
        ("1/sqrt(head_dim) applied twice", h.scale),
        ("scores in log2 units taken for natural ones", LOG2_E),
        ("natural scores taken for log2 units", 1 / LOG2_E),
        ("scores of the opposite sign", -1.0),
        ("scores left out: a plain mean of V", 0.0),
    ):
        yield text, h.softmax(h.scores * factor)


def _softmax(h: Head) -> Candidates:
    yield "not divided by the sum of the weights", h.back(h.p @ h.v)
    if len(h.p):
        yield "the best cell alone", h.back(h.v[int(np.argmax(h.scores))])
    yield "weights that include 1 for no cell (a sink)", h.weighted(h.p, mass=h.p.sum() + np.exp(-h.scores.max()))
    s = h.scores.astype(np.float32)
    for text, top in (
        ("a running maximum that starts at 0", np.maximum(s.max(initial=-np.inf), np.float32(0))),
        ("a running maximum that starts at -64", np.maximum(s.max(initial=-np.inf), np.float32(-64))),
        ("the maximum not subtracted: exp overflows", np.float32(0)),
    ):
        e = np.exp(s - top)
        if not np.isfinite(e.sum()) or e.sum() < np.float32(2.0**-110):
            # Only then does float32 show it: a maximum cancels elsewhere.
            yield text, h.back((e @ h.v.astype(np.float32) / e.sum()).astype(np.float64))


def _exchanged(h: Head) -> Candidates:
    if h.turned_k == h.turned_v:
        yield "K and V exchanged", h.softmax(h.v @ h.q * h.scale, h.k)
    yield "V of the next selected cell", h.weighted(h.p, np.roll(h.v, -1, axis=0))
    yield "V of the previous selected cell", h.weighted(h.p, np.roll(h.v, 1, axis=0))
    page = h.kv.pool.page_size
    if page > 1:
        logical = h.present // page
        pages, inverse = np.unique(logical, return_inverse=True)
        cells = read_kv(h.kv, (pages[:, None] * page + np.arange(page)).ravel())
        codes = cells.v_codes[:, h.kv_head].reshape(len(pages), page, -1)
        flat = codes.reshape(len(pages), -1)
        for how in (
            flat.reshape(len(pages), -1, page).transpose(0, 2, 1),
            codes.transpose(0, 2, 1).reshape(codes.shape),
        ):
            taken = how[inverse, h.present % page].astype(np.float64)
            yield "V transposed within its pages", h.weighted(h.p, _scaled(taken, h.cells.v_scale[:, h.kv_head]))


def _scaled(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Values [n, dim] of codes [n, dim] and scales [n, groups] (none: the codes are the values)."""
    if not scale.shape[-1]:
        return codes
    return (codes.reshape(*scale.shape, -1) * scale.astype(np.float64)[..., None]).reshape(codes.shape)


def _groups(h: Head) -> Candidates:
    k_size = GROUP.get(h.kv.pool.k.coding, 64)
    terms = (h.k * h.q).reshape(len(h.k), -1, k_size).sum(axis=-1).T * h.scale
    for group, term in enumerate(terms):
        yield f"group {group} of K left out of the scores", h.softmax(h.scores - term)
    for name, scale in (("K", h.cells.k_scale), ("V", h.cells.v_scale)):
        scale = scale[:, h.kv_head].astype(np.float64)
        for group in range(scale.shape[-1]):
            for other in (group - 1, group + 1):
                if not 0 <= other < scale.shape[-1]:
                    continue
                ratio = np.where(scale[:, group] != 0, scale[:, other] / scale[:, group], 0)
                text = f"group {group} of {name} with the scale of group {other}"
                if name == "K":
                    yield text, h.softmax(h.scores + (ratio - 1) * terms[group])
                else:
                    size = h.g.head_dim // scale.shape[-1]
                    v = h.v.copy()
                    v[:, group * size : (group + 1) * size] *= ratio[:, None]
                    yield text, h.weighted(h.p, v)
        if scale.shape[-1]:
            codes = (h.cells.k_codes if name == "K" else h.cells.v_codes)[:, h.kv_head].astype(np.float64)
            for step, side in ((-1, "next"), (1, "previous")):
                x = _scaled(codes, np.roll(scale, step, axis=0))
                text = f"{name} with the scales of the {side} selected cell"
                yield text, h.softmax(x @ h.q * h.scale) if name == "K" else h.weighted(h.p, x)


def _coding(h: Head) -> Candidates:
    for name, coding in (("K", h.kv.pool.k.coding), ("V", h.kv.pool.v.coding)):
        if coding != "q4_0":
            continue
        codes, scale = (h.cells.k_codes, h.cells.k_scale) if name == "K" else (h.cells.v_codes, h.cells.v_scale)
        codes, scale = codes[:, h.kv_head].astype(np.float64), scale[:, h.kv_head]
        halves = codes.reshape(len(codes), -1, 2, 16)[:, :, ::-1].reshape(codes.shape)
        for text, wrong in (
            (f"the codes of {name} without their offset of 8", codes + 8),
            (f"the two nibbles of {name} exchanged", halves),
            (f"the sign of the scales of {name} dropped", codes),
        ):
            x = _scaled(wrong, np.abs(scale) if "sign" in text else scale)
            yield text, h.softmax(x @ h.q * h.scale) if name == "K" else h.weighted(h.p, x)
    right = h.weighted(h.p)
    if h.turned_v:
        yield "the output not rotated back", rotate(right)
        yield "a rotation without 1/sqrt(head_dim)", right * h.g.head_dim**0.5
    else:
        yield "the output rotated though V is not", rotate(right)
    if h.turned_k:
        yield "the query not rotated", h.softmax(h.k @ h.plain_q * h.scale)


def _rounding(h: Head) -> Candidates:
    for name in ("bf16", "fp16", "fp8_e4m3"):
        yield f"weights rounded to {name}", h.weighted(rounded(h.p, name).astype(np.float64), mass=h.p.sum())
        yield f"weights and their sum rounded to {name}", h.weighted(rounded(h.p, name).astype(np.float64))
        yield f"scores rounded to {name}", h.softmax(rounded(h.scores, name).astype(np.float64))
        yield f"the query rounded to {name}", h.softmax(h.k @ rounded(h.q, name) * h.scale)
        for factor, text in ((h.scale, "1/sqrt(head_dim)"), (h.scale * LOG2_E, "log2(e)/sqrt(head_dim)")):
            q = rounded(h.q * factor, name).astype(np.float64)
            yield f"the query times {text} rounded to {name}", h.softmax(h.k @ q / factor * h.scale)
        yield f"K rounded to {name}", h.softmax(rounded(h.k, name) @ h.q * h.scale)
        yield f"V rounded to {name}", h.weighted(h.p, rounded(h.v, name).astype(np.float64))


def _unrescaled(h: Head) -> Candidates:
    """Partial sums that are added without their own maximum being brought to the common one."""
    top = h.scores.max(initial=-np.inf)
    total, mass = h.p @ h.v, h.p.sum()
    for text, cuts in parts(len(h.p)):
        if len(cuts) < 3:
            continue
        sums = np.add.reduceat(h.p[:, None] * h.v, cuts[:-1], axis=0)
        masses = np.add.reduceat(h.p, cuts[:-1])
        rise = np.exp(top - np.maximum.reduceat(h.scores, cuts[:-1]))[:, None]
        yield f"no part rescaled to the common maximum ({text})", h.back((sums * rise).sum(0) / (masses @ rise))
        one, own = total + sums * (rise - 1), mass + masses[:, None] * (rise - 1)
        for number, out in enumerate(h.back(one / own)):
            yield f"part {number} not rescaled to the common maximum ({text})", out


FAMILIES: tuple[Callable[[Head], Candidates], ...] = (
    _selection,
    _heads,
    _factors,
    _softmax,
    _exchanged,
    _groups,
    _coding,
    _rounding,
    _unrescaled,
)
"""Functions that give (text, output [dim]) of mistakes of one kind."""
