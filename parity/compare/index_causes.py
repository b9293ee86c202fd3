"""Simple mistakes of selection and of block scores, and which of them give a result that is wrong.

A selection is consistent with a mistake when it has just the cells that the mistake gives; scores are when every one of
them lies within rounding of the mistake's.
"""

from collections.abc import Iterator

import numpy as np

from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.geometry import REAL, RULES
from qsa.reference.index import Index

from ..contract.number_types import rounded

SHOWN = 3
"""Causes that a failure names at most, where several fit."""

CLOSE = 1e-4
"""Distance, relative to the sum of |key x query|, within which scores count as consistent with a mistake."""

LARGEST = np.finfo(np.float32).max


def _cells(order: np.ndarray, n_kv: int, n_bid: int, rule: str, width: int, tail: bool = True) -> np.ndarray:
    """The cells of the blocks ``order``, best first: the tail, then as many as the rule takes."""
    last = np.arange(n_bid * REAL.ratio, n_kv) if tail else np.arange(0)
    blocks = order[: REAL.top_blocks] if rule == "blocks" else order
    cells = (np.asarray(blocks)[:, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()
    return np.concatenate([last, cells])[:width]


def _order(scores: np.ndarray, higher: bool = False) -> np.ndarray:
    """Blocks by falling score, a NaN last; ties to the lower index, or to the ``higher`` one."""
    key = np.where(np.isnan(scores), -np.inf, scores) + 0.0
    number = np.arange(len(key))
    order = np.lexsort((-number if higher else number, -key, np.isnan(scores)))
    return order


def _selections(row: int, scores: np.ndarray, steps: np.ndarray, rule: str) -> Iterator[tuple[str, np.ndarray]]:
    """(text, cells) that mistakes select in ``row``."""
    _, n_kv, n_bid, width = steps[row].tolist()
    seen = scores[row, :n_bid].astype(np.float64)
    best = _order(seen)

    def take(order: np.ndarray, **options: bool) -> np.ndarray:
        return _cells(order, n_kv, n_bid, rule, width, **options)

    yield "ties broken to the higher block", take(_order(seen, higher=True))
    top = REAL.top_blocks
    tail = np.arange(n_bid * REAL.ratio, n_kv)
    for text, count in (("one block too few", top - 1), ("one block too many", top + 1)):
        cells = (best[:count, None] * REAL.ratio + np.arange(REAL.ratio)).ravel()
        yield f"the budget off: {text}", np.concatenate([tail, cells])
    other = RULES[1 - RULES.index(rule)]
    others = _cells(best, n_kv, n_bid, other, REAL.width(n_kv, other))
    yield f"the rule {other} in place of {rule}", others
    # Cut at the width of the record.
    yield f"the rule {other} in place of {rule}", np.sort(others)[:width]
    yield "the tail left out", take(best, tail=False)
    yield "the tail left out", _cells(best, n_kv, n_bid, "blocks", width, tail=False)[: width - len(tail)]
    yield "the lowest scores taken", take(_order(-seen))
    yield "a NaN taken for the highest score", take(_order(np.where(np.isnan(seen), np.inf, seen)))
    yield "a NaN taken for 0", take(_order(np.where(np.isnan(seen), 0, seen)))
    bits = scores[row, :n_bid].astype(np.float32).view(np.uint32)
    yield "negative scores in reverse order (the sign bit of the key)", take(_order(bits.view(np.int32)))
    yield "scores compared as bits without their sign", take(_order(bits))
    yield "-0 taken for lower than +0", take(_order(seen, higher=False)[_signed_zero(seen)])
    yield "scores compared by magnitude", take(_order(np.abs(seen)))
    yield "infinities left out", take(_order(np.where(np.isinf(seen), -LARGEST, seen)))
    yield "every block one too high", take(np.minimum(best + 1, max(n_bid - 1, 0)))
    yield "every block one too low", take(np.maximum(best - 1, 0))
    yield "the first blocks whatever their scores", take(np.arange(n_bid))
    yield "the last blocks whatever their scores", take(np.arange(n_bid)[::-1])
    if scores.shape[1] > n_bid:
        behind = np.append(seen, scores[row, n_bid])
        yield "the spare block n_bid taken for a complete one", take(_order(behind))
    for name in ("bf16", "fp16"):
        yield f"scores compared as {name}", take(_order(rounded(seen, name)))
    for another in range(len(scores)):
        if another != row:
            yield f"the scores of row {another}", take(_order(scores[another, :n_bid].astype(np.float64)))
    size = min(top, n_bid)
    for bits_used in (8, 12, 16, 24):
        # What a digit search that stops early cannot tell apart.
        keys = bits.astype(np.int64)
        key = np.where(keys >> 31, 0xFFFFFFFF - keys, keys | 0x80000000) >> (32 - bits_used)
        if size:
            yield f"scores compared by their first {bits_used} bits", take(_order(key.astype(np.float64)))
    for step in (1, 2, 4, 8):
        # Candidates above a limit that are dropped when a buffer is full.
        candidates = np.sort(best[: size * step])[:size]
        if step > 1:
            yield f"the lower of {step} x {size} candidates", take(candidates)


def _signed_zero(seen: np.ndarray) -> np.ndarray:
    """Places in the order of ``seen`` with every -0 behind the +0 of the same run."""
    order = _order(seen)
    key = np.where(np.isnan(seen), -np.inf, seen)[order] + 0.0
    zero = (seen[order] == 0) & np.signbit(seen[order])
    return np.lexsort((np.arange(len(order)), zero, -key, np.isnan(seen)[order]))


def explained(found: str | None) -> tuple[str, ...]:
    """The line of a report about causes that were found, or none."""
    return (f"consistent with: {found}" if found else "consistent with none of the simple mistakes tried",)


def selection(expected: np.ndarray, got: np.ndarray, scores: np.ndarray, steps: np.ndarray) -> str | None:
    """The mistakes that give the cells of the first wrong row, or None.

    expected, got  [rows, cap] ints: a row's cells, then -1
    scores         [rows, blocks]: those that the call was given
    """
    cap = min(expected.shape[1], got.shape[1])
    # A record's width is that of its rule; where both rules have it, they select the same cells.
    whole = all(width == REAL.width(n_kv, "blocks") for _, n_kv, _, width in steps.tolist())
    rule = "blocks" if whole else "cells"
    for row in range(len(steps)):
        right, wrong = expected[row][expected[row] >= 0], got[row][got[row] >= 0]
        if np.array_equal(expected[row, :cap], got[row, :cap]) or steps[row, 0] < 0:
            continue
        if not len(wrong):
            return "nothing was written"
        if np.array_equal(np.sort(right), np.sort(wrong)):
            return "the right cells, not in ascending order"
        if len(wrong) > len(np.unique(wrong)) and np.isin(wrong, right).all():
            return f"cells selected twice, {len(wrong) - len(np.unique(wrong))} of them"
        if len(wrong) <= REAL.top_blocks + 1 and np.isin(wrong, right[: len(right)] // REAL.ratio).all():
            return "blocks in place of cells"
        with np.errstate(all="ignore"):
            found = [
                text
                for text, cells in _selections(row, scores, steps, rule)
                if np.array_equal(np.sort(cells), np.sort(wrong)) and not np.array_equal(np.sort(cells), np.sort(right))
            ]
        return "; or ".join(dict.fromkeys(found[: SHOWN + 1])) or None
    return None


def block_scores(q: np.ndarray, index: Index, step: list[int], got: np.ndarray, tail: bool) -> str | None:
    """The mistakes that give the scores ``got`` of one row, or None.

    q     [heads, idx_dim] float32; ``step`` its step record; ``got`` [n_bid], with ``tail`` the tail's score behind
    """
    _, n_kv, n_bid, _ = step
    keys = index.pooled_values(slice(n_bid))
    if tail:
        keys = np.concatenate([keys, index.dead_values()[None]])
    q = q.astype(np.float64)
    # Next to its bonus the tail's score has no digits left: a difference counts by what the bonus leaves of it.
    bonus = np.zeros(len(keys))
    bonus[-1:] = TAIL_BONUS if tail and n_kv % REAL.ratio else 0.0
    scale = (np.abs(keys) @ np.abs(q).T).sum(axis=1) + np.abs(bonus) * 2.0**-10
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    wrong = got[: len(keys)].astype(np.float64)
    right = np.maximum(keys @ q.T, 0).sum(axis=1) + bonus

    def off(a: np.ndarray, b: np.ndarray) -> float:
        away = (np.abs(a - b) / scale)[~np.isnan(a)]
        return float(np.sqrt((away**2).mean())) if away.size else np.inf

    with np.errstate(all="ignore"):
        if not wrong[:n_bid].any():
            return "zeros: nothing was written"
        error, found = off(right, wrong), []
        for text, scores in _scores(q, keys, bonus, n_bid, index, tail, right):
            distance = off(scores, wrong)
            if distance <= min(CLOSE, error / 4) and off(scores, right) > error / 2:
                found.append((distance, text))
        best = min(found)[0] if found else 0.0
        texts = [text for distance, text in found if distance <= max(3 * best, 0.02 * error)]
        plain = slice(0, n_bid)
        if not texts and right[plain].any():
            factor = float(wrong[plain] @ right[plain] / (right[plain] @ right[plain]))
            if off(factor * right, wrong) <= min(CLOSE, error / 4) or abs(factor - 1) > CLOSE > off(
                np.where(bonus > 0, np.nan, factor * right), wrong
            ):
                texts.append(f"a factor of {factor:.6g} on the scores")
    return "; or ".join(dict.fromkeys(texts[:SHOWN])) or None


def _scores(
    q: np.ndarray, keys: np.ndarray, bonus: np.ndarray, n_bid: int, index: Index, tail: bool, right: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """(text, scores) of mistakes; ``bonus`` is that of the tail."""
    dots = keys @ q.T
    positive = np.maximum(dots, 0)
    yield "relu left out", dots.sum(axis=1) + bonus
    yield "relu after the sum of the heads", np.maximum(dots.sum(axis=1), 0) + bonus
    yield "the magnitude in place of relu", np.abs(dots).sum(axis=1) + bonus
    yield "the largest head in place of the sum", positive.max(axis=1) + bonus
    yield "the mean of the heads in place of the sum", positive.mean(axis=1) + bonus
    yield "scores divided by sqrt(idx_dim)", positive.sum(axis=1) * keys.shape[1] ** -0.5 + bonus
    for head in range(len(q)):
        yield f"indexer head {head} left out", right - positive[:, head]
        yield f"indexer head {head} counted twice", right + positive[:, head]
        yield f"indexer head {head} in place of all", positive[:, head] + bonus
    size = keys.shape[1] // 4
    for part in range(4):
        cut = keys.copy()
        cut[:, part * size : (part + 1) * size] = 0
        name = f"dims {part * size} to {(part + 1) * size - 1} left out"
        yield name, np.maximum(cut @ q.T, 0).sum(axis=1) + bonus
    for step, side in ((-1, "next"), (1, "previous")):
        rolled = right.copy()
        rolled[:n_bid] = np.roll(right[:n_bid], step)
        # The first or last block has no such neighbour: any key may stand there.
        rolled[n_bid - 1 if step < 0 else 0] = np.nan
        yield f"the key of the {side} block", rolled
    if tail:
        no_dead = right.copy()
        no_dead[-1] = bonus[-1]
        yield "the dead key missing: the tail scores 0", no_dead
        if bonus[-1]:
            yield "the bonus of the tail left out", right - bonus
        if index.max_blocks > n_bid:
            spare = right.copy()
            key = np.nan_to_num(index.pooled_values(slice(n_bid, n_bid + 1))[0], nan=np.nan)
            spare[-1] = np.maximum(key @ q.T, 0).sum() + bonus[-1]
            yield "the key behind the last block in place of the dead key", spare
    for name in ("bf16", "fp16"):
        yield f"keys rounded to {name}", np.maximum(rounded(keys, name) @ q.T, 0).sum(axis=1) + bonus
        yield f"the query rounded to {name}", np.maximum(keys @ rounded(q, name).T, 0).sum(axis=1) + bonus
        # Whether the bonus is rounded too is not asked.
        yield f"scores rounded to {name}", np.where(bonus > 0, np.nan, rounded(right, name))
