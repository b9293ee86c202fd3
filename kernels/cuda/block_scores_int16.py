"""``block_scores`` of encoded keys (index format ``int16``) on CUDA: integer dots on tensor cores, one rounding a head.

Source: design section 4, "Keys of 16 bits". One kernel serves every schedule; a schedule says how many rows of queries
a thread block holds in shared memory, for each of which a tile of keys is multiplied once it is in registers: one
(``warp``, each row reads the keys for itself), all of a window, or up to 32 of a prompt.

A product instruction takes 16 keys (its rows) and 8 columns: 4 heads of 2 limbs. Column 2h is head h's low limb, column
2h + 1 its high one, so lane 4g + h receives all that head h has with the keys g and g + 8. A key's bytes are its limbs
as they are stored: the low one unsigned, the high one signed; the query's limbs are both signed. Dims have no order in
a sum, so keys go straight into the registers, 16 bytes a lane, and only the query is permuted. Two rows are finished
together: their four scores of a lane group are transposed, so that each lane adds the four heads of one score.
"""

from collections.abc import Iterator
from typing import Any

from qsa.reference.block_scores import TAIL_BONUS
from qsa.reference.key_codes import CODE_BITS, LARGEST_CODE, NOT_FINITE

from ..ops import WINDOW_ROWS
from .common.key_codes import key_code, key_exponent, magnitude
from .common.scalar import NAN_BITS, pow2, rounded_dot, scaled, transpose_bytes, warp_max
from .device.containers import DeviceIndex
from .toolchain.compiler import (
    cuda,
    device_function,
    float32,
    int32,
    int64,
    kernel,
    libdevice,
    prepare,
    properties,
    specialised,
)
from .toolchain.constants import FULL_WARP, MAX_GRID_YZ
from .toolchain.host import Argument, Operand
from .toolchain.mma_dp4a import mma_s8_by_dp4a, mma_u8_by_dp4a
from .toolchain.ptx import (
    global_base,
    int_as_float,
    ld_global_u16_nc,
    ld_global_v4_f32_nc,
    ld_global_v4_i32_nc,
    ld_shared_i32,
    ld_shared_v4_i32,
    mma_s8,
    mma_u8,
    prmt,
    redux_max,
    rint_s32,
    shared_base,
    st_global_f32,
    st_shared_i32,
    start_next,
    wait_for_earlier,
)
from .toolchain.ptx_rows import F2, F3, H1, H2, I2, TENSOR_CORE, PtxRow, signature_of

HEADS, DIM = 4, 128
WARPS = 8
THREADS = 32 * WARPS
TILE = 16
"""Keys that a warp has in its registers at a time."""

GROUP = 32
"""Rows of queries in shared memory at most, a lane of a warp for the record of each."""

RESIDENT = 2
"""Thread blocks for which a multiprocessor has room: 128 registers a lane, 64 of them for keys on their way and in
use. Without tensor cores products are shuffles, which take more: one."""

KEY_BYTES = 2 * DIM
QUERY_WORDS, EXPONENT_WORDS = GROUP * 2 * HEADS * DIM // 4, GROUP * HEADS
"""Shared memory in words: the limbs of every head of a group's rows, and their exponents."""

ROW_BYTES = 4 * HEADS * DIM
AHEAD = 4
"""Vectors of the query that a warp has on their way at a time, 4 words a lane."""

AHEAD_WORDS = 4 * AHEAD

LOST = 1 << 20
"""Exponent, in a sum of two, of a key or query that is not finite."""

ORDINARY = 60
"""Exponents of keys, and of queries with what the dot's scale lacks, up to which a score is computed in fewer steps."""

UP = (1 << 23) - 1 - ((LARGEST_CODE << 9) - (1 << 23))
"""What carries the bits of a normal number into its exponent where its code would be larger than the largest one."""

MOST_POWER = 250
"""A dot is 0, or from 1 to 2^37: times 2^-250 or less it is 0, times 2^250 or more infinite."""


@device_function
def load_keys(raw, low, high):
    """16 bytes (8 codes) of each 32 dims of this lane's two keys, at global addresses, into the local array ``raw``."""
    for step in range(4):
        i = step * 4
        raw[i], raw[i + 1], raw[i + 2], raw[i + 3] = ld_global_v4_i32_nc(low + int64(step * 64))
        i += 16
        raw[i], raw[i + 1], raw[i + 2], raw[i + 3] = ld_global_v4_i32_nc(high + int64(step * 64))


@device_function
def limbs_of(raw, at, bytes_of):
    """Two words of limbs of the 8 codes in ``raw[at]`` on: ``bytes_of`` picks the low bytes of two words, or the high
    ones."""
    return prmt(raw[at], raw[at + 1], bytes_of), prmt(raw[at + 2], raw[at + 3], bytes_of)


@device_function
def signed_exponent(bits):
    """An exponent of 16 bits as int32, what is not finite as LOST."""
    e = int32((bits ^ 0x8000) - 0x8000)
    return int32(LOST) if e == NOT_FINITE else e


@device_function
def load_query(ahead, at, base, item, count, lane):
    """4 dims a lane of the query's vector ``item``, a row and head in order, to ahead[at] on; 0 from ``count`` on."""
    a, b, c, d = float32(0), float32(0), float32(0), float32(0)
    if item < count:
        a, b, c, d = ld_global_v4_f32_nc(base + int64(item) * (4 * DIM) + int64(lane * 16))
    ahead[at], ahead[at + 1], ahead[at + 2], ahead[at + 3] = a, b, c, d


@device_function
def is_ordinary(power):
    """Whether a sum of two such exponents is one of :func:`ordinary_dot`."""
    return power >= -ORDINARY and power <= ORDINARY


@device_function
def store_query(queries, exponents, item, a, b, c, d, greatest, lane):
    """One warp encodes a vector of the query, 4 dims a lane, into shared memory: limbs in the order in which the
    products take them, and the exponent with what the dot's scale lacks. Returns whether that is an ordinary one.
    ``greatest``: as :func:`warp_max`."""
    row, head = int32(item >> 2), int32(item & 3)
    largest = greatest(max(max(magnitude(a), magnitude(b)), max(magnitude(c), magnitude(d))))
    e = int32(((largest + UP) >> 23) - 126) if largest != 0 else int32(0)
    ordinary = is_ordinary(int32(e - 2 * CODE_BITS))
    if ordinary:
        # What one multiplication makes subnormal is rounded to 0 all the same.
        factor = pow2(int32(CODE_BITS - e))
        a, b = rint_s32(libdevice.fmul_rn(a, factor)), rint_s32(libdevice.fmul_rn(b, factor))
        c, d = rint_s32(libdevice.fmul_rn(c, factor)), rint_s32(libdevice.fmul_rn(d, factor))
    else:
        e = key_exponent(largest)
        a, b, c, d = key_code(a, e), key_code(b, e), key_code(c, e), key_code(d, e)
    # Balanced bytes: the digits of v are the bytes of v + 0x80, the low one with its top bit turned.
    low, high, _, _ = transpose_bytes(int32(a + 0x80), int32(b + 0x80), int32(c + 0x80), int32(d + 0x80))
    # Of each 32 dims lane t of a column takes 8 t to 8 t + 7: two registers; of two such steps 16 bytes.
    part = int32(row * 2 + (lane >> 4))
    word = int32(((lane >> 3) & 1) * 2 + (lane & 1))
    at = int32(queries + (part * 32 + head * 8 + ((lane >> 1) & 3)) * 16 + word * 4)
    st_shared_i32(at, int32(low ^ -0x7F7F7F80))
    st_shared_i32(int32(at + 64), high)
    if lane == 0:
        lost = e == NOT_FINITE
        st_shared_i32(int32(exponents + item * 4), int32(LOST) if lost else int32(e - 2 * CODE_BITS))
    return ordinary


@device_function
def ordinary_dot(low, mixed, high, power):
    """:func:`relu_dot` for a power from -126 to 127: a dot that is not 0 is no subnormal then, so one multiplication
    has the same bits."""
    return libdevice.fmaxf(libdevice.fmul_rn(rounded_dot(low, mixed, high), pow2(power)), float32(0))


@device_function
def relu_dot(low, mixed, high, power):
    """relu of one head's dot from its limbs' sums, times 2^power; NaN where that is lost."""
    x = scaled(rounded_dot(low, mixed, high), int32(min(max(power, -MOST_POWER), MOST_POWER)))
    x = float32(0) if x <= float32(0) else x
    return x if power < LOST // 2 else int_as_float(int32(NAN_BITS))


@specialised
def build(matrix: bool) -> Any:
    """The kernel; ``matrix``: products on tensor cores (sm_80 and newer), otherwise by dp4a."""
    signed, unsigned = (mma_s8, mma_u8) if matrix else (mma_s8_by_dp4a, mma_u8_by_dp4a)
    # Both came with sm_80.
    greatest = redux_max if matrix else warp_max

    @device_function
    def load_tile(raw, exponents, tile, spare, quarter, g, max_blocks, pooled, pooled_exponent, dead, dead_exponent):
        """Load this lane's two keys of a tile and their exponents, or twice those of the dead key (``spare``)."""
        first = min(int32(tile * TILE + g), int32(max_blocks - 1))
        second = min(int32(first + 8), int32(max_blocks - 1))
        a = global_base(pooled) + int64(first) * KEY_BYTES
        b = global_base(pooled) + int64(second) * KEY_BYTES
        e_a = global_base(pooled_exponent) + int64(first) * 2
        e_b = global_base(pooled_exponent) + int64(second) * 2
        if spare:
            a, e_a = global_base(dead), global_base(dead_exponent)
            b, e_b = a, e_a
        exponents[0], exponents[1] = ld_global_u16_nc(e_a), ld_global_u16_nc(e_b)
        load_keys(raw, a + int64(quarter * 16), b + int64(quarter * 16))

    @device_function
    def multiply(dots, at, queries, row, half, low, high, lane):
        """Onto dots[at..at + 7] the products of 64 dims (a half of a key) with one row's queries: four sums with the
        low limbs of the keys, then four with the high ones."""
        b = cuda.local.array(4, int32)
        b[0], b[1], b[2], b[3] = ld_shared_v4_i32(int32(queries + ((row * 2 + half) * 32 + lane) * 16))
        for step in range(2):
            i, k = half * 8 + step * 4, step * 2
            dots[at], dots[at + 1], dots[at + 2], dots[at + 3] = unsigned(
                low[i], low[i + 1], low[i + 2], low[i + 3], b[k], b[k + 1],
                dots[at], dots[at + 1], dots[at + 2], dots[at + 3],
            )  # fmt: skip
            dots[at + 4], dots[at + 5], dots[at + 6], dots[at + 7] = signed(
                high[i], high[i + 1], high[i + 2], high[i + 3], b[k], b[k + 1],
                dots[at + 4], dots[at + 5], dots[at + 6], dots[at + 7],
            )  # fmt: skip

    @kernel(launch_bounds=(THREADS, RESIDENT if matrix else 1))
    def block_scores_int16(
        q_idx, pooled, pooled_exponent, dead, dead_exponent, steps, out, rows, group, max_blocks, ratio
    ):
        """Grid (thread blocks, groups of ``group`` rows), 256 lanes; a warp takes a tile of 16 keys at a time, and the
        tile behind the last one is the dead key. ``out`` [rows, max_blocks]."""
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & 31), int32(thread >> 5)
        g, quarter = int32(lane >> 2), int32(lane & 3)
        queries = shared_base(cuda.shared.array(QUERY_WORDS, int32))
        exponents = shared_base(cuda.shared.array(EXPONENT_WORDS, int32))
        raw = cuda.local.array(32, int32)
        key_exponents = cuda.local.array(2, int32)
        ahead = cuda.local.array(AHEAD_WORDS, float32)
        low = cuda.local.array(16, int32)
        high = cuda.local.array(16, int32)
        dots = cuda.local.array(16, int32)
        rows, group, max_blocks = int32(rows), int32(group), int32(max_blocks)
        group_start = int32(cuda.blockIdx.y * group)
        first_tile = int32(cuda.blockIdx.x + warp * cuda.gridDim.x)
        stride = int32(cuda.gridDim.x * WARPS)
        # The last warp has as few tiles as any, and the dead key behind them.
        keeper = first_tile == stride - 1
        # A tile for every warp at most: its keys need not wait for the step records, which say how many are wanted.
        once = stride > int32((max_blocks + TILE - 1) >> 4)
        start_next()
        wait_for_earlier()
        while group_start < rows:
            held = int32(min(group, rows - group_start))
            # A lane has the record of one row: its n_bid, -1 where nothing is scored, and whether the tail holds cells.
            n_kv, n_bid = int32(0), int32(0)
            if lane < held:
                _, n_kv, n_bid, _ = ld_global_v4_i32_nc(global_base(steps) + int64(group_start + lane) * 16)
            # The first vectors of the query and the first keys are on their way together with it.
            vectors, query = int32(held * HEADS), global_base(q_idx) + int64(group_start) * ROW_BYTES
            for i in range(AHEAD):
                load_query(ahead, 4 * i, query, int32(warp + i * WARPS), vectors, lane)
            if once:
                load_tile(
                    raw, key_exponents, first_tile, keeper, quarter, g, max_blocks,
                    pooled, pooled_exponent, dead, dead_exponent,
                )  # fmt: skip
            last, bonus = int32(-1), int32(0)
            if n_kv > 0 and n_bid >= 0 and n_bid < max_blocks:
                last = n_bid
                bonus = int32(1) if n_kv > n_bid * int32(ratio) else int32(0)
            most = greatest(last)
            tiles = int32((most + TILE - 1) >> 4)
            tile = first_tile
            if tile >= tiles:
                tile = tiles if keeper and most >= 0 else int32(tiles + 1)
            if not once and tile <= tiles:
                load_tile(
                    raw, key_exponents, tile, tile == tiles, quarter, g, max_blocks,
                    pooled, pooled_exponent, dead, dead_exponent,
                )  # fmt: skip
            cuda.syncthreads()
            ordinary, items, first_item = True, int32(((held + 1) & ~1) * HEADS), warp
            while first_item < items:
                for i in range(AHEAD):
                    item = int32(first_item + i * WARPS)
                    if item < items:
                        a, b, c, d = ahead[4 * i], ahead[4 * i + 1], ahead[4 * i + 2], ahead[4 * i + 3]
                        load_query(ahead, 4 * i, query, int32(item + AHEAD * WARPS), vectors, lane)
                        found = store_query(queries, exponents, item, a, b, c, d, greatest, lane)
                        ordinary = ordinary and found
                first_item = int32(first_item + AHEAD * WARPS)
            ordinary = cuda.syncthreads_and(int32(1) if ordinary else int32(0)) != 0
            while tile <= tiles:
                for i in range(4):
                    k = i * 4
                    for side in range(2):
                        j = k + side * 16
                        low[k + side], low[k + side + 2] = limbs_of(raw, j, int32(0x6420))
                        high[k + side], high[k + side + 2] = limbs_of(raw, j, int32(0x7531))
                power_low, power_high = signed_exponent(key_exponents[0]), signed_exponent(key_exponents[1])
                plain = ordinary and cuda.all_sync(FULL_WARP, is_ordinary(power_low) and is_ordinary(power_high))
                spare = tile == tiles
                first_block = int32(tile * TILE + g + 8 * (quarter & 1))
                row_bytes = int64(max_blocks) * 4
                to = global_base(out) + int64(group_start + (quarter >> 1)) * row_bytes + int64(first_block) * 4
                tile = int32(tile + stride)
                if tile >= tiles:
                    tile = tiles if keeper and not spare else int32(tiles + 1)
                if tile <= tiles:
                    load_tile(
                        raw, key_exponents, tile, tile == tiles, quarter, g, max_blocks,
                        pooled, pooled_exponent, dead, dead_exponent,
                    )  # fmt: skip
                pair = int32(0)
                while pair < held:
                    for i in range(16):
                        dots[i] = int32(0)
                    for half in range(2):
                        multiply(dots, 0, queries, pair, half, low, high, lane)
                        if pair + 1 < held:
                            multiply(dots, 8, queries, int32(pair + 1), half, low, high, lane)
                    own = int32(exponents + (pair * HEADS + quarter) * 4)
                    q0, q1 = ld_shared_i32(own), ld_shared_i32(int32(own + HEADS * 4))
                    # Head ``quarter`` of (row, key): two rows, each of the keys g and g + 8.
                    m0, m1 = int32(dots[1] + dots[4]), int32(dots[3] + dots[6])
                    m2, m3 = int32(dots[9] + dots[12]), int32(dots[11] + dots[14])
                    if plain:
                        x0 = ordinary_dot(dots[0], m0, dots[5], int32(power_low + q0))
                        x1 = ordinary_dot(dots[2], m1, dots[7], int32(power_high + q0))
                        x2 = ordinary_dot(dots[8], m2, dots[13], int32(power_low + q1))
                        x3 = ordinary_dot(dots[10], m3, dots[15], int32(power_high + q1))
                    else:
                        x0 = relu_dot(dots[0], m0, dots[5], int32(power_low + q0))
                        x1 = relu_dot(dots[2], m1, dots[7], int32(power_high + q0))
                        x2 = relu_dot(dots[8], m2, dots[13], int32(power_low + q1))
                        x3 = relu_dot(dots[10], m3, dots[15], int32(power_high + q1))
                    # Lanes 0 and 1 of four keep the first row, 2 and 3 the second; even ones key g, odd ones g + 8.
                    upper = lane & 2 != 0
                    other0 = cuda.shfl_xor_sync(FULL_WARP, x0 if upper else x2, 2)
                    other1 = cuda.shfl_xor_sync(FULL_WARP, x1 if upper else x3, 2)
                    mine0, mine1 = (x2, x3) if upper else (x0, x1)
                    lower0, upper0 = (other0, mine0) if upper else (mine0, other0)
                    lower1, upper1 = (other1, mine1) if upper else (mine1, other1)
                    odd = lane & 1 != 0
                    lower = cuda.shfl_xor_sync(FULL_WARP, lower0 if odd else lower1, 1)
                    higher = cuda.shfl_xor_sync(FULL_WARP, upper0 if odd else upper1, 1)
                    h0, h1 = (lower, lower1) if odd else (lower0, lower)
                    h2, h3 = (higher, upper1) if odd else (upper0, higher)
                    score = libdevice.fadd_rn(libdevice.fadd_rn(libdevice.fadd_rn(h0, h1), h2), h3)
                    if not plain:
                        score = score if score == score else int_as_float(int32(NAN_BITS))
                    row = int32(pair + (quarter >> 1))
                    # -1 beyond the rows that are held.
                    row_last = cuda.shfl_sync(FULL_WARP, last, row)
                    if spare:
                        has_cells = cuda.shfl_sync(FULL_WARP, bonus, row)
                        if has_cells != 0:
                            score = libdevice.fadd_rn(score, float32(TAIL_BONUS))
                            score = score if score == score else int_as_float(int32(NAN_BITS))
                        if row_last >= 0 and lane & ~2 == 0:
                            st_global_f32(to + int64(row_last - first_block) * 4, score)
                    elif first_block < row_last:
                        st_global_f32(to, score)
                    pair = int32(pair + 2)
                    to += 2 * row_bytes
            group_start = int32(group_start + cuda.gridDim.y * group)

    return block_scores_int16


def operands(index: DeviceIndex, rows: int) -> tuple[Operand, ...]:
    """The arrays that a call gives, in the order of the kernel's arguments."""
    g = index.geometry
    return (
        Operand("q_idx", "float32", (rows, g.idx_heads, g.idx_dim)),
        Operand("index.pooled", "int16", index.pooled.shape),
        Operand("index.pooled_exponent", "int16", (index.max_blocks,), 4),
        Operand("index.dead", "int16", index.dead.shape),
        Operand("index.dead_exponent", "int16", (1,), 4),
        Operand("steps", "int32", (rows, 4)),
        Operand("out", "float32", (rows, index.max_blocks)),
    )


def default_schedule(rows: int) -> str:
    """The schedule of a call of ``rows`` rows that names none: keys are read once for all rows that may share them."""
    return "warp" if rows <= 1 else "multi_query" if rows <= WINDOW_ROWS else "prompt"


def launches(arrays: list[Argument], rows: int, max_blocks: int, ratio: int, schedule: str) -> list[Any]:
    """The prepared launches of a call; ``arrays`` are its operands."""
    if rows == 0:
        return []
    group = 1 if schedule == "warp" else min(rows, GROUP)
    groups = -(-rows // group)
    tiles, multiprocessors = max_blocks // TILE + 2, properties().multiprocessors
    matrix = properties().compute_capability >= (8, 0)
    held = multiprocessors * (RESIDENT if matrix else 1)
    # Few tiles are spread over all multiprocessors.
    turns = max(-(-tiles // WARPS), min(tiles, multiprocessors))
    grid = min(turns, max(1, held // min(groups, held))), min(groups, MAX_GRID_YZ)
    form = build(matrix)
    return [prepare(form, grid, THREADS, (*arrays, rows, group, max_blocks, ratio))]


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    signature = signature_of(F3, H2, H1, H1, H1, I2, F2, *["int64"] * 4)
    yield PtxRow("block_scores_int16", build.build(True), signature, expect=TENSOR_CORE, minimum=(8, 0))
    yield PtxRow("block_scores_int16_dp4a", build.build(False), signature, expect=("dp4a.s32.s32", "dp4a.u32.s32"))
