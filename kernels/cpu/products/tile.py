"""Rows of fixed-point numbers times tiles of codes, and how both are laid out. The bounds are in ``form.py``."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .form import (
    F32,
    F64,
    GROUP,
    HALF_CODE,
    I8,
    I32,
    I64,
    QUADS,
    WIDE,
    Form,
    constant,
    declared,
    form_for,
    load,
    shuffled,
    splat,
    store,
)

LINE = 4 * WIDE
"""Bytes of a float32 for each of 16 outputs."""

STARTS = 256
"""Offset of the sums' first values behind the limbs in a record."""

RECORD = 320
"""Bytes of one group's record: its limbs [limbs][64] int8 or int16, then -128 * sum of each limb as int32."""


@intrinsic
def pack(typing: Any, numbers: Any, record: Any) -> Any:
    """Fill the ``record`` of 64 int32 ``numbers``, at most 2^22; both are addresses."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        form, (numbers, record) = form_for(context), arguments
        wide = ir.VectorType(I32, GROUP)
        add = declared(b, f"llvm.vector.reduce.add.v{GROUP}i32", I32, [wide])
        rest = load(b, numbers, wide)
        for i in range(form.limbs):
            limb = rest
            if i < form.limbs - 1:
                rest = b.ashr(b.add(rest, constant(wide, 1 << (form.shift - 1))), constant(wide, form.shift))
                limb = b.sub(limb, b.shl(rest, constant(wide, form.shift)))
            narrow = b.trunc(limb, ir.VectorType(form.limb, GROUP))
            store(b, narrow, record, i * GROUP * form.limb.width // 8)
            store(b, b.mul(b.call(add, [limb]), I32(-HALF_CODE)), record, STARTS + 4 * i)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def _tile(rows: int, blocks: int) -> Callable[..., Any]:
    """The intrinsic for ``rows`` rows and ``blocks`` blocks of 16 outputs, of one group."""

    @intrinsic
    def tile(
        typing: Any, codes: Any, code_step: Any, records: Any, scale: Any, scale_step: Any, out: Any, out_step: Any
    ) -> Any:
        """out[row, block] [16] float32 += float32(sum of 64 products) * scale, all three rounded.

        codes    address of [16 quads][16 outputs][4] uint8, code + 128; the next block's ``code_step`` bytes further
        records  tuple of the rows' addresses, each of what :func:`pack` filled
        scale    address of [16] float32; the next block's ``scale_step`` bytes further
        out      address of [16] float32; the next block's, and behind a row's blocks the next row's, ``out_step`` bytes
                 further
        """

        def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            form = form_for(context)
            codes, code_step, records, scale, scale_step, out, out_step = arguments
            addresses = [b.extract_value(records, row) for row in range(rows)]
            bases = [b.add(codes, b.mul(code_step, I64(block))) for block in range(blocks)]
            parts = [_part(b, form, first, bases, addresses) for first in range(0, 4 * WIDE, form.part)]
            for block in range(blocks):
                scales = load(b, b.add(scale, b.mul(scale_step, I64(block))), ir.VectorType(F32, WIDE))
                for row in range(rows):
                    sums = []
                    for i in range(form.limbs):
                        start = splat(b, load(b, addresses[row], I32, STARTS + 4 * i), WIDE)
                        sums.append(b.add(form.total(b, [part[row, block, i] for part in parts]), start))
                    place = b.add(out, b.mul(out_step, I64(row * blocks + block)))
                    term = b.fmul(_rounded(b, form, sums), scales)
                    store(b, b.fadd(load(b, place, term.type), term), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 2, types.UniTuple(types.int64, rows), *[types.int64] * 4), code

    return tile


def _part(b: Any, form: Form, first: int, codes: list, records: list) -> dict[tuple[int, int, int], Any]:
    """(row, block, limb) -> sums over all quads of the codes ``first`` to ``first + form.part`` of each quad."""
    sums: dict[tuple[int, int, int], Any] = {}
    size = form.limb.width // 8
    quad_type = ir.IntType(4 * form.limb.width)
    for quad in range(QUADS):
        pieces = [load(b, base, ir.VectorType(I8, form.part), quad * 4 * WIDE + first) for base in codes]
        for i in range(form.limbs):
            for row, record in enumerate(records):
                number = load(b, record, quad_type, (i * GROUP + 4 * quad) * size)
                signed = b.bitcast(splat(b, number, form.part // 4), ir.VectorType(form.limb, form.part))
                for block, piece in enumerate(pieces):
                    before = sums.get((row, block, i), constant(form.sums, 0))
                    sums[row, block, i] = form.add(b, before, piece, signed)
    return sums


def _rounded(b: Any, form: Form, sums: list) -> Any:
    """float32 [16] of the limbs' sums, each times its power of two. Exact in float64, so rounded once."""
    double = ir.VectorType(F64, WIDE)
    low = sums[0] if form.limbs == 2 else b.add(sums[0], b.shl(sums[1], constant(sums[1].type, form.shift)))
    high = b.fmul(b.sitofp(sums[-1], double), constant(double, 2.0 ** (form.shift * (form.limbs - 1))))
    return b.fptrunc(b.fadd(high, b.sitofp(low, double)), ir.VectorType(F32, WIDE))


tile_4_1, tile_2_1, tile_1_4, tile_1_1 = (_tile(*sizes) for sizes in ((4, 1), (2, 1), (1, 4), (1, 1)))


@intrinsic
def clear(typing: Any, lines: Any, count: Any) -> Any:
    """Fill ``count`` lines of 16 float32 from the address ``lines`` on with +0."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        lines, count = arguments
        with cgutils.for_range(b, count) as loop:
            store(b, constant(ir.VectorType(F32, WIDE), 0.0), b.add(lines, b.mul(loop.index, I64(LINE))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def finish(typing: Any, columns: Any, count: Any, factor: Any, out: Any) -> Any:
    """out [16] float32 = the ``columns`` [count, 16] as a butterfly, the widest stride first, times ``factor``, a power
    of two, float64; rounded once. ``count`` is 1, 2, 4 or 8."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        columns, count, factor, out = arguments
        single, double = ir.VectorType(F32, WIDE), ir.VectorType(F64, WIDE)
        for size in (1, 2, 4, 8):
            with b.if_then(b.icmp_signed("==", count, I64(size))):
                terms = [load(b, columns, single, LINE * i) for i in range(size)]
                while len(terms) > 1:
                    half = len(terms) // 2
                    terms = [b.fadd(x, y) for x, y in zip(terms[:half], terms[half:], strict=True)]
                scaled = b.fmul(b.fpext(terms[0], double), splat(b, factor, WIDE))
                store(b, b.fptrunc(scaled, single), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64, types.int64), code


def _transposed(b: Any, rows: list) -> list:
    """16 vectors of 16 elements with rows and columns exchanged: in four rounds, in blocks of 1, 2, 4 and 8."""
    rows = list(rows)
    for step in (1, 2, 4, 8):
        low = [lane if not lane & step else WIDE + lane - step for lane in range(WIDE)]
        high = [lane + step if not lane & step else WIDE + lane for lane in range(WIDE)]
        for i in range(WIDE):
            if not i & step:
                x, y = rows[i], rows[i + step]
                rows[i], rows[i + step] = shuffled(b, x, y, low), shuffled(b, x, y, high)
    return rows


@intrinsic
def transpose_words(typing: Any, source: Any, step: Any, out: Any, out_step: Any) -> Any:
    """out[j, i] = source[i, j] of 16 by 16 elements of 4 bytes; a next row is ``step`` or ``out_step`` bytes further.

    source, out  addresses
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, step, out, out_step = arguments
        row = ir.VectorType(I32, WIDE)
        rows = [load(b, b.add(source, b.mul(step, I64(i))), row) for i in range(WIDE)]
        for j, column in enumerate(_transposed(b, rows)):
            store(b, column, b.add(out, b.mul(out_step, I64(j))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code


@intrinsic
def transpose(typing: Any, places: Any, offset: Any, out: Any) -> Any:
    """Fill ``out`` [16 quads][16 cells][4] uint8 with code + 128 of 16 cells of 64 int8.

    places  address of the cells' 16 addresses, int64
    offset  bytes from there to the codes
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        places, offset, out = arguments
        row = ir.VectorType(I32, WIDE)
        rows = [load(b, b.add(load(b, places, I64, 8 * cell), offset), row) for cell in range(WIDE)]
        for quad, values in enumerate(_transposed(b, rows)):
            # Flipping the sign bit of a byte adds 128.
            store(b, b.xor(values, constant(row, -0x7F7F7F80)), out, quad * 4 * WIDE)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), code
