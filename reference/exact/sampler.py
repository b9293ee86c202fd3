"""The sampling chain in the exact arithmetic: float32 logits, integer masses, every decision between integers.

The order, the options, the uniform numbers and their purposes are those of ``reference/sampler.py``. The steps:

1. Options become constants once (:class:`Constants`), in float64 with one rounding: repeat, frequency, presence and
   log2(e)/temperature to float32, top_p down to a whole number of 2^-30, min_p to the float32 log2 of its float32.
2. Penalties of a token that occurs c times: y = x*repeat where x <= 0, else x/repeat; t = c*frequency;
   t = t + presence; y - t. Each is one float32 operation, clamped to the largest finite magnitude: what was possible
   stays possible, and -inf stays -inf.
3. The list: the k largest, ties to the lower id, -0 equal to +0, -inf never among them. Its first logit is x_0.
4. In log2 units s = max((x - x_0) * scale, -2^24), difference and product rounded to float32; scale is float32(log2 e)
   in steps 5 and 6 and float32(log2(e)/temperature) in step 7. (r, n) = exp2(s); the mass is rint(r * 2^(40+n)), so
   that of x_0 is :data:`UNIT` = 2^40.
5. top-p: the shortest prefix whose masses, times 2^30, reach top_p times the sum of all; at least ``min_keep``.
6. min-p: the tokens with s >= log2(min_p).
7. The masses at the temperature. The draw takes the first token whose cumulative mass, times 2^24, exceeds u times the
   sum, u being a whole number of 24 bits.

Sums of masses are exact, so no order and no cut of them matters; those of up to 2^22 tokens stay at 2^62 or below.

Against float64 on the same penalised logits a mass is off by at most e(s) = 1.2e-7 + |s| * ln2 * 3 * 2^-24, relative
(exp2; the roundings of difference, scale and product), and by half a unit, 2^-41 of the first one. So no event's
probability is off by more than the mean of e(s) under the distribution and k * 2^-41 (:func:`distance_bound`). With k
tokens the mean of |s| is at most 3.4 for k = 64 and 13.4 for k = 248,320 (s of all tokens but the first equal), which
makes 5.5e-7 and 1.9e-6. A cut falls elsewhere only where float64 has the prefix within that distance, plus 2^-30, of
top_p, or s within |s| * 3.9e-7 + 1e-7 of log2(min_p) (log2 is good to 2e-7). The penalties' roundings move a logit by
at most 4 * 2^-24 of the magnitudes that meet in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..philox import blocks
from ..sampler import DEFAULT, PICK, Sampling
from .scalar import LOG2_E, SCORE_LIMIT, exp2, log2, rounded
from .select import selection_key

MASS_BITS = 40
UNIT = 1 << MASS_BITS
"""Mass of the list's first token, the greatest that there is."""

U_BITS = 24
TOP_P_BITS = 30

MOST_TOKENS = 1 << 22
"""Vocabulary up to which sums of masses stay at 2^62 or below, and their products with masses and u below 2^128."""

LARGEST = np.finfo(np.float32).max
LEAST_NORMAL = np.finfo(np.float32).tiny
INT32_MAX = (1 << 31) - 1

NOT_FINITE, IMPOSSIBLE, UNKNOWN_TOKEN, TOO_LONG, NO_ROW = -1, -2, -3, -4, -5
ERRORS = {
    NOT_FINITE: "logits: NaN or +inf: must be finite or -inf",
    IMPOSSIBLE: "logits: all -inf: at least one token must be possible",
    UNKNOWN_TOKEN: "history: a token outside the vocabulary",
    TOO_LONG: "options: a list longer than this sampler's",
    NO_ROW: "positions: negative: a row that is not in use",
}
"""Code that a kernel writes instead of a token -> the reason. Of several reasons the first is written. A row that fails
does not change the others."""


class Constants(NamedTuple):
    """What the chain reads of its options, each an int32 or a float32; a greedy chain is a list of one.

    ``limit`` 0: the whole vocabulary. ``top_p`` in units of 2^-30, 2^30 keeps all. ``least`` = log2(min_p), -inf keeps
    all. ``scale`` = log2(e)/temperature.
    """

    limit: int
    top_p: int
    min_keep: int
    last_n: int
    least: np.float32
    scale: np.float32
    repeat: np.float32
    frequency: np.float32
    presence: np.float32

    @property
    def penalises(self) -> bool:
        """Whether the penalties can change a logit."""
        return self.repeat != 1 or self.frequency != 0 or self.presence != 0


WORDS = len(Constants._fields)
"""Words of an option row, in the order of the fields; floats as their bits."""


def constants(options: Sampling) -> Constants:
    """:class:`Constants` of ``options``. Raises ValueError on a penalty that float32 cannot hold."""
    most, normal = float(LARGEST), float(LEAST_NORMAL)
    for name, least in (("repeat", normal), ("frequency", -most), ("presence", -most)):
        value = getattr(options, name)
        if not least <= float(value) <= most:
            raise ValueError(f"{name} = {value!r}: must be from {least} to {most} in the exact arithmetic")
    penalties = [np.float32(getattr(options, name)) for name in ("repeat", "frequency", "presence")]
    last_n = min(options.last_n, INT32_MAX)
    whole = 1 << TOP_P_BITS
    if options.greedy:
        return Constants(1, whole, 1, last_n, np.float32(-np.inf), np.float32(0), *penalties)
    limit = min([cap for cap in (options.top_k, options.max_candidates) if cap], default=0)
    with np.errstate(over="ignore"):
        scale = np.float64(float.fromhex("0x1.71547652b82fep+0")) / np.float64(options.temperature)
    return Constants(
        min(limit, INT32_MAX),
        int(float(options.top_p) * whole),
        min(options.min_keep, INT32_MAX),
        last_n,
        np.float32(log2(np.float32(options.min_p))),
        # Clamped: a tiny temperature leaves the largest logits alone, a huge one makes all alike.
        np.float32(min(max(scale, normal), most)),
        *penalties,
    )


def option_rows(options: Sampling | Sequence[Sampling], rows: int) -> np.ndarray:
    """Option rows int32 [rows, :data:`WORDS`], as kernels take them.

    options  a Sampling for all rows, or a sequence of one for each

    Raises ValueError on another count, and as :func:`constants` does.
    """
    each = [options] * rows if isinstance(options, Sampling) else list(options)
    if len(each) != rows:
        raise ValueError(f"options: {len(each)} given: must be one, or one for each of {rows} rows")
    known = {}
    table = np.empty((rows, WORDS), np.int32)
    for row, own in zip(table, each, strict=True):
        if own not in known:
            known[own] = [x.view(np.int32) if isinstance(x, np.float32) else x for x in constants(own)]
        row[:] = known[own]
    return table


def uniform(seed: int, positions: npt.ArrayLike, purpose: int) -> np.ndarray:
    """The uniform numbers of ``reference.sampler.uniform`` times 2^24, int64 [n]; arguments and errors as there."""
    return (blocks(seed, purpose, positions)[:, 0] >> 8).astype(np.int64)


def _clamped(x: np.ndarray) -> np.ndarray:
    return np.fmax(np.fmin(x, LARGEST), -LARGEST)


def penalised(logits: npt.ArrayLike, history: npt.ArrayLike, options: Sampling) -> np.ndarray:
    """Logits float32 [vocab] after the penalties; arguments and errors as ``reference.sampler.penalised``, and a
    ValueError for a vocabulary beyond :data:`MOST_TOKENS`. ``logits`` [vocab] float, taken as float32."""
    row = np.array(logits, np.float32)
    if row.ndim != 1 or not 0 < row.size <= MOST_TOKENS:
        raise ValueError(f"logits: shape {row.shape}: must be one row [vocab] of at most {MOST_TOKENS}")
    bad = np.flatnonzero(np.isnan(row) | (row == np.inf))
    if bad.size:
        raise ValueError(f"logits[{bad[0]}] = {row[bad[0]]}: must be finite or -inf")
    if not np.isfinite(row).any():
        raise ValueError(ERRORS[IMPOSSIBLE])
    c = constants(options)
    tokens = np.asarray(history, np.int64).reshape(-1)
    if c.last_n >= 0:
        tokens = tokens[max(0, tokens.size - c.last_n) :]
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < row.size:
        bad = tokens[(tokens < 0) | (tokens >= row.size)][0]
        raise ValueError(f"history: token {bad}: the vocabulary has {row.size} tokens")
    seen, count = np.unique(tokens, return_counts=True)
    possible = np.isfinite(row[seen])
    seen, count = seen[possible], count[possible].astype(np.float32)
    old = row[seen]
    with np.errstate(over="ignore"):
        new = _clamped(np.where(old <= 0, old * c.repeat, old / c.repeat))
        off = _clamped(_clamped(count * c.frequency) + c.presence)
        row[seen] = _clamped(new - off)
    return row


def _log2_units(kept: np.ndarray, scale: np.float32) -> np.ndarray:
    """s of a list's logits, descending float32 [k], against its first."""
    with np.errstate(over="ignore"):
        return np.fmax((kept - kept[0]) * scale, -SCORE_LIMIT)


def _masses(s: np.ndarray) -> np.ndarray:
    r, n = exp2(s)
    return rounded(r, MASS_BITS + n).astype(np.uint64)


def _ceil_share(total: int, share: int, bits: int) -> int:
    """ceil(total * share / 2^bits) as Python integers."""
    return -(-int(total) * int(share) >> bits)


def distribution(
    logits: npt.ArrayLike, history: npt.ArrayLike = (), options: Sampling = DEFAULT
) -> tuple[np.ndarray, np.ndarray]:
    """What the chain leaves of one row.

    logits   [vocab] float, taken as float32, finite or -inf
    history  [n] token ids before the one to be drawn, newest last

    Returns (ids int64 [k], masses uint64 [k]), descending by logit, ties to the lower id; the first mass is
    :data:`UNIT`, a later one may be 0. A greedy chain leaves one id. Raises ValueError as :func:`penalised` does.
    """
    row = penalised(logits, history, options)
    c = constants(options)
    key = selection_key(row)
    wanted = min(c.limit or row.size, row.size)
    # Everything at or above the last key wanted, so that the sort settles the ties there.
    ids = np.flatnonzero((key >= np.partition(key, row.size - wanted)[row.size - wanted]) & (row > -np.inf))
    ids = ids[np.argsort(~key[ids], kind="stable")][:wanted]
    kept = row[ids]
    at_one = _log2_units(kept, LOG2_E)
    if c.top_p < 1 << TOP_P_BITS:
        reach = np.cumsum(_masses(at_one))
        shortest = int((reach < _ceil_share(reach[-1], c.top_p, TOP_P_BITS)).sum()) + 1
        kept = kept[: max(shortest, c.min_keep)]
    kept = kept[at_one[: kept.size] >= c.least]
    return ids[: kept.size], _masses(_log2_units(kept, c.scale))


def draw(masses: Sequence[int] | np.ndarray, u: int) -> int:
    """Index of the first of ``masses`` whose cumulative sum, times 2^24, exceeds ``u`` times the sum of all.

    masses  [k] non-negative integers of any size, not all 0
    u       an integer of 24 bits

    An entry of mass 0 is never drawn.
    """
    reach = np.cumsum(np.array([int(m) for m in masses], object))
    threshold = reach[-1] * int(u) >> U_BITS
    return next(i for i, upto in enumerate(reach) if upto > threshold)


def sample(
    logits: npt.ArrayLike, history: npt.ArrayLike, options: Sampling, seed: int, position: int, purpose: int = PICK
) -> int:
    """The token id drawn from one row at ``position``, with the uniform number of ``purpose``.

    Arguments as :func:`distribution`; a greedy chain uses neither seed nor position. Returns an int. Raises ValueError
    as :func:`penalised` and :func:`uniform` do.
    """
    ids, masses = distribution(logits, history, options)
    if options.greedy:
        return int(ids[0])
    return int(ids[draw(masses, uniform(seed, position, purpose)[0])])


def distance_bound(masses: np.ndarray, scaled: np.ndarray) -> float:
    """Bound of the total variation between the distribution of ``masses`` [k] and float64's on the same logits and the
    same list, ``scaled`` = s [k] in log2 units: see the module. Of float64's own roundings it knows nothing."""
    share = masses.astype(np.float64) / float(masses.sum())
    error = 1.2e-7 + np.abs(scaled) * (np.log(2) * 3 * 2.0**-24)
    # 1.01: errors multiply, and the share itself is the rounded one's.
    return 1.01 * float(share @ error) + len(masses) * 2.0 ** -(MASS_BITS + 1)
