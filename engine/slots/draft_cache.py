"""The draft layer's K/V cells of one slot, in a ring of pages."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from qsa.model.mtp import Draft
from qsa.model.qsa import State
from qsa.reference.kv import PagedKV

from .kv_state import Transfer, copy_pool, transfers

DRAFT_ROWS = 256
"""Rows of one sequence that one call of the draft layer takes: each row names up to a window of cells, 32,768 ids."""


class TipOutput:
    """The layer's output in arrays of the slot's own on the backend, where a captured round reads and writes it. It
    stands for the pair (logits on the host, streams on the backend); the logits are copied when they are asked for."""

    def __init__(self, logits: Any, streams: Any, host: Transfer) -> None:
        self._logits, self._streams, self._host = logits, streams, host

    def __getitem__(self, index: int) -> Any:
        return (self._streams, self._host(self._logits))[index - 1]

    def __iter__(self) -> Iterator[Any]:
        return iter((self[0], self[1]))


class DraftCells:
    """The draft layer's cells of one slot. Cell i pairs the model's streams at position i with token i + 1.

    draft      the model's draft layer
    capacity   cells of the slot; page_size: cells of a page; kv_format: as of :class:`~qsa.engine.slots.slot.Slot`
    device     transfers a NumPy array or a PagedKV to the backend

    ==================  ============================================================================================
    ``state``           qsa.State that holds the K/V. Pages older than the last ``retained_cells`` cells are reused
                        for new cells, so a slot of any capacity takes little more memory than one window
    ``retained_cells``  number of latest cells that are kept
    ``max_window``      largest ``window`` that the layer supports
    ``window``          number of latest cells that a row attends to at most
    ``n``               number of cells written. While a request drafts, it equals the model's own count after a step
    ``last_output``     the layer's output at the last cell: logits [vocab] float32 on the host, streams [1, hc_count,
                        hidden] on the backend; None before the first cell. Or a :class:`TipOutput`, which is the same
    ``incomplete``      some cells are missing. Nothing is drafted until the slot is reset
    ==================  ============================================================================================
    """

    def __init__(self, draft: Draft, capacity: int, page_size: int, kv_format: str, device: Transfer) -> None:
        self.page_size, self.device, self.host = page_size, device, transfers(draft.model.backend)[0]
        config = draft.model.config
        self._tip_shapes = (config.vocab_size,), (1, config.hc_count, config.hidden_size)
        self._tip: tuple[Any, Any] | None = None
        self.max_window = min(draft.window, np.iinfo(np.int32).max)  # a step record holds its width in int32
        self.retained_cells = min(draft.window, capacity)
        pages = -(-capacity // page_size)
        # The rows of a call may begin anywhere in a page, and the first of them attends to a whole window before it.
        self.ring_pages = min(pages, -(-(self.retained_cells + DRAFT_ROWS) // page_size) + 1)
        self.table = np.full(pages, -1, np.int32)
        self.table[: self.ring_pages] = np.arange(self.ring_pages)
        kv = PagedKV.new(kv_format, capacity, page_size, draft.model.geometry, self.table)
        self.state = State(device(kv), None)
        self.reset()

    def reset(self, window: int | None = None) -> None:
        """Drop all cells. From then on rows attend to the last ``window`` cells, by default to ``max_window``."""
        self.window = self.max_window if window is None else min(window, self.max_window)
        self.n, self.incomplete = 0, False
        self.last_output: tuple[np.ndarray, Any] | TipOutput | None = None
        self.table[:] = -1
        self.table[: self.ring_pages] = np.arange(self.ring_pages)
        self.last_page = self.ring_pages - 1
        self.state.kv.set_table(self.table)

    def ensure_pages(self, end: int) -> None:
        """Make the pages of the cells before ``end`` resident. They replace the oldest pages."""
        needed = (end - 1) // self.page_size
        if needed <= self.last_page:
            return
        oldest = needed - self.ring_pages + 1
        new = np.arange(max(self.last_page + 1, oldest), needed + 1)
        self.table[:oldest] = -1
        self.table[new] = new % self.ring_pages
        self.last_page = needed
        self.state.kv.set_table(self.table)

    def copy_from(self, other: "DraftCells") -> None:
        """Become a copy of ``other``, which has the same sizes."""
        copy_pool(self.state.kv, other.state.kv)
        self.table[:], self.last_page = other.table, other.last_page
        self.window, self.n = other.window, other.n
        self.incomplete, self.last_output = other.incomplete, None
        if other.last_output is not None:
            logits, streams = other.last_output
            self.last_output = logits, streams.copy()

    def tip(self) -> tuple[Any, Any]:
        """Logits [vocab] and streams [1, hc_count, hidden] on the backend: arrays of this slot that stay where they
        are, for a :class:`TipOutput`."""
        if self._tip is None:
            logits, streams = (self.device(np.zeros(shape, np.float32)) for shape in self._tip_shapes)
            self._tip = logits, streams
        return self._tip

    def load_tip(self) -> None:
        """Move ``last_output``, which is not None, to :meth:`tip`."""
        assert self.last_output is not None, "a round needs the layer's output"
        if not isinstance(self.last_output, TipOutput):
            (logits, streams), (kept_logits, kept_streams) = self.last_output, self.tip()
            kept_logits[...], kept_streams[...] = self.device(logits), streams
            self.take_tip()

    def take_tip(self) -> None:
        """Take what :meth:`tip` holds for ``last_output``."""
        self.last_output = TipOutput(*self.tip(), self.host)
