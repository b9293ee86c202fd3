"""``qsa parity verify-batch --bench``: the effect of each switch, timed on a CUDA device by graph replay.

    python -m qsa.parity.bench.switches [--json FILE]

The real geometry, int8 K/V, a capacity of 200,000 cells, contexts of 1K, 16K and 64K. Off, on and unset are compared
before they are timed: they give the same bytes. Unset is timed where a table chooses then, which may be neither; the
other kernels' switches are at 0 meanwhile. Medians in microseconds, hot: the data stays in the caches as far
as it fits.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qsa.golden import inputs
from qsa.golden.store import write_json
from qsa.kernels.cuda import backend as cuda
from qsa.kernels.cuda.device import to_device
from qsa.kernels.cuda.toolchain.compiler import array_module
from qsa.kernels.switches import override
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..checks.verify_batch import DRAFT_CELLS
from ..checks.verify_window import CAPACITY_BLOCKS
from . import script, timing
from .switch_table import Row, as_json, lines

CONTEXTS = (1024, 16384, 65536)

MAX_BLOCKS = CAPACITY_BLOCKS + 4
"""Of an index: the spare block, and some more so that every row's scores start at a multiple of 16 bytes."""

CELLS = 4096
"""Distinct cells and keys of a pool and an index, repeated up to the capacity: making them is not what is timed."""


def _slot(number: int) -> tuple[Any, Any]:
    """(DeviceKV, device Index) of one slot: 200,000 cells, pages shuffled."""
    cells = CAPACITY_BLOCKS * REAL.ratio
    table = inputs.permutation(number, "bench.pages", CAPACITY_BLOCKS)
    kv = PagedKV.new("int8", cells, table=table)
    dims = REAL.n_head_kv * REAL.head_dim
    for name, side in (("k", kv.pool.k), ("v", kv.pool.v)):
        codes = inputs.int8_codes(number, f"bench.{name}", CELLS, dims)
        scale = inputs.fp16_scales(number, f"bench.{name}.scale", CELLS, dims // 64)
        side.codes[:] = np.resize(codes, side.codes.shape)
        side.scale[:] = np.resize(scale, side.scale.shape)
    index = Index(MAX_BLOCKS, np.ones(REAL.idx_dim, np.float32))
    # As many different keys as there are blocks of 64K cells.
    index.pooled[:] = np.resize(inputs.bell(number, "bench.keys", 1 << 14, REAL.idx_dim), index.pooled.shape)
    index.dead[:] = index.pooled[0]
    return to_device(kv), to_device(index)


class _DeviceWindow:
    """A window of slots x rows at one context on the device, its operations and their buffers."""

    def __init__(self, held: list[tuple[Any, Any]], rows: int, context: int) -> None:
        xp, n = array_module(), len(held) * rows
        self.kvs, self.indexes = ([pair[i] for pair in held] for i in range(2))
        slots = np.repeat(np.arange(len(held), dtype=np.int32), rows)
        self.slots, self.slot_of, self.rows = xp.asarray(slots), slots.tolist(), rows
        self.steps = xp.asarray(step_records(context - rows + np.tile(np.arange(rows), len(held))))
        q_idx = inputs.bell(1, "bench.q_idx", n, REAL.idx_heads * REAL.idx_dim)
        self.q_idx = xp.asarray(q_idx.reshape(n, REAL.idx_heads, REAL.idx_dim))
        q = inputs.bell(1, "bench.q", n, REAL.n_head * REAL.head_dim, 2.0)
        self.q = xp.asarray(q.reshape(n, REAL.n_head, REAL.head_dim))
        self.scores = xp.full((n, MAX_BLOCKS), -np.inf, "float32")
        self.ids = xp.full((n, REAL.max_width), -1, "int32")
        # A row's own ids: 2,051 of them are no multiple of 16 bytes, where a call's arrays have to start.
        self.row_ids = [xp.full((1, REAL.max_width), -1, "int32") for _ in range(n)]
        self.out = xp.empty_like(self.q)

    def by_row(self) -> None:
        """Scores, selection and attention row by row, as windows over several slots ran without the switch."""
        for row, slot in enumerate(self.slot_of):
            at, ids = slice(row, row + 1), self.row_ids[row]
            cuda.block_scores(self.q_idx[at], self.indexes[slot], self.steps[at], self.scores[at])
            cuda.select(self.scores[at], self.steps[at], ids)
            cuda.attend(self.q[at], self.kvs[slot], ids, self.steps[at], out=self.out[at], schedule="step")

    def as_batch(self) -> None:
        """Scores once per slot, selection once, attention once over all slots' pools."""
        self.score()
        self.choose()
        cuda.attend(self.q, self.kvs, self.ids, self.steps, self.slots, self.out, schedule="multi")

    def score(self) -> None:
        """Scores, once per slot."""
        for slot, index in enumerate(self.indexes):
            at = slice(slot * self.rows, (slot + 1) * self.rows)
            cuda.block_scores(self.q_idx[at], index, self.steps[at], self.scores[at])

    def choose(self) -> None:
        """Selection, once."""
        cuda.select(self.scores, self.steps, self.ids)

    def attend(self) -> None:
        """Attention of one slot's rows, no schedule named."""
        cuda.attend(self.q, self.kvs[0], self.ids, self.steps, out=self.out, arithmetic="exact")


class _DraftCall:
    """The draft layer's call: one row over its last 32,768 cells, in the float arithmetic's chunks of 64."""

    def __init__(self, held: tuple[Any, Any], context: int) -> None:
        xp = array_module()
        ids = np.arange(max(0, context - DRAFT_CELLS), context, dtype=np.int32)[None]
        steps = step_records([context - 1])
        steps[:, 3] = ids.shape[1]
        # An array of fixed width, as an engine has it: the merge may leave out what lies behind the row's width.
        wide = np.full((1, DRAFT_CELLS), -1, np.int32)
        wide[:, : ids.shape[1]] = ids
        self.kv, self.ids, self.steps = held[0], xp.asarray(wide), xp.asarray(steps)
        q = inputs.bell(1, "bench.draft", 1, REAL.n_head * REAL.head_dim, 2.0)
        self.q = xp.asarray(q.reshape(1, REAL.n_head, REAL.head_dim))
        self.out = xp.empty_like(self.q)

    def attend(self) -> Any:
        """Attention in the standing schedule: the output, or False."""
        return cuda.attend(self.q, self.kv, self.ids, self.steps, out=self.out, arithmetic="float")


STATES = ("off", "on", "unset")
OFF = {"split_attn": False, "topk_scan": False, "scores_transposed": False, "merge_active": False}

TABLED = ("split_attn", "topk_scan", "scores_transposed")
"""Switches that, unset, leave the choice to a table (``kernels/cuda/common/defaults.py``)."""


def _timed(switch: str, off: Callable[[], object], on: Callable[[], object], result: Any) -> tuple[float, ...]:
    """(off, on) or (off, on, unset) in microseconds. Raises RuntimeError when the sides do not give the same bytes."""
    times, bytes_of = [], set()
    sides = [(off, False), (on, True)] + [(off, None)] * (switch in TABLED)
    for call, value in sides:
        # The batch window is another call, not another state of its switch.
        with override(**{**OFF, **({switch: value} if switch in OFF else {})}):
            call()
            bytes_of.add(array_module().asnumpy(result).tobytes())
            times.append(timing.hot(call).median)
    if len(bytes_of) > 1:
        raise RuntimeError(f"{switch}: {' and '.join(STATES[: len(sides)])} give different bytes: nothing is reported")
    return tuple(times)


def table() -> list[Row]:
    """The rows of the table, in order."""
    held = [_slot(number) for number in range(2)]

    def row(switch: str, what: str, make: Callable[[int], tuple[Any, Any, Any]]) -> Row:
        times = [_timed(switch, *make(context)) for context in CONTEXTS]
        pairs, unset = tuple((off, on) for off, on, *_ in times), tuple(time for _, _, *more in times for time in more)
        return Row(switch, what, CONTEXTS, pairs, unset)

    def batch(rows: int, context: int) -> tuple[Any, Any, Any]:
        w = _DeviceWindow(held, rows, context)
        return w.by_row, w.as_batch, w.out

    def select(context: int) -> tuple[Any, Any, Any]:
        w = _DeviceWindow(held[:1], 1, context)
        w.score()
        return w.choose, w.choose, w.ids

    def scores(rows: int, context: int) -> tuple[Any, Any, Any]:
        w = _DeviceWindow(held[:1], rows, context)
        return w.score, w.score, w.scores

    def attention(rows: int, context: int) -> tuple[Any, Any, Any]:
        w = _DeviceWindow(held[:1], rows, context)
        w.score()
        w.choose()
        return w.attend, w.attend, w.out

    def draft(context: int) -> tuple[Any, Any, Any]:
        call = _DraftCall(held[0], context)
        return call.attend, call.attend, call.out

    return [
        row("batch_qsa_attn", "2 slots x 1 row: scores, selection, attention", partial(batch, 1)),
        row("batch_qsa_attn", "2 slots x 2 rows: scores, selection, attention", partial(batch, 2)),
        row("topk_scan", "wide selection, 1 row", select),
        *(row("scores_transposed", f"block scores, {rows} rows", partial(scores, rows)) for rows in (1, 2, 4, 8)),
        *(row("split_attn", f"attention, {rows} rows", partial(attention, rows)) for rows in (1, 2, 4, 8)),
        row("merge_active", "draft call, 1 row, float arithmetic", draft),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: print the table, and write it for a record. Returns 0."""
    arguments = script.parser("switches", __doc__).parse_args(argv)
    rows = table()
    print("\n".join(lines(rows)), flush=True)
    if arguments.json:
        write_json(arguments.json, {"switches": as_json(rows)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
