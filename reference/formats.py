"""The KV formats: codes with a scale per group of dims, exact to the bit.

Source: design section 7. float32 in, IEEE round to nearest even, no fused operation; every function works on the last
axis.

==========  =====  =================================================================================
format      group  rule
==========  =====  =================================================================================
``int8``    64     scale = fp16(amax / 127); code = clamp(rint(x / scale), -127, 127), 0 where scale is 0
``q4_0``    32     d = (value of largest magnitude, the positive one on a tie) / -8, so negative as often as not;
                   scale = fp16(d); code = clamp(trunc(x * (1/d) + 8.5), 0, 15) - 8 with the unrounded d, 0 where
                   scale is 0. On rotated vectors (:func:`rotate`).
``fp16``    -      round to nearest even
``f64``     -      the values themselves, kept in float64: the truth before any quantisation, for the reference alone
==========  =====  =================================================================================

``k8v4`` keeps K as ``int8`` and V as ``q4_0``.
"""

import numpy as np
import numpy.typing as npt

FORMATS = {
    "int8": ("int8", "int8"),
    "q4_0": ("q4_0", "q4_0"),
    "k8v4": ("int8", "q4_0"),
    "fp16": ("fp16", "fp16"),
    "f64": ("f64", "f64"),
}
"""Format of a pool -> (coding of K, coding of V)."""

EXACT_FORMATS = ("int8", "q4_0", "k8v4")
"""Formats with integer codes, for which the exact arithmetic is defined."""

GROUP = {"int8": 64, "q4_0": 32}
"""Dims that share a scale."""


def _grouped(x: npt.ArrayLike, group: int) -> np.ndarray:
    x = np.asarray(x, np.float32)
    if x.shape[-1] % group:
        raise ValueError(f"last axis = {x.shape[-1]}: must be a multiple of the group of {group} dims")
    return x.reshape(*x.shape[:-1], x.shape[-1] // group, group)


def _checked_scale(scale: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(scale).all():
        raise ValueError(f"{what}: values must be finite and their scale must fit fp16 (at most 65504)")
    return scale


def encode_int8(x: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [..., dim] and scales float16 [..., dim/64] of ``x`` [..., dim]. Raises ValueError where a scale would
    not be finite."""
    groups = _grouped(x, GROUP["int8"])
    amax = np.abs(groups).max(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = _checked_scale((amax / np.float32(127)).astype(np.float16), "int8")
    stored = scale.astype(np.float32)[..., None]
    codes = np.rint(groups / np.where(stored > 0, stored, np.float32(1)))
    codes = np.where(stored > 0, np.clip(codes, -127, 127), 0)
    return codes.astype(np.int8).reshape(np.shape(x)), scale


def encode_q4_0(x: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [..., dim] in -8..7 and scales float16 [..., dim/32] of ``x`` [..., dim], which the caller has
    rotated.

    Raises ValueError where a scale would not be finite.
    """
    groups = _grouped(x, GROUP["q4_0"])
    high, low = groups.max(axis=-1), groups.min(axis=-1)
    extreme = np.where(high >= -low, high, low)
    d = extreme / np.float32(-8)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = _checked_scale(d.astype(np.float16), "q4_0")
        # Which of +0 and -0 is larger differs between libraries, so a scale of 0 is always +0.
        scale = np.where(scale == 0, np.float16(0), scale)
        # 1/d of a subnormal d can overflow; such a group is below the fp16 range and its scale is 0 whatever its codes
        # are.
        inverse = np.where(scale != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)
    codes = np.clip(np.trunc(groups * inverse[..., None] + np.float32(8.5)), 0, 15) - 8
    return codes.astype(np.int8).reshape(np.shape(x)), scale


def decode(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """float64 values [..., dim] of ``codes`` [..., dim] and ``scale`` [..., groups]; exact."""
    groups = codes.reshape(*scale.shape, codes.shape[-1] // scale.shape[-1]).astype(np.float64)
    return (groups * scale.astype(np.float64)[..., None]).reshape(codes.shape)


def pack_nibbles(codes: npt.ArrayLike) -> np.ndarray:
    """Bytes uint8 [..., dim/2] of q4_0 codes int8 [..., dim]: of every 32, element j in the low nibble of byte j,
    element 16+j in the high one."""
    codes = np.asarray(codes, np.int8)
    *axes, dim = codes.shape
    raw = (codes + 8).astype(np.uint8).reshape(*axes, dim // 32, 2, 16)
    return (raw[..., 0, :] | raw[..., 1, :] << 4).reshape(*axes, dim // 2)


def unpack_nibbles(packed: npt.ArrayLike) -> np.ndarray:
    """Codes int8 [..., dim] in -8..7 from bytes uint8 [..., dim/2]; the inverse of :func:`pack_nibbles`."""
    packed = np.asarray(packed, np.uint8)
    *axes, size = packed.shape
    raw = packed.reshape(*axes, size // 16, 1, 16)
    both = np.concatenate([raw & 15, raw >> 4], axis=-2)
    return (both.astype(np.int8) - 8).reshape(*axes, 2 * size)


def pack_q4_0(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The 18-byte blocks [..., dim/32, 18] uint8 in which q4_0 is exchanged: the fp16 scale, little-endian, then 16
    bytes of nibbles."""
    nibbles = pack_nibbles(codes).reshape(*scale.shape, 16)
    return np.concatenate([scale.astype("<f2")[..., None].view(np.uint8), nibbles], axis=-1)


def unpack_q4_0(blocks: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [..., dim] and scales float16 [..., dim/32] of 18-byte ``blocks`` uint8 [..., dim/32, 18].

    Raises ValueError when the last axis is not 18 bytes.
    """
    blocks = np.ascontiguousarray(blocks, np.uint8)
    if blocks.shape[-1] != 18:
        raise ValueError(f"blocks: last axis = {blocks.shape[-1]}: a q4_0 block has 18 bytes")
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float16)
    return unpack_nibbles(blocks[..., 2:].reshape(*blocks.shape[:-2], 16 * blocks.shape[-2])), scale


def rotate(x: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform over the last axis, its own inverse; dtype float32 or float64 is kept.

    Butterflies of stride 1, 2, 4, ... (a + b at the lower index, a - b at the upper), then times 1/sqrt(dim). For 256
    dims that is 1/16, so in float32 the bits are those of the additions in this order. Raises ValueError unless the
    last axis is a power of 4.
    """
    x = np.asarray(x)
    dim = x.shape[-1]
    if dim < 1 or dim & (dim - 1) or dim.bit_length() % 2 == 0:
        raise ValueError(f"last axis = {dim}: the rotation needs a power of 4, so that its factor is a power of two")
    stride = 1
    with np.errstate(invalid="ignore", over="ignore"):
        while stride < dim:
            pairs = x.reshape(*x.shape[:-1], dim // (2 * stride), 2, stride)
            low, high = pairs[..., 0, :], pairs[..., 1, :]
            x = np.stack([low + high, low - high], axis=-2).reshape(*x.shape[:-1], dim)
            stride *= 2
        return x * x.dtype.type(dim**-0.5)
