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

from typing import Any, NamedTuple

from llvmlite import ir

GROUP = 64
"""Products of one sum: inputs of a linear layer, or dims of a cell."""

WIDE = 16
"""Sums that are made together: those of 16 outputs, or of 16 cells."""

QUADS = GROUP // 4
"""A matrix of codes is held in pieces of 16 outputs by 4 inputs: [16 quads][16 outputs][4 inputs] uint8 per group."""

TILE_BYTES = GROUP * WIDE
"""Bytes of the codes of 16 outputs and one group."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
HALF_CODE = 128
"""What is added to a code so that it is an unsigned byte."""


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
            function = declared(b, f"llvm.x86.avx512.vpdpbusd.{8 * self.part}", self.sums, [self.sums] * 3)
            return b.call(function, [sums, b.bitcast(unsigned, self.sums), b.bitcast(signed, self.sums)])
        wide = ir.VectorType(I32, self.part)
        products = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
        return b.add(sums, _pairs(b, products))

    def total(self, b: Any, parts: list) -> Any:
        """The sums of four products of all ``parts``, one behind the other."""
        if not self.vnni:
            parts = [_pairs(b, sums) for sums in parts]
        while len(parts) > 1:
            parts = [joined(b, *parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]


def form_of(features: str) -> Form:
    """The form for a processor with ``features``, as LLVM writes them: ``+avx2,-avx512f,...``."""
    found = set(features.split(","))
    if {"+avx512vnni", "+avx512bw"} <= found:
        return Form(3, 8, I8, 64, True)
    if "+avxvnni" in found:
        return Form(3, 8, I8, 32, True)
    return Form(2, 11, I16, 32 if "+avx512bw" in found else 16, False)


def form_for(context: Any) -> Form:
    return form_of(context.codegen().magic_tuple()[2])


def declared(b: Any, name: str, result: Any, arguments: list) -> Any:
    return b.module.globals.get(name) or ir.Function(b.module, ir.FunctionType(result, arguments), name)


def shuffled(b: Any, x: Any, y: Any, order: list) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))


def _pairs(b: Any, x: Any) -> Any:
    """x [2n] as n sums of neighbours."""
    even, odd = (shuffled(b, x, x, list(range(first, x.type.count, 2))) for first in (0, 1))
    return b.add(even, odd)


def joined(b: Any, x: Any, y: Any) -> Any:
    return shuffled(b, x, y, list(range(2 * x.type.count)))


def splat(b: Any, x: Any, count: int) -> Any:
    vector = ir.VectorType(x.type, count)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), x, I32(0))
    return shuffled(b, one, one, [0] * count)


def constant(vector: ir.VectorType, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def load(b: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    value = b.load(b.inttoptr(b.add(address, I64(offset)), kind.as_pointer()))
    value.align = 1
    return value


def store(b: Any, value: Any, address: Any, offset: int = 0) -> None:
    b.store(value, b.inttoptr(b.add(address, I64(offset)), value.type.as_pointer())).align = 1
