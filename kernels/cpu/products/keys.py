"""Dots of encoded index keys and queries: 16 keys at a time, pairs of 16-bit integers multiplied and added.

Source: design section 4, "Keys of 16 bits". x86 has ``vpmaddwd`` for a pair, ARM ``smlal``; LLVM finds them in the IR
below. A code of the query is cut into two limbs, code = low + 256 * high, so that no int32 overflows: a key's code is
at most 32,639 and a limb at most 128 in magnitude, and :data:`MOST_DIMS` products of them stay below 2^31.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .form import F32, F64, I16, I32, I64, WIDE, constant, load, shuffled, splat, store

MOST_DIMS = 512
"""512 * 32,639 * 128 < 2^31."""

LINE = 4 * WIDE
"""Bytes of a pair of int16 of 16 keys."""


@intrinsic
def key_dots(typing: Any, keys: Any, pairs: Any, limbs: Any, out: Any) -> Any:
    """out [16] float32 = the dots of 16 keys and one query, each rounded once.

    keys   address of the codes [pairs][16 keys][2] int16
    pairs  half the number of dims
    limbs  address of the query's limbs [2 limbs][pairs][2] int16, the low ones first
    out    address
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        keys, pairs, limbs, out = arguments
        sums, wide, narrow = (ir.VectorType(*t) for t in ((I32, WIDE), (I32, 2 * WIDE), (I16, 2 * WIDE)))
        totals = [cgutils.alloca_once_value(b, constant(sums, 0)) for _ in range(2)]
        with cgutils.for_range(b, pairs) as loop:
            codes = b.sext(load(b, b.add(keys, b.mul(loop.index, I64(LINE))), narrow), wide)
            for limb, total in enumerate(totals):
                place = b.add(limbs, b.mul(b.add(loop.index, b.mul(pairs, I64(limb))), I64(4)))
                pair = b.bitcast(splat(b, load(b, place, I32), WIDE), narrow)
                products = b.mul(codes, b.sext(pair, wide))
                even, odd = (shuffled(b, products, products, list(range(i, 2 * WIDE, 2))) for i in range(2))
                b.store(b.add(b.load(total), b.add(even, odd)), total)
        double = ir.VectorType(F64, WIDE)
        low, high = (b.sitofp(b.load(total), double) for total in totals)
        dots = b.fadd(b.fmul(high, constant(double, 256.0)), low)
        store(b, b.fptrunc(dots, ir.VectorType(F32, WIDE)), out)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code
