"""Attention whose cells are right and whose numbers are not: fixed point, exponents, maxima, rounding, scales."""

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from qsa.reference.append_kv import slots_of
from qsa.reference.attend import selected_cells
from qsa.reference.exact.scalar import NAN, exp2, fixed_point
from qsa.reference.formats import rotate
from qsa.reference.geometry import REAL

from .. import float_kernel
from ..mutant import EXACT, FLOAT, Right, mutant
from .changes import but, each_kv, with_side

# `qsa.reference.exact.attend` is the function; the module of that name has the stages.
_exact = importlib.import_module("qsa.reference.exact.attend")

EXTREMES = "D: extremes of the fixed-point query and of the weights"
"""A weight never reaches 2^31: its V scale has 11 bits, so r * mu is 2 - 2^-10 at most. A mass that is one less is none
in the float32 of their sum, and a subnormal query changes no weight: such mutants would be right kernels."""

Hook = Callable[..., Any]


def _same(value: Any, *rest: Any) -> Any:
    return value


def staged(
    a: Any,
    query: Hook = _same,
    cells: Hook = _same,
    scores: Hook = _same,
    top: Hook = _same,
    mass: Hook = _same,
    weights: Hook = _same,
    total: Hook = _same,
    out: Hook = _same,
) -> np.ndarray:
    """Attention of the exact arithmetic stage by stage; each hook takes the stage's value, and what it was made of, and
    gives another one."""
    kvs, slots = slots_of(len(a.q), a.kv, a.slots)
    result = np.zeros(a.q.shape, np.float32)
    with np.errstate(all="ignore"):
        for row, width in enumerate(a.steps[:, 3].tolist()):
            pool = kvs[slots[row]].pool
            found = selected_cells(kvs[slots[row]], a.ids[row], width)
            if not len(found.resident):
                continue
            turned = rotate(a.q[row]) if pool.k.coding == "q4_0" else a.q[row]
            bad = ~np.isfinite(turned).all(axis=-1)
            found = cells(found)
            s = scores(_exact.scores(query(turned), found, REAL))
            highest = top(_exact.maxima(s, found, REAL), s, found)
            p, w = _exact.weights(s, found, highest, REAL)
            p, w = mass(p, s, highest), weights(w, s, highest, found)
            sums = total(_exact.sums(p, w, found, REAL))
            one = _exact.output(sums, highest)
            one = out(rotate(one) if pool.v.coding == "q4_0" else one, pool) + np.float32(0)
            one[bad] = NAN
            result[row] = one
    return result


def _stage(name: str, kind: str, **hooks: Hook) -> None:
    @mutant("attend", name, kind, EXACT)
    def changed(right: Right, a: Any) -> Any:
        return staged(a, **hooks)


def _bits(keep: int, rounding: Callable[[np.ndarray], np.ndarray] = np.rint) -> Hook:
    """A query of ``keep`` bits in the place of 22."""

    def cut(q: np.ndarray) -> np.ndarray:
        e = fixed_point(q)[1][..., None]
        return np.ldexp(rounding(np.ldexp(q.astype(np.float64), keep - e)), e - keep).astype(np.float32)

    return cut


def _saturated(q: np.ndarray) -> np.ndarray:
    """2^22 in fixed point becomes 2^22 - 1."""
    qi, e = fixed_point(q)
    limit = np.int64(2**22 - 1)
    held = np.ldexp(np.clip(qi, -limit, limit).astype(np.float64), e[..., None] - 22).astype(np.float32)
    return np.where(np.abs(qi) > limit, held, q)


_stage("the lowest limb of the query dropped", "limbs", query=_bits(14, np.trunc))
_stage("a query of 21 bits", "fixed point", query=_bits(21))
_stage("the query cut, not rounded", "rounding by truncation", query=_bits(22, np.floor))
_stage("a query of 2^22 held at 2^22 - 1", EXTREMES, query=_saturated)
_stage(
    "a mass of 2^31 wraps to its sign",
    EXTREMES,
    mass=lambda p, *rest: p.astype(np.uint32).astype(np.int32).astype(np.int64),
)
_stage("weights of 24 bits", "limbs", weights=lambda w, *rest: w & ~0xFF)
_stage("the highest limb of the weights dropped", "limbs", weights=lambda w, *rest: w & 0xFFFFFF)
_stage("masses rounded up from half", "rounding", mass=lambda p, s, top: np.where(p % 1024 == 512, p + 1, p))
_stage("scores held at 2^23", "clamp", scores=lambda s: np.clip(s, -(2.0**23), 2.0**23).astype(np.float32))
_stage("scores held at 2^10", "clamp", scores=lambda s: np.clip(s, -(2.0**10), 2.0**10).astype(np.float32))
_stage("scores rounded to fp16", "types", scores=lambda s: s.astype(np.float16).astype(np.float32))
_stage(
    "the running maximum starts at 0",
    "D: the running maximum",
    top=lambda t, s, c: t._replace(floor=np.maximum(t.floor, 0)),
)
_stage(
    "the running maximum starts at -64",
    "D: the running maximum",
    top=lambda t, s, c: t._replace(floor=np.maximum(t.floor, -64)),
)
_stage(
    "the group maximum starts at 0",
    "D: the running maximum",
    top=lambda t, s, c: t._replace(group=np.maximum(t.group, 0)),
)
_stage(
    "the maximum over the first 1,024 cells alone",
    "loop bounds",
    top=lambda t, s, c: t._replace(floor=exp2(s[:, :1024])[1].max(axis=-1)),
)
_stage(
    "one maximum for all value groups",
    "group maximum",
    top=lambda t, s, c: t._replace(group=np.repeat(t.group.max(axis=1, keepdims=True), t.group.shape[1], axis=1)),
)
_stage(
    "the group maximum counts scales of 0",
    "scales of 0",
    top=lambda t, s, c: t._replace(group=np.where(t.group < -(1 << 20), 0, t.group + (c.v_scale == 0).any())),
)
_stage(
    "masses below 1 dropped",
    "exponent -1",
    mass=lambda p, s, top: np.where(31 + exp2(s)[1] - top.floor[:, None] - 1 < 0, 0, p),
)
_stage("masses below 2^8 dropped", "small weights", mass=lambda p, s, top: np.where(p < 256, 0, p))
_stage("the sign of V's scale ignored", "signed scales", cells=lambda c: c._replace(v_scale=np.abs(c.v_scale)))
_stage("the sign of K's scale ignored", "signed scales", cells=lambda c: c._replace(k_scale=np.abs(c.k_scale)))
_stage(
    "subnormal scales of K are 0",
    "flush to zero",
    cells=lambda c: c._replace(k_scale=np.where(np.abs(c.k_scale) < 2.0**-14, 0, c.k_scale)),
)
_stage(
    "subnormal scales of V are 0",
    "flush to zero",
    cells=lambda c: c._replace(v_scale=np.where(np.abs(c.v_scale) < 2.0**-14, 0, c.v_scale)),
)
_stage(
    "groups of K added in descending order",
    "order of sums",
    cells=lambda c: c._replace(
        k_codes=c.k_codes.reshape(*c.k_scale.shape, -1)[:, :, ::-1].reshape(c.k_codes.shape),
        k_scale=c.k_scale[:, :, ::-1],
    ),
    query=lambda q: q,
)
_stage("the sum of masses as float32", "types", total=lambda t: t._replace(mass=(t.mass >> 9) << 9))
_stage("value sums of 32 bits", "types", total=lambda t: t._replace(value=t.value.astype(np.int32).astype(np.int64)))
_stage("a value sum rounded towards 0", "rounding by truncation", out=lambda o, pool: np.nextafter(o, np.float32(0)))
_stage("the output times a reciprocal", "division", out=lambda o, pool: (o * np.float32(3)) * np.float32(1 / 3))
_stage("the output rounded to bf16", "types", out=lambda o, pool: o.astype(ml_dtypes.bfloat16).astype(np.float32))
_stage(
    "the output of a q4_0 V not rotated back",
    "rotation",
    out=lambda o, pool: rotate(o) if pool.v.coding == "q4_0" else o,
)


@mutant("attend", "a NaN of another payload", "bits of the NaN", EXACT)
def _payload(right: Right, a: Any) -> Any:
    out = right(a)
    out.view(np.uint32)[np.isnan(out)] = 0xFFC00000
    return out


@mutant("attend", "a zero is written as -0", "sign of zero", EXACT)
def _minus_zero(right: Right, a: Any) -> Any:
    out = right(a)
    out[out == 0] = np.float32(-0.0)
    return out


@mutant("attend", "the query of a q4_0 K not rotated", "rotation")
def _not_rotated(right: Right, a: Any) -> Any:
    kvs = a.kv if isinstance(a.kv, list) else [a.kv]
    if all(kv.pool.k.coding == "q4_0" for kv in kvs):
        with np.errstate(all="ignore"):
            return right(but(a, q=np.where(np.isfinite(a.q), rotate(a.q), a.q)))
    return right(a)


def _query(
    name: str, kind: str, change: Callable[[np.ndarray], np.ndarray], arithmetics: tuple[str, ...] = EXACT + FLOAT
) -> None:
    @mutant("attend", name, kind, arithmetics)
    def changed(right: Right, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return right(but(a, q=change(a.q).astype(np.float32)))


_query("scores without 1/sqrt(head_dim)", "scale missing", lambda q: q * np.float32(16))
_query("scores in log2 units taken for natural ones", "scale missing", lambda q: q * np.float32(np.log2(np.e)))
_query("a query of bf16", "types", lambda q: q.astype(ml_dtypes.bfloat16))
_query("a query of fp16", "types", lambda q: q.astype(np.float16))
_query("a huge query held at 2^6", "huge query", lambda q: np.clip(q, -64, 64))
_query("a query 1 % too large", "scale", lambda q: q * np.float32(1.01))
_query("an infinite query held at the largest number", "infinite query", lambda q: np.nan_to_num(q, nan=np.nan))
_query("the last dim of the query left out", "loop bounds", lambda q: q * (np.arange(256) < 255).astype(np.float32))


@mutant("attend", "scales of K rounded to powers of two", "types")
def _scales(right: Right, a: Any) -> Any:
    def rounded(kv: Any) -> Any:
        scale = kv.pool.k.scale
        return (
            with_side(kv, "k", scale=np.exp2(np.rint(np.log2(np.abs(scale.astype(np.float64))))).astype(np.float16))
            if scale.size
            else kv
        )

    with np.errstate(all="ignore"):
        return right(each_kv(a, rounded))


@mutant("attend", "values of V times 1.02", "scale")
def _factor(right: Right, a: Any) -> Any:
    return right(a) * np.float32(1.02)


def _float_row(
    name: str, kind: str, softmax: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], v_type: Any = None
) -> None:
    """A float kernel with other weights: ``softmax`` takes scores [.., n] float32 and gives (weights, masses)."""

    @mutant("attend", name, kind, FLOAT)
    def changed(right: Right, a: Any) -> Any:
        out = right(a)
        kvs, slots = slots_of(len(a.q), a.kv, a.slots)
        for row, width in enumerate(a.steps[:, 3].tolist()):
            pool = kvs[slots[row]].pool
            k, v = (x.astype(np.float32) for x in selected_cells(kvs[slots[row]], a.ids[row], width).values())
            if not len(k):
                continue
            q = rotate(a.q[row]) if pool.k.coding == "q4_0" else a.q[row]
            bad = ~np.isfinite(q).all(axis=-1)
            v = v if v_type is None else v.astype(v_type).astype(np.float32)
            with np.errstate(all="ignore"):
                s = q.reshape(2, 12, 256) @ k.transpose(1, 2, 0) / np.float32(16)
                p, mass = softmax(np.fmax(np.fmin(s, float_kernel.LIMIT), -float_kernel.LIMIT))
                one = (p @ v.transpose(1, 0, 2) / mass).reshape(24, 256)
            one = rotate(one) if pool.v.coding == "q4_0" else one
            one[bad] = np.nan
            out[row] = one
        return out


def _from(start: float) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    def softmax(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), np.float32(start)))
        return p, p.sum(axis=-1, keepdims=True)

    return softmax


def _weights(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    def softmax(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return change(p), p.sum(axis=-1, keepdims=True)

    return softmax


def _no_maximum(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p = np.exp(s)
    return p, p.sum(axis=-1, keepdims=True)


def _stale_merge(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of 64 cells; the sums before a new maximum are not scaled down."""
    top = np.maximum.accumulate(s, axis=-1)
    top = top[..., np.minimum(np.arange(s.shape[-1]) // 64 * 64 + 63, s.shape[-1] - 1)]
    p = np.exp(s - top)
    return p, p.sum(axis=-1, keepdims=True)


_float_row("float: the running maximum starts at 0", "D: the running maximum", _from(0))
_float_row("float: the running maximum starts at -64", "D: the running maximum", _from(-64))
_float_row("float: no maximum", "D: the running maximum", _no_maximum)
_float_row("float: sums before a new maximum not scaled down", "online softmax", _stale_merge)
_float_row(
    "float: weights of bf16 that are not declared",
    "types",
    _weights(lambda p: p.astype(ml_dtypes.bfloat16).astype(np.float32)),
)
_float_row(
    "float: weights of fp16 that are not declared", "types", _weights(lambda p: p.astype(np.float16).astype(np.float32))
)
_float_row("float: weights below 1e-3 dropped", "small weights", _weights(lambda p: np.where(p < 1e-3, 0, p)))
_float_row("float: V of fp16 that is not declared", "types", _weights(_same), np.float16)
_float_row(
    "float: scores of fp16 that are not declared",
    "types",
    lambda s: _from(-3e38)(s.astype(np.float16).astype(np.float32)),
)
_float_row("float: scores held at 100", "clamp", lambda s: _from(-3e38)(np.clip(s, -100, 100)))
