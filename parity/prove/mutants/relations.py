"""Float kernels within every bound that break an invariance they declare: each is seen by its relation alone.

In the exact arithmetic another order of additions is no mistake, and every other one of these changes bytes.
"""

from typing import Any

import numpy as np

from ..mutant import FLOAT, Right, mutant

DECLARED = "declared invariances: other bytes, within the bound"


def _up(x: np.ndarray, bits: int) -> np.ndarray:
    """``x`` rounded upward to a multiple of 2^-bits."""
    return (np.ceil(x.astype(np.float64) * 2.0**bits) * 2.0**-bits).astype(np.float32)


def _nudged(out: np.ndarray) -> np.ndarray:
    """A result as another order of additions might give it: the last bit of every number but 0."""
    with np.errstate(over="ignore"):
        return np.where(out == 0, out, np.nextafter(out, 2 * out))


def _other_bits(name: str, operation: str, when: Any) -> None:
    @mutant(operation, name, DECLARED, FLOAT)
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        return _nudged(out) if when(a) else out


_other_bits("sums in another order for a single row", "attend", lambda a: len(a.q) == 1)
_other_bits("sums in another order from 16 rows on", "attend", lambda a: len(a.q) >= 16)
_other_bits("sums in another order for pages of 64 and more", "attend", lambda a: _page(a.kv) >= 64)
_other_bits("sums in another order in the schedule prompt", "attend", lambda a: a.schedule == "prompt")
_other_bits("sums in another order in more than 7 splits", "attend", lambda a: a.splits > 7)
_other_bits("scores in another order for more than 32 rows", "block_scores", lambda a: len(a.q_idx) > 32)
_other_bits("scores in another order in the transposed schedule", "block_scores", lambda a: a.schedule == "transposed")


def _page(kv: Any) -> int:
    return (kv[0] if isinstance(kv, list) else kv).pool.page_size


@mutant("attend", "the output is rounded upward", DECLARED, FLOAT)
def _upward(right: Right, a: Any) -> Any:
    # To 22 bits of significand: a power of two makes no difference.
    fraction, power = np.frexp(right(a))
    return np.ldexp(_up(fraction, 22), power)


@mutant("attend", "a small number is added to the output", DECLARED, FLOAT)
def _added(right: Right, a: Any) -> Any:
    out = right(a)
    return np.where(out == 0, out, out + np.float32(2.0**-30))


@mutant("attend", "the query's last bits are cut off", DECLARED, FLOAT)
def _cut_off(right: Right, a: Any) -> Any:
    with np.errstate(invalid="ignore"):
        a.q = _up(a.q, 23)
    return right(a)


@mutant("attend", "the second KV head is summed in another order", DECLARED, FLOAT)
def _second_head(right: Right, a: Any) -> Any:
    out = right(a)
    half = out.shape[1] // 2
    out[:, half:] = _nudged(out[:, half:])
    return out
