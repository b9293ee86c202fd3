"""The simulator's tensor cores: ``mma`` and ``ldmatrix``, with the fragments of the PTX reference (m16n8k32 of
8-bit integers, m16n8k16 of halves).

The compute capability that each needs is the PTX reference's ("Target ISA notes")."""

import struct
from typing import Any

import numpy as np

from ..toolchain.constants import FULL_WARP, WARP
from .numbers import ALL_BITS
from .state import State, requires
from .sync import warp_operation

_G, _T = np.arange(WARP) // 4, np.arange(WARP) % 4
_BYTE = np.arange(4)
_A_ROW = np.stack([_G, _G + 8, _G, _G + 8], 1)[:, :, None]
_A_COL = np.stack([4 * _T, 4 * _T, 16 + 4 * _T, 16 + 4 * _T], 1)[:, :, None] + _BYTE
_B_ROW = np.stack([4 * _T, 16 + 4 * _T], 1)[:, :, None] + _BYTE
_B_COL = _G[:, None, None]
_C_ROW = np.stack([_G, _G, _G + 8, _G + 8], 1)
_C_COL = np.stack([2 * _T, 2 * _T + 1, 2 * _T, 2 * _T + 1], 1)


def _product(values, kind):
    registers = (np.array(values, np.int64) & ALL_BITS).astype(np.uint32)
    a = np.empty((16, 32), np.float64)
    b = np.empty((32, 8), np.float64)
    a[_A_ROW, _A_COL] = np.ascontiguousarray(registers[:, :4]).view(kind).reshape(WARP, 4, 4)
    b[_B_ROW, _B_COL] = np.ascontiguousarray(registers[:, 4:6]).view(np.int8).reshape(WARP, 2, 4)
    # 32 products of 16 bits: exact in float64.
    d = (a @ b).astype(np.int64)[_C_ROW, _C_COL] + registers[:, 6:].view(np.int32)
    return [tuple(row) for row in d.astype(np.int32).tolist()]


def mma_s8_m16n8k32(lanes: Any, values: Any) -> Any:
    """D = A·B + C, A int8."""
    return _product(values, np.int8)


def mma_u8_m16n8k32(lanes: Any, values: Any) -> Any:
    """D = A·B + C, A uint8."""
    return _product(values, np.uint8)


def mma_s8(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """The registers of D = A B + C, A int8 [16, 32] and B int8 [32, 8]."""
    requires((8, 0), "mma.m16n8k32")
    return warp_operation(mma_s8_m16n8k32, FULL_WARP, (a0, a1, a2, a3, b0, b1, c0, c1, c2, c3))


def mma_u8(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """The registers of D = A B + C, A uint8 [16, 32] and B int8 [32, 8]."""
    requires((8, 0), "mma.m16n8k32")
    return warp_operation(mma_u8_m16n8k32, FULL_WARP, (a0, a1, a2, a3, b0, b1, c0, c1, c2, c3))


_PAIR = np.arange(2)
_HALF_A_COL = np.stack([2 * _T, 2 * _T, 8 + 2 * _T, 8 + 2 * _T], 1)[:, :, None] + _PAIR
_HALF_B_ROW = np.stack([2 * _T, 8 + 2 * _T], 1)[:, :, None] + _PAIR


def mma_f16_m16n8k16(lanes: Any, values: Any) -> Any:
    """D = A·B + C of halves, C and D float32: products and their sum exact, then cut off toward zero, as the tensor
    cores' additions are at worst."""
    registers = (np.array([row[:6] for row in values], np.int64) & ALL_BITS).astype(np.uint32)
    a, b = np.empty((16, 16), np.float64), np.empty((16, 8), np.float64)
    a[_A_ROW, _HALF_A_COL] = np.ascontiguousarray(registers[:, :4]).view(np.float16).reshape(WARP, 4, 2)
    b[_HALF_B_ROW, _B_COL] = np.ascontiguousarray(registers[:, 4:]).view(np.float16).reshape(WARP, 2, 2)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (a @ b)[_C_ROW, _C_COL] + np.array([row[6:] for row in values], np.float64)
        d = exact.astype(np.float32)
    d = np.where(np.abs(d) > np.abs(exact), np.nextafter(d, np.float32(0)), d)
    return [tuple(row) for row in d]


def mma_f16(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """The registers of D = A B + C, A [16, 16] and B [16, 8] halves, C and D float32."""
    requires((8, 0), "mma.m16n8k16")
    return warp_operation(mma_f16_m16n8k16, FULL_WARP, (a0, a1, a2, a3, b0, b1, c0, c1, c2, c3))


def _rows(lanes, addresses):
    """The rows of 16 bytes that the lanes point at; each counts as that lane's read."""
    rows = []
    for lane, address in zip(lanes, addresses, strict=True):
        State.lane = lane
        memory = lane.block.memory
        memory.reading(address, 16)
        rows.append(memory.data[address : address + 16])
    return rows


def _matrices(lanes, addresses, count):
    rows = _rows(lanes[: 8 * count], addresses[: 8 * count])
    words = [struct.unpack("<4i", row) for row in rows]
    return [tuple(words[8 * m + i // 4][i % 4] for m in range(count)) for i in range(WARP)]


def ldmatrix_2(lanes: Any, addresses: Any) -> Any:
    """Two 8x8 matrices of 16-bit elements."""
    return _matrices(lanes, addresses, 2)


def ldmatrix_4(lanes: Any, addresses: Any) -> Any:
    """Four 8x8 matrices of 16-bit elements."""
    return _matrices(lanes, addresses, 4)


def ldmatrix_4_transposed(lanes: Any, addresses: Any) -> Any:
    """Four 8x8 matrices of 16-bit elements, transposed."""
    m = np.frombuffer(b"".join(_rows(lanes, addresses)), np.uint16).reshape(4, 8, 8).transpose(0, 2, 1)
    words = np.ascontiguousarray(m).view(np.int32).reshape(4, WARP).T
    return [tuple(row) for row in words.tolist()]


def ldmatrix_x2(address: Any) -> Any:
    """Two 8x8 matrices of 16-bit elements from shared memory, a row at each address of lanes 0 to 15."""
    requires((7, 5), "ldmatrix")
    return warp_operation(ldmatrix_2, FULL_WARP, address)


def ldmatrix_x4(address: Any) -> Any:
    """Four 8x8 matrices of 16-bit elements from shared memory, a row at each lane's address."""
    requires((7, 5), "ldmatrix")
    return warp_operation(ldmatrix_4, FULL_WARP, address)


def ldmatrix_x4_trans(address: Any) -> Any:
    """As :func:`ldmatrix_x4`, each matrix transposed."""
    requires((7, 5), "ldmatrix")
    return warp_operation(ldmatrix_4_transposed, FULL_WARP, address)
