"""Rows of PLE's table on the device, for ids that the host has not seen; those of ``reference.model.ple.ngram_rows``.

The hash is made of int64 products, exclusive ors and remainders, none of them negative: a multiplier times an id stays
below 2^63.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from qsa.reference.model.ple import Hash

from ..common.checks import check_array
from ..toolchain.compiler import address, array_module, cuda, int32, int64, kernel, launch
from ..toolchain.host import DeviceArray
from ..toolchain.ptx import ld_global_i32, ld_global_i64, ld_global_i64_nc, st_global_i64
from ..toolchain.ptx_rows import PtxRow, integers

THREADS = 64


class HashTable(NamedTuple):
    """Hash constants of one PLE layer: ``words`` int64 on the device, the multipliers, then sizes, then offsets;
    ``ngram`` multipliers, ``heads`` sizes, and the id ``eos`` of the end of text."""

    words: DeviceArray
    ngram: int
    heads: int
    eos: int


def hash_table(constants: Hash, eos: int) -> HashTable:
    """:class:`HashTable` of a layer's constants."""
    words = np.array([*constants.multipliers, *constants.sizes, *constants.offsets], np.int64)
    return HashTable(array_module().array(words), len(constants.multipliers), len(constants.sizes), eos)


@kernel()
def ngram_kernel(ids, before, places, words, out, count, ngram, heads, eos):
    """Grid (rows * heads / 64), a lane to a row and head."""
    item = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if item >= count * heads:
        return
    row, head = int64(item // heads), int64(item % heads)
    line = int64(ld_global_i32(places + row * 8))
    offset = int64(ld_global_i32(places + row * 8 + 4))
    held = ngram - 1
    far = head // (heads // held) + 1
    mixed = ld_global_i64(ids + row * 8) * ld_global_i64_nc(words)
    cut = False
    back = int64(1)
    while back <= far:
        older = eos
        if not cut:
            if back <= offset:
                older = ld_global_i64(ids + (row - back) * 8)
            else:
                older = ld_global_i64(before + (line * held + held + offset - back) * 8)
            cut = older == eos
        mixed = mixed ^ (older * ld_global_i64_nc(words + back * 8))
        back = back + 1
    size = ld_global_i64_nc(words + (ngram + head) * 8)
    start = ld_global_i64_nc(words + (ngram + heads + head) * 8)
    st_global_i64(out + (row * heads + head) * 8, mixed % size + start)


def ngram_rows(ids: DeviceArray, before: DeviceArray, places: DeviceArray, table: HashTable) -> DeviceArray:
    """Table rows int64 [n, heads] of the n-grams of ``ids``; one launch.

    ids     int64 [n], of several sequences
    before  int64 [sequences, ngram - 1], the ids before each sequence's rows, oldest first
    places  int32 [n, 2]: a row's sequence, and its offset among the sequence's rows

    Raises ValueError on mismatched arrays.
    """
    n = len(ids)
    check_array("ids", ids, "int64", (n,), alignment=8)
    check_array("before", before, "int64", (len(before), table.ngram - 1), alignment=8)
    check_array("places", places, "int32", (n, 2), alignment=4)
    out = array_module().empty((n, table.heads), "int64")
    arguments = [address(array) for array in (ids, before, places, table.words, out)]
    launch(ngram_kernel, -(-n * table.heads // THREADS), THREADS, (*arguments, n, table.ngram, table.heads, table.eos))
    return out


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    yield PtxRow("round_ngrams", ngram_kernel, integers(9))
