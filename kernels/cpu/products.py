"""Exact sums of products of small integers, in the instructions that processors have for them, as LLVM IR.

Three forms of the same sums. Which one is compiled depends on the features of the processor that numba compiles for
(``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` included). numba's cache is kept apart by these features, so two forms
never share an entry.

- AVX512-VNNI and AVX-VNNI: ``vpdpbusd`` adds four products of an unsigned by a signed byte to an int32.
- Every other processor: products of 16-bit integers, added in pairs; x86 has ``vpmaddwd`` for that, ARM ``smlal``.

**Limbs.** A fixed-point number v, |v| <= 2^22, is cut into signed limbs, v = sum of limb_i * 2^(shift * i): three of 8
bits (``vpdpbusd``) or two of 11 bits (pairs). Each limb but the last is from -2^(shift-1) to 2^(shift-1) - 1; the last
one is at most 2^22 / 2^16 = 64, or 2^22 / 2^11 = 2048.

**Signs.** ``vpdpbusd`` takes an unsigned byte and a signed one. A code c, any int8, is held as u = c + 128, so that
sum(c * limb) = sum(u * limb) - 128 * sum(limb): a sum begins at -128 * sum(limb) instead of 0.

**Bounds.** No int32 overflows, and ``vpdpbusd`` does not saturate. Of 64 products, bytes: |128 * sum(limb)| <= 128 * 64
* 128 = 2^20 and |sum(u * limb)| <= 255 * 64 * 128 < 2^21, so limb 0 + limb 1 * 2^8 stays below 2^30. Pairs: at most 128
* 64 * 2048 = 2^24, and 255 * 64 * 2048 < 2^25. The whole sum is at most 64 * 128 * 2^22 = 2^35, exact in a float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GROUP = 64
"""Inputs of one sum."""

WIDE = 16
"""Sums that are made together: those of 16 outputs, or of 16 cells."""

QUADS = GROUP // 4
"""A matrix of codes is held in pieces of 16 outputs by 4 inputs: [16 quads][16 outputs][4 inputs] uint8 per group."""

TILE_BYTES = GROUP * WIDE
"""Bytes of the codes of 16 outputs and one group."""

STARTS = 256
"""Offset of the sums' first values behind the limbs in a record."""

RECORD = 320
"""Bytes of one group's record: its limbs [limbs][64] int8 or int16, then -128 * sum of each limb as int32."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
HALF_CODE = 128


class Form(NamedTuple):
    """One way to compute the sums.

    limbs  of a fixed-point number; each has ``shift`` bits and is held in ``limb`` (an IR type)
    part   codes multiplied at once, so many that the sums of four rows stay in registers
    vnni   whether there is ``vpdpbusd``
    """

    limbs: int
    shift: int
    limb: ir.IntType
    part: int
    vnni: bool

    @property
    def sums(self) -> ir.VectorType:
        """The type of the sums of one part: four products in each, or two that are added at the end."""
        return ir.VectorType(I32, self.part // 4 if self.vnni else self.part // 2)

    def add(self, b: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
        """``sums`` plus the products of ``unsigned`` [part] uint8 and ``signed`` [part] int8 or int16, each of at most
        25 bits."""
        if self.vnni:
            function = _declared(b, f"llvm.x86.avx512.vpdpbusd.{8 * self.part}", self.sums, [self.sums] * 3)
            return b.call(function, [sums, b.bitcast(unsigned, self.sums), b.bitcast(signed, self.sums)])
        wide = ir.VectorType(I32, self.part)
        products = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
        return b.add(sums, _pairs(b, products))

    def total(self, b: Any, parts: list) -> Any:
        """The sums of four products of all ``parts``, one behind the other."""
        if not self.vnni:
            parts = [_pairs(b, sums) for sums in parts]
        while len(parts) > 1:
            parts = [_joined(b, *parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]


def form_of(features: str) -> Form:
    """The form for a processor with ``features``, as LLVM writes them: ``+avx2,-avx512f,...``."""
    found = set(features.split(","))
    if {"+avx512vnni", "+avx512bw"} <= found:
        return Form(3, 8, I8, 64, True)
    if "+avxvnni" in found:
        return Form(3, 8, I8, 32, True)
    return Form(2, 11, I16, 32 if "+avx512bw" in found else 16, False)


def _form(context: Any) -> Form:
    return form_of(context.codegen().magic_tuple()[2])


def _declared(b: Any, name: str, result: Any, arguments: list) -> Any:
    return b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(result, arguments), name)


def _shuffled(b: Any, x: Any, y: Any, order: list) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))


def _pairs(b: Any, x: Any) -> Any:
    """x [2n] as n sums of neighbours."""
    even, odd = (_shuffled(b, x, x, list(range(first, x.type.count, 2))) for first in (0, 1))
    return b.add(even, odd)


def _joined(b: Any, x: Any, y: Any) -> Any:
    return _shuffled(b, x, y, list(range(2 * x.type.count)))


def _splat(b: Any, x: Any, count: int) -> Any:
    vector = ir.VectorType(x.type, count)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), x, I32(0))
    return _shuffled(b, one, one, [0] * count)


def _constant(vector: ir.VectorType, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _load(b: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    value = b.load(b.inttoptr(b.add(address, I64(offset)), kind.as_pointer()))
    value.align = 1
    return value


def _store(b: Any, value: Any, address: Any, offset: int = 0) -> None:
    b.store(value, b.inttoptr(b.add(address, I64(offset)), value.type.as_pointer())).align = 1


@intrinsic
def pack(typing: Any, numbers: Any, record: Any) -> Any:
    """Fill the ``record`` of 64 int32 ``numbers``, at most 2^22; both are addresses."""

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        form, (numbers, record) = _form(context), arguments
        wide = ir.VectorType(I32, GROUP)
        add = _declared(b, f"llvm.vector.reduce.add.v{GROUP}i32", I32, [wide])
        rest = _load(b, numbers, wide)
        for i in range(form.limbs):
            limb = rest
            if i < form.limbs - 1:
                rest = b.ashr(b.add(rest, _constant(wide, 1 << (form.shift - 1))), _constant(wide, form.shift))
                limb = b.sub(limb, b.shl(rest, _constant(wide, form.shift)))
            narrow = b.trunc(limb, ir.VectorType(form.limb, GROUP))
            _store(b, narrow, record, i * GROUP * form.limb.width // 8)
            _store(b, b.mul(b.call(add, [limb]), I32(-HALF_CODE)), record, STARTS + 4 * i)
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
            form = _form(context)
            codes, code_step, records, scale, scale_step, out, out_step = arguments
            addresses = [b.extract_value(records, row) for row in range(rows)]
            bases = [b.add(codes, b.mul(code_step, I64(block))) for block in range(blocks)]
            parts = [_part(b, form, first, bases, addresses) for first in range(0, 4 * WIDE, form.part)]
            for block in range(blocks):
                scales = _load(b, b.add(scale, b.mul(scale_step, I64(block))), ir.VectorType(F32, WIDE))
                for row in range(rows):
                    sums = []
                    for i in range(form.limbs):
                        start = _splat(b, _load(b, addresses[row], I32, STARTS + 4 * i), WIDE)
                        sums.append(b.add(form.total(b, [part[row, block, i] for part in parts]), start))
                    place = b.add(out, b.mul(out_step, I64(row * blocks + block)))
                    term = b.fmul(_rounded(b, form, sums), scales)
                    _store(b, b.fadd(_load(b, place, term.type), term), place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 2, types.UniTuple(types.int64, rows), *[types.int64] * 4), code

    return tile


def _part(b: Any, form: Form, first: int, codes: list, records: list) -> dict[tuple[int, int, int], Any]:
    """(row, block, limb) -> sums over all quads of the codes ``first`` to ``first + form.part`` of each quad."""
    sums = {}
    size = form.limb.width // 8
    quad_type = ir.IntType(4 * form.limb.width)
    for quad in range(QUADS):
        pieces = [_load(b, base, ir.VectorType(I8, form.part), quad * 4 * WIDE + first) for base in codes]
        for i in range(form.limbs):
            for row, record in enumerate(records):
                number = _load(b, record, quad_type, (i * GROUP + 4 * quad) * size)
                signed = b.bitcast(_splat(b, number, form.part // 4), ir.VectorType(form.limb, form.part))
                for block, piece in enumerate(pieces):
                    before = sums.get((row, block, i), _constant(form.sums, 0))
                    sums[row, block, i] = form.add(b, before, piece, signed)
    return sums


def _rounded(b: Any, form: Form, sums: list) -> Any:
    """float32 [16] of the limbs' sums, each times its power of two. Exact in float64, so rounded once."""
    double = ir.VectorType(F64, WIDE)
    low = sums[0] if form.limbs == 2 else b.add(sums[0], b.shl(sums[1], _constant(sums[1].type, form.shift)))
    high = b.fmul(b.sitofp(sums[-1], double), _constant(double, 2.0 ** (form.shift * (form.limbs - 1))))
    return b.fptrunc(b.fadd(high, b.sitofp(low, double)), ir.VectorType(F32, WIDE))


tile_4_1, tile_2_1, tile_1_4, tile_1_1 = (_tile(*sizes) for sizes in ((4, 1), (2, 1), (1, 4), (1, 1)))


@intrinsic
def transpose(typing: Any, places: Any, out: Any) -> Any:
    """Fill ``out`` [16 quads][16 cells][4] uint8 with code + 128 of 16 cells of 64 int8.

    places  address of the cells' 16 addresses, int64
    """

    def code(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        places, out = arguments
        row = ir.VectorType(I32, WIDE)
        rows = [_load(b, _load(b, places, I64, 8 * cell), row) for cell in range(WIDE)]
        # Four rounds in which rows and columns change places in blocks of 1, 2, 4 and 8.
        for step in (1, 2, 4, 8):
            low = [lane if not lane & step else WIDE + lane - step for lane in range(WIDE)]
            high = [lane + step if not lane & step else WIDE + lane for lane in range(WIDE)]
            for i in range(WIDE):
                if not i & step:
                    x, y = rows[i], rows[i + step]
                    rows[i], rows[i + step] = _shuffled(b, x, y, low), _shuffled(b, x, y, high)
        for quad, values in enumerate(rows):
            # Flipping the sign bit of a byte adds 128.
            _store(b, b.xor(values, _constant(row, -0x7F7F7F80)), out, quad * 4 * WIDE)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code
