"""What a block of the exact ``attend`` loads before any arithmetic: its cells' rows in the pool, and their scales."""

from typing import Any

from qsa.reference.exact.attend import NO_CELL

from ..toolchain.compiler import cuda, device_function, float32, int32, int64, uint32
from ..toolchain.ptx import (
    float_as_int,
    half_to_float,
    ld_global_i32_nc,
    ld_global_v2_i32_nc,
    ld_global_v4_i32_nc,
    st_shared_f32,
    st_shared_i32,
    st_shared_v4_f32,
    st_shared_v4_i32,
)
from .shared_memory import CELLS_OF_TABLE, K_SCALE, PAGE_SIZE, TABLE, V_SCALE


@device_function
def load_scales(base, row, groups, raw, at):
    """The fp16 scales of a row of the pool, 2 to a word, to ``raw[at]`` and on; 0 where the row is -1."""
    for i in range(groups // 2):
        raw[at + i] = int32(0)
    if row >= 0:
        if groups == 4:
            raw[at], raw[at + 1] = ld_global_v2_i32_nc(base + int64(row) * 8)
        else:
            raw[at], raw[at + 1], raw[at + 2], raw[at + 3] = ld_global_v4_i32_nc(base + int64(row) * 16)


@device_function
def exponent(scale):
    """v of |scale| = mu * 2^v, NO_CELL for 0; fp16 values are normal in float32."""
    return int32((float_as_int(scale) >> 23) - 126) if scale != float32(0) else int32(NO_CELL)


def make(
    k_groups: int, v_groups: int, n_head_kv: int, threads: int, each: int, field: Any
) -> tuple[Any, Any, Any, Any]:
    """(load_ids, find_rows, load_cell_scales, store_scales) for blocks of ``threads`` lanes. A lane looks up ``each``
    cells: its own and every ``threads``-th after it. ``field``: of ``common/pool_tables.py``."""

    @device_function
    def load_ids(cells, ids, begin, count, thread):
        """Load the lane's ids, of cells begin to begin + count - 1 of a row, to the local ``cells``; -1 beyond."""
        for i in range(each):
            cell = int32(thread + i * threads)
            cells[i] = int32(-1)
            if cell < count:
                cells[i] = ld_global_i32_nc(ids + int64(begin + cell) * 4)

    @device_function
    def find_rows(cells, padded, pools, which, kv_head, rows, thread):
        """Turn the lane's ``cells`` into rows of the pool, -1 where not selected; store those below ``padded``."""
        table, addressed = field(pools, which, TABLE), field(pools, which, CELLS_OF_TABLE)
        page_size = int32(field(pools, which, PAGE_SIZE))
        offset = cuda.local.array(each, int32)
        for i in range(each):
            cell, page = cells[i], int32(-1)
            if cell >= 0 and cell < addressed:
                # Both are not negative; Python's division would test for that.
                logical = int32(uint32(cell) // uint32(page_size))
                offset[i] = int32(cell - logical * page_size)
                page = ld_global_i32_nc(table + int64(logical) * 4)
            cells[i] = page
        for i in range(each):
            if cells[i] >= 0:
                cells[i] = int32((cells[i] * n_head_kv + kv_head) * page_size + offset[i])
            cell = int32(thread + i * threads)
            if cell < padded:
                st_shared_i32(int32(rows + cell * 4), cells[i])

    @device_function
    def load_cell_scales(cells, k_raw, v_raw, pools, which):
        """Load the scales of the rows ``cells`` that :func:`find_rows` found: to the local arrays ``k_raw``
        [each * k_groups / 2] and ``v_raw``; 0 for row -1."""
        k_base, v_base = field(pools, which, K_SCALE), field(pools, which, V_SCALE)
        for i in range(each):
            load_scales(k_base, cells[i], k_groups, k_raw, i * (k_groups // 2))
            load_scales(v_base, cells[i], v_groups, v_raw, i * (v_groups // 2))

    @device_function
    def store_scales(k_raw, v_raw, padded, room, k_scale, exponents, v_scale, signs, thread):
        """Store those scales to shared memory; those of V also as exponents and, for q4_0, as signs."""
        for i in range(each):
            cell = int32(thread + i * threads)
            if cell < padded:
                for part in range(k_groups // 4):
                    low, high = k_raw[i * (k_groups // 2) + part * 2], k_raw[i * (k_groups // 2) + part * 2 + 1]
                    st_shared_v4_f32(
                        int32(k_scale + (cell * k_groups + part * 4) * 4),
                        half_to_float(low),
                        half_to_float(int32(low >> 16)),
                        half_to_float(high),
                        half_to_float(int32(high >> 16)),
                    )
                sign = int32(0)
                for part in range(v_groups // 4):
                    low, high = v_raw[i * (v_groups // 2) + part * 2], v_raw[i * (v_groups // 2) + part * 2 + 1]
                    s0, s1 = half_to_float(int32(low & 0x7FFF)), half_to_float(int32((low >> 16) & 0x7FFF))
                    s2, s3 = half_to_float(int32(high & 0x7FFF)), half_to_float(int32((high >> 16) & 0x7FFF))
                    at = int32(v_scale + (part * 4 * room + cell) * 4)
                    st_shared_f32(at, s0)
                    st_shared_f32(int32(at + room * 4), s1)
                    st_shared_f32(int32(at + room * 8), s2)
                    st_shared_f32(int32(at + room * 12), s3)
                    at = int32(exponents + (cell * v_groups + part * 4) * 4)
                    st_shared_v4_i32(at, exponent(s0), exponent(s1), exponent(s2), exponent(s3))
                    bits = ((low >> 15) & 1) | ((low >> 30) & 2) | ((high >> 13) & 4) | ((high >> 28) & 8)
                    sign = int32(sign | (bits << (part * 4)))
                if v_groups == 8:
                    st_shared_i32(int32(signs + cell * 4), sign)

    return load_ids, find_rows, load_cell_scales, store_scales
