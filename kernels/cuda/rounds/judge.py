"""Rejection sampling on the device: the decisions of ``reference/exact/speculative.py``.

A warp to a row. A list has at most 64 tokens, two neighbours a lane. Products of masses and sums take two 64-bit words,
high and low: with masses of at most 2^40 and sums of at most 2^46 all of them stay below 2^111.
"""

from collections.abc import Iterator

from qsa.reference.exact.sampler import U_BITS
from qsa.reference.sampler import ACCEPT, RESIDUAL

from ..common.checks import check_array
from ..sampler import Lists
from ..sampler_kernels.philox import uniform
from ..sampler_kernels.row import MOST_KEPT
from ..toolchain.compiler import address, cuda, device_function, int32, int64, kernel, launch, uint64
from ..toolchain.constants import FULL_WARP, WARP
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import ld_global_i32, ld_global_i64, st_global_i32
from ..toolchain.ptx_rows import PtxRow, integers

NOT_JUDGED = -1
"""In the place of a list's index: the row's own token stands."""

LOW = 0xFFFFFFFF


@device_function
def _product(a, b):
    """(high, low) of the uint64 product."""
    a0, a1 = uint64(a & uint64(LOW)), uint64(a >> uint64(32))
    b0, b1 = uint64(b & uint64(LOW)), uint64(b >> uint64(32))
    low, m0, m1 = uint64(a0 * b0), uint64(a0 * b1), uint64(a1 * b0)
    middle = uint64((low >> uint64(32)) + (m0 & uint64(LOW)) + (m1 & uint64(LOW)))
    high = uint64(uint64(a1 * b1) + (m0 >> uint64(32)) + (m1 >> uint64(32)) + (middle >> uint64(32)))
    return high, uint64(uint64(middle << uint64(32)) | (low & uint64(LOW)))


@device_function
def _times(high, low, u):
    """(high, low) of the number times ``u``, below 2^128."""
    carry, product = _product(low, u)
    return uint64(uint64(high * u) + carry), product


@device_function
def _less(high, low, other_high, other_low):
    return high < other_high or (high == other_high and low < other_low)


@device_function
def _sum(high, low, other_high, other_low):
    total = uint64(low + other_low)
    carry = uint64(1) if total < low else uint64(0)
    return uint64(high + other_high + carry), total


@device_function
def _residual(p, q, p_sum, q_sum):
    """max(0, p * q_sum - q * p_sum) as (high, low)."""
    high, low = _product(p, q_sum)
    other_high, other_low = _product(q, p_sum)
    borrow = uint64(1) if low < other_low else uint64(0)
    kept = _less(other_high, other_low, high, low)
    difference = uint64(high - other_high - borrow) if kept else uint64(0)
    return difference, uint64(low - other_low) if kept else uint64(0)


@device_function
def _warp_sum(x):
    """Sum of the uint64 ``x`` of all lanes."""
    for i in range(5):
        x = uint64(x + uint64(cuda.shfl_xor_sync(FULL_WARP, int64(x), 1 << i)))
    return x


@kernel()
def judge_kernel(
    ids, masses, counts, q_ids, q_masses, q_counts, drafts, which, seeds, positions, drawn, tokens, accepted
):
    """Grid (rows), a warp. Addresses alone."""
    row, lane = int64(cuda.blockIdx.x), int32(cuda.threadIdx.x)
    own = ld_global_i32(drawn + row * 4)
    draft, listed = ld_global_i32(drafts + row * 4), ld_global_i32(which + row * 4)
    n = ld_global_i32(counts + row * 4)
    if listed < 0 or draft < 0 or n < 1:
        if lane == 0:
            st_global_i32(tokens + row * 4, own)
            st_global_i32(accepted + row * 4, int32(0))
        return
    a, b = int32(2 * lane), int32(2 * lane + 1)
    at, q_at = row * MOST_KEPT, int64(listed) * MOST_KEPT
    id_a, id_b, p_a, p_b = int32(-1), int32(-1), uint64(0), uint64(0)
    if a < n:
        id_a, p_a = ld_global_i32(ids + (at + a) * 4), uint64(ld_global_i64(masses + (at + a) * 8))
    if b < n:
        id_b, p_b = ld_global_i32(ids + (at + b) * 4), uint64(ld_global_i64(masses + (at + b) * 8))
    q_a, q_b, q_draft, q_sum = uint64(0), uint64(0), uint64(0), uint64(0)
    for i in range(ld_global_i32(q_counts + int64(listed) * 4)):
        token, mass = ld_global_i32(q_ids + (q_at + i) * 4), uint64(ld_global_i64(q_masses + (q_at + i) * 8))
        q_sum = uint64(q_sum + mass)
        q_draft = mass if token == draft else q_draft
        q_a = mass if token == id_a else q_a
        q_b = mass if token == id_b else q_b
    if q_draft == uint64(0):
        # A point mass at the draft.
        q_draft, q_sum = uint64(1), uint64(1)
        q_a = uint64(1) if id_a == draft else uint64(0)
        q_b = uint64(1) if id_b == draft else uint64(0)
    p_sum = _warp_sum(uint64(p_a + p_b))
    p_draft = _warp_sum(uint64((p_a if id_a == draft else uint64(0)) + (p_b if id_b == draft else uint64(0))))
    seed, position = ld_global_i64(seeds + row * 8), ld_global_i64(positions + row * 8)
    u = uint64(uniform(seed, position, ACCEPT))
    high, low = _product(q_draft, p_sum)
    high, low = _times(high, low, u)
    other_high, other_low = _product(p_draft, q_sum)
    other_high, other_low = _times(other_high, other_low, uint64(1 << U_BITS))
    if _less(high, low, other_high, other_low):
        if lane == 0:
            st_global_i32(tokens + row * 4, draft)
            st_global_i32(accepted + row * 4, int32(1))
        return
    a_high, a_low = _residual(p_a, q_a, p_sum, q_sum)
    b_high, b_low = _residual(p_b, q_b, p_sum, q_sum)
    # Sums of the residuals up to this lane's second token.
    high, low = _sum(a_high, a_low, b_high, b_low)
    for i in range(5):
        below_high = uint64(cuda.shfl_up_sync(FULL_WARP, int64(high), 1 << i))
        below_low = uint64(cuda.shfl_up_sync(FULL_WARP, int64(low), 1 << i))
        if lane >= 1 << i:
            high, low = _sum(high, low, below_high, below_low)
    total_high = uint64(cuda.shfl_sync(FULL_WARP, int64(high), 31))
    total_low = uint64(cuda.shfl_sync(FULL_WARP, int64(low), 31))
    u = uint64(uniform(seed, position, RESIDUAL))
    # floor(u * total / 2^24) without the product, which may need more than two words.
    upper_high = uint64(total_high >> uint64(U_BITS))
    upper_low = uint64(uint64(total_high << uint64(64 - U_BITS)) | (total_low >> uint64(U_BITS)))
    rest = uint64(uint64((total_low & uint64((1 << U_BITS) - 1)) * u) >> uint64(U_BITS))
    limit_high, limit_low = _times(upper_high, upper_low, u)
    limit_high, limit_low = _sum(limit_high, limit_low, uint64(0), rest)
    before_b = not _less(limit_high, limit_low, high, low)
    # The sum up to the first token: that up to the second one less the second one's own.
    borrow = uint64(1) if low < b_low else uint64(0)
    high, low = uint64(high - b_high - borrow), uint64(low - b_low)
    before_a = not _less(limit_high, limit_low, high, low)
    rank = int32(cuda.popc(cuda.ballot_sync(FULL_WARP, before_a)) + cuda.popc(cuda.ballot_sync(FULL_WARP, before_b)))
    if lane == 0:
        st_global_i32(tokens + row * 4, ld_global_i32(ids + (at + rank) * 4))
        st_global_i32(accepted + row * 4, int32(0))


def judge(
    own: Lists,
    drawn: DeviceArray,
    drafts: DeviceArray,
    listed: Lists,
    which: DeviceArray,
    seeds: DeviceArray,
    positions: DeviceArray,
    tokens: DeviceArray,
    accepted: DeviceArray,
) -> None:
    """Rejection sampling: a decision for each row; as ``kernels.cpu.speculative.judge``. One launch, nothing waits.

    own        :class:`Lists` of the rows, from the sampler
    drawn      int32 [rows]: tokens or error codes that the sampler drew from them with PICK
    drafts     int32 [rows]: the token that a row judges; below 0: none, or one that could not be drawn
    listed     :class:`Lists` from which the drafts were drawn
    which      int32 [rows]: the draft's list among ``listed``; below 0: the row judges nothing
    seeds      uint64 [rows]; positions int64 [rows]: the rows' own
    tokens     int32 [rows] to be written: the draft where accepted, otherwise what is emitted in its place; ``drawn``
               where nothing is judged or the row failed
    accepted   int32 [rows] to be written: 1 or 0

    Raises ValueError on mismatched arrays.
    """
    rows, lists = len(drawn), len(listed.counts)
    for name, array, dtype, shape in (
        ("own.ids", own.ids, "int32", (rows, MOST_KEPT)),
        ("own.masses", own.masses, "uint64", (rows, MOST_KEPT)),
        ("own.counts", own.counts, "int32", (rows,)),
        ("listed.ids", listed.ids, "int32", (lists, MOST_KEPT)),
        ("listed.masses", listed.masses, "uint64", (lists, MOST_KEPT)),
        ("listed.counts", listed.counts, "int32", (lists,)),
        ("drafts", drafts, "int32", (rows,)),
        ("which", which, "int32", (rows,)),
        ("seeds", seeds, "uint64", (rows,)),
        ("positions", positions, "int64", (rows,)),
        ("drawn", drawn, "int32", (rows,)),
        ("tokens", tokens, "int32", (rows,)),
        ("accepted", accepted, "int32", (rows,)),
    ):
        check_array(name, array, dtype, shape, alignment=array.dtype.itemsize)
    arrays = (*own, *listed, drafts, which, seeds, positions, drawn, tokens, accepted)
    launch(judge_kernel, rows, WARP, tuple(map(address, arrays)))


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("round_judge", judge_kernel, integers(13))
