"""Codes of cells times their weights, added over cells: the value pass of attention.

A weight is an unsigned integer of at most 2^31, held as four unsigned bytes; a code is signed. The int32 sums of a byte
hold 255 * 128 * 65,536 < 2^31: FOLD cells, then they must be moved to int64. Dims stand in an order that needs no
exchange between the 128-bit lanes of a vector: place 16 * v + 4 * lane + j holds dim 16 * lane + 4 * v + j.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.jit import kernel
from .form import GROUP, I8, I16, I32, I64, WIDE, constant, form_for, load, shuffled, splat, store

FOLD = 1 << 16
"""Cells after which the int32 sums are full."""

LIMBS = 4
"""Bytes of a weight."""

QUAD_BYTES = 4 * GROUP
"""Bytes of the codes of 4 cells."""

WEIGHT_BYTES = 4 * LIMBS
"""Bytes of the weights of 4 cells."""


@kernel
def place_of(dim):
    """The place of a dim in the order above."""
    return 16 * (dim >> 2 & 3) + 4 * (dim >> 4) + (dim & 3)


def _lanes(size: int, lane: int, second: bool) -> list[int]:
    """Order that takes, per 128-bit lane of ``lane`` elements, one half of x's and of y's in turn."""
    order = []
    for first in range(0, size, lane):
        for i in range(lane // 2):
            place = first + i + second * lane // 2
            order += [place, size + place]
    return order


@intrinsic
def interleave(typing: Any, places: Any, offset: Any, out: Any) -> Any:
    """Fill ``out`` [64 dims][4 cells] int8, the dims in the order above, from 4 cells of 64 int8.

    places  address of the cells' 4 addresses, int64
    offset  bytes from there to the codes
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        places, offset, out = arguments
        row = ir.VectorType(I8, GROUP)
        cells = [load(b, b.add(load(b, places, I64, 8 * cell), offset), row) for cell in range(4)]
        pairs = ir.VectorType(I16, GROUP // 2)
        vectors = []
        for half in (False, True):
            low, high = (shuffled(b, x, y, _lanes(GROUP, 16, half)) for x, y in (cells[:2], cells[2:]))
            low, high = b.bitcast(low, pairs), b.bitcast(high, pairs)
            vectors += [shuffled(b, low, high, _lanes(GROUP // 2, 8, part)) for part in (False, True)]
        for v, vector in enumerate(vectors):
            store(b, vector, out, GROUP * v)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), code


@intrinsic
def pack_weights(typing: Any, weights: Any, out: Any) -> Any:
    """Fill ``out`` [4 quads][4 bytes][4 cells] uint8 from the weights [16] uint32 of 16 cells; both are addresses."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        weights, out = arguments
        numbers = load(b, weights, ir.VectorType(I8, 4 * WIDE))
        # The lowest byte of a number comes first in memory, as on every processor that numba supports.
        order = [16 * quad + 4 * cell + limb for quad in range(4) for limb in range(LIMBS) for cell in range(4)]
        store(b, shuffled(b, numbers, numbers, order), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def accumulate(typing: Any, weights: Any, values: Any, quads: Any, sums: Any) -> Any:
    """sums[byte, dim] int32 += the sum over cells of byte * code.

    weights  address of [quads][4 bytes][4 cells] uint8
    values   address of [quads][64 dims][4 cells] int8
    quads    cells / 4
    sums     address of [4 bytes][64 dims] int32, the dims in the order above
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        form = form_for(context)
        weights, values, quads, sums = arguments
        # As many sums at a time as there are registers for.
        together = min(QUAD_BYTES, form.part * (4 if form.part == GROUP else 2))
        for begin in range(0, QUAD_BYTES, together):
            firsts = range(begin, begin + together, form.part)
            held = {(limb, first): cgutils.alloca_once(b, form.sums) for limb in range(LIMBS) for first in firsts}
            for place in held.values():
                b.store(constant(form.sums, 0), place)
            with cgutils.for_range(b, quads) as loop:
                weight = b.add(weights, b.mul(loop.index, I64(WEIGHT_BYTES)))
                value = b.add(values, b.mul(loop.index, I64(QUAD_BYTES)))
                codes = {first: load(b, value, ir.VectorType(I8, form.part), first) for first in firsts}
                for limb in range(LIMBS):
                    byte = splat(b, load(b, weight, I32, 4 * limb), form.part // 4)
                    byte = b.bitcast(byte, ir.VectorType(I8, form.part))
                    for first in firsts:
                        place = held[limb, first]
                        b.store(form.add(b, b.load(place), byte, codes[first]), place)
            for (limb, first), place in held.items():
                total = form.total(b, [b.load(place)])
                offset = 4 * GROUP * limb + first
                store(b, b.add(load(b, sums, total.type, offset), total), sums, offset)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code
