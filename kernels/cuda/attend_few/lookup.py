"""What a warp of the exact ``attend`` of few rows looks up for its own tiles: rows in the pool, and scales.

A warp takes the tiles ``warps`` - 1 - warp, and every ``warps``-th after it, so that the first warps, which rewrite the
query, have the fewest. Lane l looks up cell l of two of its tiles, 16 cells each. No warp waits for another: ids are
loaded before it is known how many of them count.
"""

from typing import Any

from ..attend_exact.gather import exponent, load_scales
from ..attend_exact.shared_memory import CELLS_OF_TABLE, K_SCALE, PAGE_SIZE, TABLE, TILE, V_SCALE
from ..toolchain.compiler import cuda, device_function, int32, int64, uint32
from ..toolchain.ptx import (
    half_to_float,
    ld_global_i32_nc,
    st_shared_f32,
    st_shared_i32,
    st_shared_v4_f32,
    st_shared_v4_i32,
)


def make(n_head_kv: int, warps: int, turns: int) -> tuple[Any, ...]:
    """(load_ids, load_pages, store_rows, load_cell_scales, store_scales) for warps of ``turns`` tiles."""
    looked = (turns + 1) // 2

    @device_function
    def cell_of(i, warp, lane):
        """The ``i``-th cell that the lane looks up."""
        tile = int32(warps - 1 - warp + (2 * i + (lane >> 4)) * warps)
        return int32(tile * TILE + (lane & 15))

    @device_function
    def load_ids(cells, ids, begin, room, capacity, warp, lane):
        """Load the lane's ids to ``cells``, whether they count or not; -1 beyond the room and the ids."""
        for i in range(looked):
            cell = cell_of(i, warp, lane)
            cells[i] = int32(-1)
            if cell < room and int32(begin + cell) < capacity:
                cells[i] = ld_global_i32_nc(ids + int64(int32(begin + cell)) * 4)

    @device_function
    def load_pages(cells, places, begin, width, pools, warp, lane):
        """Turn ids into pages, -1 where the cell is not selected, and places in the page."""
        table, addressed = pools[TABLE], pools[CELLS_OF_TABLE]
        page_size = int32(pools[PAGE_SIZE])
        # Known before the ids are there; a division then would take a quarter as long as the load that waits for it.
        simple = int32(page_size & int32(page_size - 1)) == 0
        shift = int32(31 - cuda.clz(page_size))
        for i in range(looked):
            cell, page = cells[i], int32(-1)
            places[i] = int32(0)
            if cell >= 0 and cell < addressed and int32(begin + cell_of(i, warp, lane)) < width:
                logical = int32(cell >> shift)
                if not simple:
                    logical = int32(uint32(cell) // uint32(page_size))
                places[i] = int32(cell - logical * page_size)
                page = ld_global_i32_nc(table + int64(logical) * 4)
            cells[i] = page

    @device_function
    def store_rows(cells, places, room, pools, kv_head, rows, warp, lane):
        """Turn pages into rows of the pool, -1 where not selected, and store them."""
        page_size = int32(pools[PAGE_SIZE])
        for i in range(looked):
            if cells[i] >= 0:
                cells[i] = int32((cells[i] * n_head_kv + kv_head) * page_size + places[i])
            cell = cell_of(i, warp, lane)
            if cell < room:
                st_shared_i32(int32(rows + cell * 4), cells[i])

    @device_function
    def load_cell_scales(cells, k_raw, v_raw, pools):
        """Load the scales of those rows to the local arrays ``k_raw`` and ``v_raw``; 0 for row -1."""
        k_base, v_base = pools[K_SCALE], pools[V_SCALE]
        for i in range(looked):
            load_scales(k_base, cells[i], 4, k_raw, i * 2)
            load_scales(v_base, cells[i], 4, v_raw, i * 2)

    @device_function
    def store_scales(k_raw, v_raw, room, k_scale, exponents, v_scale, warp, lane):
        """Store those scales; those of V also as exponents."""
        for i in range(looked):
            cell = cell_of(i, warp, lane)
            if cell < room:
                low, high = k_raw[i * 2], k_raw[i * 2 + 1]
                st_shared_v4_f32(
                    int32(k_scale + cell * 16),
                    half_to_float(low),
                    half_to_float(int32(low >> 16)),
                    half_to_float(high),
                    half_to_float(int32(high >> 16)),
                )
                low, high = v_raw[i * 2], v_raw[i * 2 + 1]
                s0, s1 = half_to_float(int32(low & 0x7FFF)), half_to_float(int32((low >> 16) & 0x7FFF))
                s2, s3 = half_to_float(int32(high & 0x7FFF)), half_to_float(int32((high >> 16) & 0x7FFF))
                at = int32(v_scale + cell * 4)
                st_shared_f32(at, s0)
                st_shared_f32(int32(at + room * 4), s1)
                st_shared_f32(int32(at + room * 8), s2)
                st_shared_f32(int32(at + room * 12), s3)
                at = int32(exponents + cell * 16)
                st_shared_v4_i32(at, exponent(s0), exponent(s1), exponent(s2), exponent(s3))

    return load_ids, load_pages, store_rows, load_cell_scales, store_scales
