"""The kernel of ``sample``: a thread block to a slice of a row, and the row's last one finishes it.

A thread block counts its slice's tokens in the history, penalises, and lists its slice's best with the search of
``select``; the one that comes last lists the best of those, orders them, and one warp carries out the chain's end. It
waits for nobody, so any number of them may be resident. Everything about a row is read on the device.
"""

from collections.abc import Iterator
from typing import Any

from qsa.reference.exact import sampler as exact

from ..toolchain.compiler import cuda, device_function, float32, int32, int64, kernel, specialised, uint32
from ..toolchain.ptx import (
    atom_global_inc,
    global_base,
    ld_global_f32_nc,
    ld_global_i32,
    ld_global_i64,
    ld_shared_i32,
    red_shared_add_i32,
    shared_base,
    st_global_i32,
    st_shared_i32,
)
from ..toolchain.ptx_rows import F2, I1, I2, PtxRow, signature_of
from ..topk.radix_search import BINS_OFFSET, CHOSEN_OFFSET, SHARED_WORDS, STATE_OFFSET, THREADS, key_at, selection_key
from ..topk.row_search import held_search
from .row import (
    FREQUENCY,
    LAST_N,
    MOST_KEPT,
    NOT_FINITE,
    POSSIBLE,
    PRESENCE,
    REPEAT,
    UNKNOWN,
    finish,
    penalised,
    real,
)

TURNS = 8
"""Tokens of a slice that a lane holds. A slice of 8,192 leaves the lists of 248,320 tokens few enough for the short
search, and its counts fit the shared memory that the search needs anyway."""

SLICE = THREADS * TURNS

UNSORTED_OFFSET, SORTED_OFFSET = BINS_OFFSET, BINS_OFFSET + 8 * MOST_KEPT
"""Shared bytes of the list, keys and then ids, before and after it is ordered: where the search had its bins."""


@device_function
def _refuse(code, row, slice_, tokens, counts):
    if slice_ == 0 and cuda.threadIdx.x == 0:
        st_global_i32(global_base(tokens) + int64(row) * 4, int32(code))
        st_global_i32(global_base(counts) + int64(row) * 4, int32(code))


@device_function
def _order(best, keys, labels, shared):
    """The ``best`` chosen elements' keys at the address ``keys`` and ids at ``labels``, descending at SORTED_OFFSET.

    The chosen ones ascend by id, so of equal keys the earlier one comes first.
    """
    thread = int32(cuda.threadIdx.x)
    if thread < best:
        element = int64(ld_shared_i32(int32(shared + CHOSEN_OFFSET + thread * 4)))
        st_shared_i32(int32(shared + UNSORTED_OFFSET + thread * 4), ld_global_i32(keys + element * 4))
        st_shared_i32(int32(shared + UNSORTED_OFFSET + (MOST_KEPT + thread) * 4), ld_global_i32(labels + element * 4))
    cuda.syncthreads()
    if thread < best:
        own = ld_shared_i32(int32(shared + UNSORTED_OFFSET + thread * 4))
        rank = int32(0)
        for other in range(best):
            key = uint32(ld_shared_i32(int32(shared + UNSORTED_OFFSET + other * 4)))
            if key > uint32(own) or (key == uint32(own) and other < thread):
                rank = int32(rank + 1)
        st_shared_i32(int32(shared + SORTED_OFFSET + rank * 4), own)
        label = ld_shared_i32(int32(shared + UNSORTED_OFFSET + (MOST_KEPT + thread) * 4))
        st_shared_i32(int32(shared + SORTED_OFFSET + (MOST_KEPT + rank) * 4), label)
    cuda.syncthreads()


@specialised
def sampler(turns: int) -> Any:
    """The kernel for slices of at most 1,024 * ``turns`` tokens; grid (rows, slices), 1,024 lanes.

    ``scratch`` [rows, words_per_row] int32: a counter, 0 before and after; the slices' statuses; keys and then ids of
    the slices' best; the keys of a penalised row. ``slots`` is read where ``n_slots`` > 0, otherwise a row's line is
    its own.
    """
    best_of = held_search(turns)
    shared_words = max(SHARED_WORDS, turns * THREADS)

    @device_function
    def survey(source, target, own, window, vocab, start, options, shared):
        """Status of the slice of ``own`` logits at the address ``source``, whose first token is ``start``; and whether
        it was penalised, so that its keys lie at ``target``. ``window`` (address, tokens) of the history."""
        thread = int32(cuda.threadIdx.x)
        tokens, length = window
        repeat, frequency, presence = real(options, REPEAT), real(options, FREQUENCY), real(options, PRESENCE)
        off = repeat == float32(1) and frequency == float32(0) and presence == float32(0)
        penalises = length > 0 and not off
        if penalises:
            for i in range(turns):
                st_shared_i32(int32(shared + (thread + i * THREADS) * 4), int32(0))
        cuda.syncthreads()
        unknown, bad, possible = int32(0), int32(0), int32(0)
        index = thread
        while index < length:
            token = ld_global_i32(tokens + int64(index) * 4)
            if token < 0 or token >= vocab:
                unknown = int32(1)
            elif penalises and start <= token < start + own:
                red_shared_add_i32(int32(shared + (token - start) * 4), int32(1))
            index = int32(index + THREADS)
        cuda.syncthreads()
        for i in range(turns):
            element = int32(thread + i * THREADS)
            if element < own:
                x = ld_global_f32_nc(source + int64(element) * 4)
                # Not so for a NaN either.
                finite = x < float32(float("inf"))
                possible = int32(1) if finite and x > float32(float("-inf")) else possible
                bad = bad if finite else int32(1)
                if penalises:
                    count = ld_shared_i32(int32(shared + element * 4))
                    if count > 0 and finite and x > float32(float("-inf")):
                        x = penalised(x, count, repeat, frequency, presence)
                    st_global_i32(target + int64(element) * 4, int32(selection_key(x)))
        status = int32(NOT_FINITE if cuda.syncthreads_or(bad) else 0)
        status = int32(status | (POSSIBLE if cuda.syncthreads_or(possible) else 0))
        return int32(status | (UNKNOWN if cuda.syncthreads_or(unknown) else 0)), penalises

    @kernel(launch_bounds=(THREADS, 1))
    def sample(logits, options, history, slots, lengths, seeds, positions, scratch, tokens, ids, masses, counts, sizes):
        vocab, length, n_slots, lines, capacity, words_per_row, purpose = sizes
        words = cuda.shared.array(shared_words, int32)
        shared = shared_base(words)
        row, slice_, slices = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
        thread = int32(cuda.threadIdx.x)
        own_options = global_base(options) + int64(row) * (exact.WORDS * 4)
        limit, last_n = ld_global_i32(own_options), ld_global_i32(own_options + LAST_N * 4)
        position = ld_global_i64(global_base(positions) + int64(row) * 8)
        if position < 0:
            _refuse(exact.NO_ROW, row, slice_, tokens, counts)
            return
        if limit < 1 or limit > MOST_KEPT:
            _refuse(exact.TOO_LONG, row, slice_, tokens, counts)
            return
        line, held = row, ld_global_i32(global_base(lengths) + int64(row) * 4)
        if n_slots > 0:
            line = ld_global_i32(global_base(slots) + int64(row) * 4)
        if line < 0 or line >= lines or held < 0 or held > capacity:
            _refuse(exact.UNKNOWN_TOKEN, row, slice_, tokens, counts)
            return
        seen = held if last_n < 0 else min(held, last_n)
        window = (global_base(history) + (int64(line) * capacity + (held - seen)) * 4, int32(seen))
        counter = global_base(scratch) + int64(row) * words_per_row * 4
        statuses = counter + 4
        found = statuses + int64(slices) * 4
        labels = found + int64(slices) * (MOST_KEPT * 4)
        start = int32(slice_ * length)
        own = int32(min(length, vocab - start))
        best = min(limit, own)
        source = global_base(logits) + (int64(row) * vocab + start) * 4
        target = labels + int64(slices) * (MOST_KEPT * 4) + int64(start) * 4
        status, coded = survey(source, target, own, window, vocab, start, own_options, shared)
        if coded:
            source = target
        best_of(source, coded, own, best, shared)
        if thread < limit:
            key, label = int32(0), int32(0)
            if thread < best:
                element = ld_shared_i32(int32(shared + CHOSEN_OFFSET + thread * 4))
                key, label = int32(key_at(source, coded, element)), int32(start + element)
            at = int64(slice_ * limit + thread) * 4
            st_global_i32(found + at, key)
            st_global_i32(labels + at, label)
        if slices > 1:
            if thread == 0:
                st_global_i32(statuses + int64(slice_) * 4, status)
            cuda.syncthreads()
            if thread == 0:
                # Orders the thread block's words before, and those of the ones that came earlier after.
                st_shared_i32(int32(shared + STATE_OFFSET), atom_global_inc(counter, int32(slices - 1)))
            cuda.syncthreads()
            if ld_shared_i32(int32(shared + STATE_OFFSET)) != slices - 1:
                return
            status = int32(0)
            for other in range(slices):
                status = int32(status | ld_global_i32(statuses + int64(other) * 4))
            best = limit
            best_of(found, True, int32(slices * limit), best, shared)
        else:
            # The list is the slice's own, in its own order.
            cuda.syncthreads()
            if thread < best:
                st_shared_i32(int32(shared + CHOSEN_OFFSET + thread * 4), thread)
            cuda.syncthreads()
        _order(best, found, labels, shared)
        if thread < 32:
            seed = ld_global_i64(global_base(seeds) + int64(row) * 8)
            out = (global_base(tokens), global_base(ids), global_base(masses), global_base(counts))
            finish(int32(shared + SORTED_OFFSET), best, status, own_options, seed, position, purpose, row, out)

    return sample


def ptx_rows() -> Iterator[PtxRow]:
    """The builds whose PTX is checked: a :class:`PtxRow` each."""
    inputs = (F2, I2, I2, I1, I1, "uint64[::1]", "int64[::1]")
    signature = signature_of(*inputs, I2, I1, I2, "uint64[:, ::1]", I1, "UniTuple(int64, 7)")
    yield PtxRow("sample", sampler.build(TURNS), signature)
