"""Scores of encoded keys whose dots are made otherwise: limbs, roundings, overflow, the encoding of the query."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.key_codes import CODE_BITS, LARGEST_CODE, NOT_FINITE, decode, encode

from ..mutant import EXACT, Right
from .encodings import BOTH, coded, coded_to, exponents_of, half_away, without_low

Dots = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(key codes [keys, dim], their exponents [keys], query codes [heads, dim], their exponents [heads]) -> float32 [heads,
keys]; codes are int64 here."""


def unsigned_low(codes: np.ndarray) -> np.ndarray:
    """The low limb read as 0 to 255 though the high one was rounded for a signed one."""
    high = (codes.astype(np.int32) + 128) >> 8
    return (high << 8) + ((codes.astype(np.int32) - (high << 8)) & 255)


def _scaled(dots: np.ndarray, power: np.ndarray) -> np.ndarray:
    """float32 ``dots`` times 2^power, rounded once."""
    return np.ldexp(dots.astype(np.float64), power).astype(np.float32)


def _power(key: np.ndarray, query: np.ndarray) -> np.ndarray:
    return query[:, None] + key - 2 * CODE_BITS


def _right_dots(codes: np.ndarray, exponents: np.ndarray, q: np.ndarray, q_exponents: np.ndarray) -> np.ndarray:
    return _scaled((q.astype(np.float64) @ codes.T).astype(np.float32), _power(exponents, q_exponents))


def _own(
    name: str,
    kind: str,
    dots: Dots = _right_dots,
    arithmetics: tuple[str, ...] = EXACT,
    query: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = encode,
    added: Callable[[np.ndarray], np.ndarray] | None = None,
    lost: bool = True,
) -> None:
    """A kernel that makes scores of its own ``dots`` of keys and a ``query`` encoded in its own way; ``added``: relu
    and the sum over heads; ``lost``: whether what is not finite becomes NaN."""

    @coded("block_scores", name, kind, arithmetics)
    def other(right: Right, a: Any) -> Any:
        out, index = right(a), a.index
        for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
            if not n_kv:
                continue
            codes = np.concatenate([index.pooled[:n_bid], index.dead[None]]).astype(np.int64)
            exponents = np.concatenate([exponents_of(index)[:n_bid], index.dead_exponent]).astype(np.int64)
            with np.errstate(all="ignore"):
                q, q_exponents = (x.astype(np.int64) for x in query(a.q_idx[row]))
                q_exponents = np.broadcast_to(q_exponents, len(q))
                dead = exponents == NOT_FINITE, q_exponents == NOT_FINITE
                x = dots(codes, np.where(dead[0], 0, exponents), q, np.where(dead[1], 0, q_exponents))
                if lost:
                    x = np.where(dead[0] | dead[1][:, None], np.float32(np.nan), x)
                score = (added or _added)(x)
                if n_kv % index.geometry.ratio:
                    score[n_bid] += np.float32(TAIL_BONUS)
            # A NaN has its one pattern, so that only what is wrong here is seen.
            out[row, : n_bid + 1] = np.where(np.isnan(score), np.float32(np.nan), score)
        return out


def _added(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[1], np.float32)
    for head in np.where(x <= 0, np.float32(0), x):
        total = total + head
    return total


def _limbs(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    high = (codes + 128) >> 8
    return high, codes - (high << 8)


def _product(q: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Exact products, float64 [heads, keys]."""
    return np.asarray(q.astype(np.float64) @ codes.T.astype(np.float64))


def _of(change: Callable[[np.ndarray], np.ndarray], key: bool) -> Dots:
    """The right dots of changed codes of the keys or of the query."""
    return lambda c, e, q, f: _right_dots(change(c) if key else c, e, q if key else change(q), f)


def _per_limb(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Every product of limbs becomes a float32 before they are added."""
    total = np.zeros((len(q), len(c)), np.float32)
    for i, key in enumerate(_limbs(c)):
        for j, query in enumerate(_limbs(q)):
            total += _product(query, key).astype(np.float32) * np.float32(2 ** (8 * (2 - i - j)))
    return _scaled(total, _power(e, f))


def _parts(count: int) -> Dots:
    """The dims in ``count`` parts, each rounded before they are added."""

    def dots(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
        total = np.zeros((len(q), len(c)), np.float32)
        for part in np.split(np.arange(c.shape[1]), count):
            total += _product(q[:, part], c[:, part]).astype(np.float32)
        return _scaled(total, _power(e, f))

    return dots


def _without_low_low(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
    dots = _product(q, c) - _product(_limbs(q)[1], _limbs(c)[1])
    return _scaled(dots.astype(np.float32), _power(e, f))


def _wrapped(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
    return _scaled((q @ c.T).astype(np.int32).astype(np.float32), _power(e, f))


def _middle_wrapped(bits: int) -> Dots:
    """The sum of the two middle products of limbs in an integer of ``bits``."""

    def dots(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
        (ch, cl), (qh, ql) = _limbs(c), _limbs(q)
        middle = qh @ cl.T + ql @ ch.T
        middle = (middle + (1 << (bits - 1)) & ((1 << bits) - 1)) - (1 << (bits - 1))
        return _scaled(((qh @ ch.T << 16) + (middle << 8) + ql @ cl.T).astype(np.float32), _power(e, f))

    return dots


def _scaled_twice(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The power of the key first, then that of the query: a subnormal result is rounded twice, or overflows between."""
    dots = _scaled(_product(q, c).astype(np.float32), np.broadcast_to(e - 2 * CODE_BITS, (len(q), len(c))))
    return _scaled(dots, np.broadcast_to(f[:, None], dots.shape))


def _not_rounded(c: np.ndarray, e: np.ndarray, q: np.ndarray, f: np.ndarray) -> np.ndarray:
    return np.ldexp(_product(q, c), _power(e, f))


def _one_exponent(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes, exponents = encode(q.reshape(-1))
    return codes.reshape(q.shape), np.repeat(exponents[None], len(q))


_own("the low limb of keys left out", "limb", _of(without_low, True), BOTH)
_own("the low limb of the query left out", "limb", _of(without_low, False), BOTH)
_own("the low limb of keys read as unsigned", "limb", _of(unsigned_low, True), BOTH)
_own("the low limb of the query read as unsigned", "limb", _of(unsigned_low, False), BOTH)
_own("the product of the low limbs left out", "limb", _without_low_low)
_own("every product of limbs rounded", "one rounding a head", _per_limb)
for _count in (2, 4, 32):
    _own(f"the dims in {_count} parts, each rounded", "one rounding a head", _parts(_count))
_own(
    "no rounding before the heads are added",
    "one rounding a head",
    _not_rounded,
    added=lambda x: np.where(x <= 0, 0, x).sum(axis=0).astype(np.float32),
)
_own("dots of 32 bits", "overflow", _wrapped, BOTH)
for _bits in (20, 22):
    _own(f"the middle limbs summed in {_bits} bits", "overflow", _middle_wrapped(_bits))
_own("the two powers of two applied one after the other", "subnormal results", _scaled_twice)
_own("one exponent for all heads of the query", "query", query=_one_exponent)
_own("a query that is not finite read as 0", "NaN", lost=False, arithmetics=BOTH)
_own("the query to the next smaller exponent, codes held at 32,639", "saturation", query=coded_to(32767, LARGEST_CODE))
_own("codes of the query up to 32,767", "saturation", query=coded_to(32767))
_own("codes of the query up to 32,640", "saturation", query=coded_to(32640))
_own("codes of the query up to 32,638", "saturation", query=coded_to(32638))
_own("ties of the query away from 0", "rounding", query=coded_to(LARGEST_CODE, rint=half_away))
_own("the query cut, not rounded", "rounding by truncation", query=coded_to(LARGEST_CODE, rint=np.trunc))
_own("relu over the sum of the heads", "relu", added=lambda x: np.maximum(x.sum(axis=0), 0), arithmetics=BOTH)
_own("relu missing in the last head", "relu", added=lambda x: _added(x[:3]) + x[3], arithmetics=BOTH)
_own(
    "relu that makes 0 of a NaN",
    "relu",
    added=lambda x: _added(np.nan_to_num(x, nan=0, posinf=np.inf)),
    arithmetics=BOTH,
)
_own("the heads added from the last to the first", "order of sums", added=lambda x: _added(x[::-1]))


@coded("block_scores", "the query stays float32", "a float32 key or query in the place of the encoded one", EXACT)
def _plain_query(right: Right, a: Any) -> Any:
    out = right(a)
    for row, (_, n_kv, n_bid, _) in enumerate(a.steps.tolist()):
        if n_kv:
            with np.errstate(all="ignore"):
                x = a.q_idx[row].astype(np.float64) @ decode(a.index.pooled, exponents_of(a.index))[:n_bid].T
                score = _added(x.astype(np.float32))
            out[row, :n_bid] = np.where(np.isnan(score), np.float32(np.nan), score)
    return out
