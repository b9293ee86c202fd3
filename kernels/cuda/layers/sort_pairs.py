"""Pairs of a row and an expert, sorted by expert on the device, so that the pairs of one expert share its weights."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..toolchain.compiler import (
    address,
    array_module,
    cuda,
    device_function,
    int32,
    int64,
    kernel,
    launch,
    specialised,
)
from ..toolchain.constants import FULL_WARP, STATIC_SHARED, WARP
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import (
    atom_shared_add_i32,
    ld_global_i64_nc,
    ld_shared_i32,
    red_shared_add_i32,
    shared_base,
    st_global_i32,
    st_global_v4_i32,
    st_shared_i32,
)
from ..toolchain.ptx_rows import PtxRow, integers
from .fixed_rows import COLUMNS
from .matrix import SOME

SORTERS = 1024
"""Lanes of the one thread block that sorts."""

MOST_EXPERTS = STATIC_SHARED // 4
"""Experts whose counters fit the 48 KiB of shared memory that every device gives."""

PAIRS = COLUMNS * SOME[1]
"""Pairs of a record: those of one thread block of the product."""


@device_function
def _expert_of(ids, pair, experts):
    """Expert of a pair, kept inside the table: ``combine`` poisons the row of an id that is not."""
    expert = ld_global_i64_nc(ids + int64(pair) * 8)
    return int32(min(max(expert, 0), experts - 1))


@specialised
def sort_kernel() -> Any:
    """The kernel that sorts pairs by expert: one block of 1,024 lanes with 4 bytes of shared memory an expert.

    Addresses of ``ids`` [pairs] int64, ``order`` [pairs] int32 and ``table`` [blocks, 4] int32 (for
    ``matrix.matrix_kernel``), how many ``pairs``, ``experts`` and ``blocks``. Which of an expert's pairs comes first is
    left to chance: no byte of a result depends on it.
    """

    @kernel()
    def sort_pairs(ids, order, table, pairs, experts, blocks):
        counts = shared_base(cuda.shared.array(0, int32))
        made = cuda.shared.array(1, int32)
        thread = int32(cuda.threadIdx.x)
        expert = thread
        while expert < experts:
            st_shared_i32(int32(counts + expert * 4), int32(0))
            expert = int32(expert + SORTERS)
        cuda.syncthreads()
        pair = thread
        while pair < pairs:
            red_shared_add_i32(int32(counts + _expert_of(ids, pair, experts) * 4), int32(1))
            pair = int32(pair + SORTERS)
        cuda.syncthreads()
        if thread < WARP:
            # Sums over the experts before: of pairs, and of records of at most PAIRS pairs. Counts become indices.
            begun, written = int32(0), int32(0)
            first = int32(0)
            while first < experts:
                expert = int32(first + thread)
                count = int32(0)
                if expert < experts:
                    count = ld_shared_i32(int32(counts + expert * 4))
                records = int32((count + PAIRS - 1) // PAIRS)
                upto, record = count, records
                for stride in (1, 2, 4, 8, 16):
                    before = cuda.shfl_up_sync(FULL_WARP, upto, stride)
                    earlier = cuda.shfl_up_sync(FULL_WARP, record, stride)
                    if thread >= stride:
                        upto, record = int32(upto + before), int32(record + earlier)
                start, at = int32(begun + upto - count), int32(written + record - records)
                if expert < experts:
                    st_shared_i32(int32(counts + expert * 4), start)
                i = int32(0)
                while i < records:
                    left = int32(min(count - i * PAIRS, PAIRS))
                    st_global_v4_i32(table + int64(at + i) * 16, expert, int32(start + i * PAIRS), left, int32(0))
                    i = int32(i + 1)
                begun = int32(begun + cuda.shfl_sync(FULL_WARP, upto, WARP - 1))
                written = int32(written + cuda.shfl_sync(FULL_WARP, record, WARP - 1))
                first = int32(first + WARP)
            if thread == 0:
                made[0] = written
        cuda.syncthreads()
        record = int32(made[0] + thread)
        while record < blocks:
            st_global_v4_i32(table + int64(record) * 16, int32(0), int32(0), int32(0), int32(0))
            record = int32(record + SORTERS)
        pair = thread
        while pair < pairs:
            index = atom_shared_add_i32(int32(counts + _expert_of(ids, pair, experts) * 4), int32(1))
            st_global_i32(order + int64(index) * 4, pair)
            pair = int32(pair + SORTERS)

    return sort_pairs


def sorted_pairs(ids: DeviceArray, pairs: int, experts: int) -> tuple[DeviceArray, DeviceArray]:
    """(table, order) of pairs by expert; one launch. An expert's pairs fill all but its last record."""
    xp = array_module()
    table = xp.empty((pairs // PAIRS + min(experts, pairs), 4), np.int32)
    order = xp.empty(pairs, np.int32)
    arguments = address(ids), address(order), address(table), pairs, experts, len(table)
    launch(sort_kernel(), 1, SORTERS, arguments, shared=4 * experts)
    return table, order


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("sort_pairs", sort_kernel.build(), integers(6))
