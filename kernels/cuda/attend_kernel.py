"""The kernel of the exact ``attend``: one launch, from ids to outputs, for every schedule.

A block of 4 * ``parts`` warps takes the cells of one row, KV head and split:

1. ids to rows of the pool, scales to shared memory, the query to limbs
2. scores and maxima (``attend_scores``); the blocks of a row exchange maxima (``attend_exchange``)
3. scores to powers, mass, values (``attend_values``); the warps add up their sums
4. one block a row: outputs. Several: each sends the others their shares, and writes its own share of the outputs

Step 8 of design section 4 ends it. K and V are read once, straight into registers; within steps 2 and 3 no warp waits
for another, which is what hides the fetches.
"""

from ...reference.exact.attend import NO_CELL
from ...reference.exact.scalar import NAN
from . import attend_dp4a as dp4a
from . import attend_scores as scores
from . import attend_values as values
from .attend_exchange import (
    VALUES,
    gather_maxima,
    publish_maxima,
    receive_mass,
    receive_sum,
    send_mass,
    sum_address,
)
from .attend_scores import (
    DIM,
    HEAD_BYTES,
    HEADS,
    POISON,
    TILE,
    load_query,
    load_tile,
    rotate_lanes,
    store_query,
)
from .attend_values import (
    FACTORS_BYTES,
    STEP,
    UNITS,
    lane_base,
    load_v,
    store_factors,
    store_powers,
    unit_dim,
    unit_head,
)
from .compiler import cuda, device_function, float32, int32, int64, kernel, libdevice, specialised, uint32
from .ptx import (
    float_as_int,
    global_base,
    half_to_float,
    int_as_float,
    ld_global_i32_nc,
    ld_global_v2_i32_nc,
    ld_global_v4_i32_nc,
    ld_shared_i32,
    ld_shared_i64,
    ld_shared_v2_i64,
    ld_shared_v4_f32,
    mma_s8,
    mma_u8,
    shared_base,
    st_global_f32,
    st_global_v2_relaxed_i64,
    st_global_v4_f32,
    st_shared_f32,
    st_shared_i32,
    st_shared_i64,
    st_shared_v2_i64,
    st_shared_v4_f32,
    st_shared_v4_i32,
)
from .scalar import scaled

MAX_POOLS = 4
POOL_FIELDS = 7
"""int64 per pool: addresses of K's codes and scales, V's codes and scales and the page table; cells that the table
addresses; cells in a page."""

K_CODES, K_SCALE, V_CODES, V_SCALE, TABLE, CELLS_OF_TABLE, PAGE_SIZE = range(POOL_FIELDS)

GATHER = 6
"""Cells whose rows a lane looks up at once."""

SCALES = 6
"""Cells whose scales a lane reads at once."""

LANE_SUMS = UNITS * 4
NAN_BITS = int(NAN.view("int32"))

RECORDS = scores.QUERY_BYTES
FACTORS = RECORDS + HEADS * HEAD_BYTES
MASSES = FACTORS + HEADS * FACTORS_BYTES
TOTALS = MASSES + HEADS * 8
CELLS = (TOTALS + HEADS * 8 + 127) // 128 * 128
"""Bytes of shared memory before what is kept per cell, a multiple of 128; the order is that of the constants above."""

PADDING = 16
"""Words between the scores of two heads beyond the cells: with room a multiple of 32, eight lanes that read 16 bytes
each meet 32 different banks."""


def cell_bytes(k_groups, v_groups):
    """Bytes of shared memory for each cell: row, K scales, exponents and scales of V, scores, and the signs of q4_0."""
    return 4 + 4 * k_groups + 8 * v_groups + 4 * HEADS + (4 if v_groups == 8 else 0)


def shared_bytes(room, k_groups, v_groups, parts):
    """Bytes of dynamic shared memory of a block for up to ``room`` cells (a multiple of 32)."""
    cells = room * cell_bytes(k_groups, v_groups) + HEADS * PADDING * 4
    return CELLS + max(cells, staging(parts) + VALUES * 4 * (v_groups == 8))


def staging(parts):
    """Bytes, from the cells on, in which the warps add up their sums; outputs to be rotated come after them."""
    return parts * VALUES * 8 * (parts > 1)


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


@device_function
def poisoned(value, record, mass_of):
    """``value`` with -0 made +0, or the one NaN where the head's query is not finite and something is selected."""
    if mass_of > 0 and ld_shared_i32(int32(record + POISON * 4)) != 0:
        return int_as_float(int32(NAN_BITS))
    return libdevice.fadd_rn(value, float32(0))


@device_function
def output(total, record, mass_of, of, v_groups):
    """Step 8: float32(O) * 2^(M_j - top) / float32(L), 0 where nothing is selected; poisoned unless still to be
    rotated."""
    result = float32(0)
    if mass_of > 0:
        k = int32(ld_shared_i32(int32(record + 4 + of * 4)) - ld_shared_i32(record))
        # Below 2^-240 every sum rounds to 0, above 2^17 is only the largest scale.
        k = max(k, int32(-240))
        result = libdevice.fdiv_rn(scaled(float32(total), k), float32(mass_of))
        if v_groups == 4:
            result = poisoned(result, record, mass_of)
    return result


@device_function
def field(pools, which, i):
    """Field ``i`` of pool ``which``."""
    value = pools[i]
    if which == 1:
        value = pools[POOL_FIELDS + i]
    elif which == 2:
        value = pools[2 * POOL_FIELDS + i]
    elif which == 3:
        value = pools[3 * POOL_FIELDS + i]
    return value


@specialised
def build(k_groups, v_groups, n_head_kv, group, parts, matrix=True):
    """The kernel for one format and geometry.

    ``k_groups``, ``v_groups``: scales a cell (4: int8, 8: q4_0). ``group``: query heads per KV head, at most 12.
    ``parts``: 1 or 3. ``matrix``: products on tensor cores (sm_80 and newer), otherwise by dp4a.
    """
    threads = 128 * parts
    warps = 4 * parts
    heads_per_warp = HEADS // warps
    units = UNITS // parts
    owned = 32 if v_groups == 4 else DIM
    staged = staging(parts)
    k_words, v_words, k_registers = SCALES * k_groups // 2, SCALES * v_groups // 2, 32 if k_groups == 4 else 16
    query_values = 8 * heads_per_warp
    signed, unsigned = (mma_s8, mma_u8) if matrix else (dp4a.mma_s8, dp4a.mma_u8)
    score_cells = scores.make(k_groups, v_groups, signed)
    weigh_values = values.make(v_groups, parts, unsigned)

    @device_function
    def find_rows(ids, begin, count, padded, pools, which, kv_head, row, rows, thread):
        """Rows in the pool of cells begin to begin + count - 1 of a selection, GATHER at a time to the local array
        ``row`` and all to shared memory; -1 beyond the last one and for what is not selected."""
        table, cells = field(pools, which, TABLE), field(pools, which, CELLS_OF_TABLE)
        page_size = int32(field(pools, which, PAGE_SIZE))
        place = cuda.local.array(GATHER, int32)
        for start in range(thread, padded, int32(GATHER * threads)):
            for i in range(GATHER):
                cell = int32(start + i * threads)
                row[i] = int32(-1)
                if cell < count:
                    row[i] = ld_global_i32_nc(ids + int64(begin + cell) * 4)
            for i in range(GATHER):
                cell, page = row[i], int32(-1)
                if cell >= 0 and cell < cells:
                    # Both are not negative; Python's division would test for that.
                    logical = int32(uint32(cell) // uint32(page_size))
                    place[i] = int32(cell - logical * page_size)
                    page = ld_global_i32_nc(table + int64(logical) * 4)
                row[i] = page
            for i in range(GATHER):
                if row[i] >= 0:
                    row[i] = int32((row[i] * n_head_kv + kv_head) * page_size + place[i])
                cell = int32(start + i * threads)
                if cell < padded:
                    st_shared_i32(int32(rows + cell * 4), row[i])

    @device_function
    def read_scales(padded, pools, which, room, rows, k_scale, exponents, v_scale, signs, thread):
        """Scales of the cells to shared memory, those of V also as exponents and, for q4_0, signs; 0 for row -1."""
        k_base, v_base = field(pools, which, K_SCALE), field(pools, which, V_SCALE)
        k_raw = cuda.local.array(k_words, int32)
        v_raw = cuda.local.array(v_words, int32)
        for start in range(thread, padded, int32(SCALES * threads)):
            for i in range(SCALES):
                cell = int32(start + i * threads)
                row = int32(-1)
                if cell < padded:
                    row = ld_shared_i32(int32(rows + cell * 4))
                load_scales(k_base, row, k_groups, k_raw, i * (k_groups // 2))
                load_scales(v_base, row, v_groups, v_raw, i * (v_groups // 2))
            for i in range(SCALES):
                cell = int32(start + i * threads)
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

    @kernel(launch_bounds=(threads, 1), shared_memory_carveout=100)
    def attend_exact(q, ids, steps, slots, pools, first, n_pools, splits, room, scratch, out):
        """q, out [rows, n_head, 256]; ids [rows, cap]; steps [rows, 4]; slots [rows]; ``pools`` as POOL_FIELDS says, of
        the slots from ``first`` on; ``n_pools`` 0: one pool for every row; ``room``: cells of shared memory; scratch
        int64, :func:`attend_exchange.words` for each row and KV head. Grid: rows * n_head_kv * splits blocks."""
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        splits, room = int32(splits), int32(room)
        row_head = int32(uint32(cuda.blockIdx.x) // uint32(splits))
        split = int32(cuda.blockIdx.x - row_head * splits)
        row = int32(row_head // n_head_kv)
        kv_head = int32(row_head - row * n_head_kv)
        which = int32(0)
        if n_pools > 0:
            which = int32(slots[row] - first)
            if which < 0 or which >= n_pools:
                return
        capacity = int32(ids.shape[1])
        width = min(max(ld_global_i32_nc(global_base(steps) + int64(row) * 16 + 12), int32(0)), capacity)
        # Equal shares of what this row selects, whatever its ids have room for.
        share = int32(uint32(width + splits * STEP - 1) // uint32(splits * STEP) * STEP)
        share = max(share, int32(STEP))
        active = max(int32(uint32(width + share - 1) // uint32(share)), int32(1))
        if split >= active:
            return
        begin = int32(split * share)
        count = min(int32(width - begin), share)
        padded = max(int32((count + STEP - 1) // STEP * STEP), int32(STEP))

        base = shared_base(cuda.shared.array(0, int32))
        records, factors, masses = int32(base + RECORDS), int32(base + FACTORS), int32(base + MASSES)
        stride = int32(room + PADDING)
        rows = int32(base + CELLS)
        k_scale = int32(rows + room * 4)
        exponents = int32(k_scale + room * (4 * k_groups))
        v_scale = int32(exponents + room * (4 * v_groups))
        powers = int32(v_scale + room * (4 * v_groups))
        signs = int32(powers + stride * (4 * HEADS))
        exchange = int64(0)
        if active > 1:
            own = int64(splits) * int64(HEADS * (1 + v_groups) + splits * HEADS + VALUES)
            exchange = global_base(scratch) + int64(row_head) * own * 8
        first_head = int64(row) * (n_head_kv * group) + int64(kv_head * group)
        results = global_base(out) + first_head * (DIM * 4)

        # Whatever is fetched from afar is asked for well before it is needed.
        queries = cuda.local.array(query_values, float32)
        for i in range(heads_per_warp):
            head = int32(warp + i * warps)
            load_query(queries, 8 * i, global_base(q) + (first_head + head) * (DIM * 4), head < group, lane)
        row_of = cuda.local.array(GATHER, int32)
        selection = global_base(ids) + int64(row) * int64(capacity) * 4
        find_rows(selection, begin, count, padded, pools, which, kv_head, row_of, rows, thread)
        cuda.syncthreads()
        k_codes = field(pools, which, K_CODES)
        raw_k = cuda.local.array(k_registers, int32)
        load_tile(raw_k, k_codes, min(warp, int32(padded // TILE - 1)), rows, lane, k_groups)
        read_scales(padded, pools, which, room, rows, k_scale, exponents, v_scale, signs, thread)
        for i in range(heads_per_warp):
            store_query(queries, 8 * i, int32(warp + i * warps), k_groups, base, records, lane)
        cuda.syncthreads()

        score_cells(
            raw_k, k_codes, padded, warp, int32(warps), base, records, rows, k_scale, exponents, powers, stride, lane
        )
        raw_v = cuda.local.array(16, int32)
        v_base = lane_base(field(pools, which, V_CODES), warp, lane, v_groups)
        load_v(raw_v, v_base, rows, min(int32((warp >> 2) * STEP), int32(padded - STEP)), lane, v_groups)
        cuda.syncthreads()
        if active > 1:
            publish_maxima(exchange, split, records, v_groups, thread, False)
            cuda.syncthreads()
            gather_maxima(exchange, active, records, v_groups, thread, threads)
            cuda.syncthreads()

        for i in range(heads_per_warp):
            head = int32(warp + i * warps)
            mass_of = store_powers(int32(powers + head * stride * 4), padded, records, head, lane)
            if lane == 0:
                st_shared_i64(int32(masses + head * 8), mass_of)
            if lane < v_groups:
                store_factors(records, factors, head, lane)
        cuda.syncthreads()

        if active > 1:
            send_mass(exchange, split, splits, active, masses, v_groups, thread, threads)
        sums = cuda.local.array(LANE_SUMS, int64)
        weigh_values(raw_v, v_base, padded, warp, powers, stride, v_scale, signs, room, factors, rows, sums, lane)
        totals = masses
        if active > 1:
            totals = int32(base + TOTALS)
            for i in range(heads_per_warp):
                receive_mass(exchange, split, splits, active, totals, int32(warp + i * warps), v_groups, lane)
        if active > 1 or parts > 1 or v_groups == 8:
            # The cells are done with: their memory now carries sums between the warps that share 64 dims.
            cuda.syncthreads()
        if parts > 1:
            for unit in range(UNITS):
                for half in range(2):
                    at = int32(rows + (((warp * UNITS + unit) * 2 + half) * 32 + lane) * 16)
                    st_shared_v2_i64(at, sums[unit * 4 + half * 2], sums[unit * 4 + half * 2 + 1])
            cuda.syncthreads()
        outputs = int32(rows + staged)
        mine = cuda.local.array(4, int64)
        result = cuda.local.array(4, float32)
        for u in range(units):
            unit = int32((warp >> 2) * units + u)
            for i in range(4):
                mine[i] = sums[u * 4 + i]
            if parts > 1:
                for i in range(4):
                    mine[i] = int64(0)
                for other in range(parts):
                    for half in range(2):
                        at = (((other * 4 + (warp & 3)) * UNITS + unit) * 2 + half) * 32 + lane
                        x, y = ld_shared_v2_i64(int32(rows + at * 16))
                        mine[half * 2] += x
                        mine[half * 2 + 1] += y
            head, dim = unit_head(unit, lane), unit_dim(unit, warp, lane, v_groups)
            value = int32(head * DIM + dim)
            if active > 1:
                for half in range(2):
                    place = sum_address(exchange, splits, split, int32(value + half * 2), v_groups)
                    st_global_v2_relaxed_i64(place, mine[half * 2], mine[half * 2 + 1])
            elif head < group:
                record, mass_of = int32(records + head * HEAD_BYTES), ld_shared_i64(int32(totals + head * 8))
                for i in range(4):
                    result[i] = output(mine[i], record, mass_of, int32(dim // (DIM // v_groups)), v_groups)
                if v_groups == 4:
                    st_global_v4_f32(results + int64(value) * 4, result[0], result[1], result[2], result[3])
                else:
                    st_shared_v4_f32(int32(outputs + value * 4), result[0], result[1], result[2], result[3])

        begin_value, end_value = int32(0), int32(group * DIM)
        if active > 1:
            # Every block has sent its masses, so every block has read the maxima.
            publish_maxima(exchange, split, records, v_groups, thread, True)
            own_values = int32((VALUES + active * owned - 1) // (active * owned) * owned)
            begin_value = int32(split * own_values)
            end_value = min(int32(begin_value + own_values), int32(VALUES))
            for value in range(begin_value + thread, end_value, int32(threads)):
                total = receive_sum(exchange, splits, active, int32(value), v_groups)
                head, dim = int32(value >> 8), int32(value & 255)
                if head < group:
                    record, mass_of = int32(records + head * HEAD_BYTES), ld_shared_i64(int32(totals + head * 8))
                    one = output(total, record, mass_of, int32(dim // (DIM // v_groups)), v_groups)
                    if v_groups == 4:
                        st_global_f32(results + int64(value) * 4, one)
                    else:
                        st_shared_f32(int32(outputs + value * 4), one)
        if v_groups == 8:
            cuda.syncthreads()
            x = cuda.local.array(8, float32)
            for head in range((begin_value >> 8) + warp, min(int32(end_value >> 8), int32(group)), int32(warps)):
                at = int32(outputs + head * (DIM * 4) + lane * 32)
                x[0], x[1], x[2], x[3] = ld_shared_v4_f32(at)
                x[4], x[5], x[6], x[7] = ld_shared_v4_f32(int32(at + 16))
                rotate_lanes(x, lane)
                record, mass_of = int32(records + head * HEAD_BYTES), ld_shared_i64(int32(totals + head * 8))
                for i in range(8):
                    x[i] = poisoned(x[i], record, mass_of)
                to = results + int64(head * DIM + lane * 8) * 4
                st_global_v4_f32(to, x[0], x[1], x[2], x[3])
                st_global_v4_f32(to + 16, x[4], x[5], x[6], x[7])

    return attend_exact
