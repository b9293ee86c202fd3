"""Cells of one sequence as plain arrays, whatever holds them, and the draft layer's cells in a ring of pages."""

import numpy as np

from qsa.model.qsa import State
from qsa.reference.kv import PagedKV


def transfers(backend):
    """(function to the host, function to the device) of a backend's containers; NumPy's own stay as they are."""
    return getattr(backend, "to_host", lambda x: x), getattr(backend, "to_device", lambda x: x)


DRAFT_ROWS = 256
"""Rows that the draft layer takes of one sequence in one call: each names up to a window of cells, 32,768 ids."""


def _places(kv, first, last):
    """(physical page, place) of the cells from ``first`` to before ``last`` of a host PagedKV."""
    return kv.locate(np.arange(first, last))


SIDES = "k_codes", "k_scale", "v_codes", "v_scale"
"""Names of the arrays of a K/V."""


def _sides(kv):
    """Name -> array of codes and scales of a K/V."""
    sides = ("k", kv.pool.k), ("v", kv.pool.v)
    return {f"{name}_{kind}": getattr(side, kind) for name, side in sides for kind in ("codes", "scale")}


def read_cells(kv, first, last, host):
    """Codes and scales of the cells from ``first`` to before ``last``, as stored: name -> array [cells, heads, x].

    ``host`` brings a backend's containers to the host. The order is that of the sequence, so no page size and no table
    changes it.
    """
    kv = host(kv)
    page, place = _places(kv, first, last)
    return {name: array[page, :, place] for name, array in _sides(kv).items()}


def cell_forms(kv, count):
    """(shape, dtype) of what :func:`read_cells` gives of ``count`` cells, by name."""
    return {name: ((count, a.shape[1], *a.shape[3:]), a.dtype) for name, a in _sides(kv).items()}


def write_cells(kv, first, cells, host, device):
    """Store what :func:`read_cells` gave at the cells from ``first`` on; their pages are resident."""
    stored = host(kv)
    page, place = _places(stored, first, first + len(cells["k_codes"]))
    for name, array in _sides(stored).items():
        array[page, :, place] = cells[name]
    for target, array in zip(_sides(kv).values(), _sides(stored).values(), strict=True):
        target[...] = device(array)


def copy_pool(target, source):
    """Make the pool and the page table of K/V ``target`` those of ``source``, which has the same sizes."""
    for mine, other in zip(_sides(target).values(), _sides(source).values(), strict=True):
        mine[...] = other
    target.table[...] = source.table


class DraftCells:
    """The draft layer's cells of one slot. Cell i pairs the model's streams at i with token i + 1.

    draft   the model's draft layer (``reference.exact.mtp.Draft``); sizes as of :class:`~qsa.engine.slot.Slot`
    device  takes a NumPy array or a PagedKV to the backend

    ==========  ====================================================================================================
    ``state``   qsa.State. It keeps the last ``most`` cells: pages behind them are taken for new cells, so that a slot
                of any capacity holds a window and little more
    ``window``  cells that a row attends to at most, whatever the capacity
    ``n``       cells known so far: as many as the model's own after every step of a request that drafts
    ``tip``     what the layer said at the last of them: logits [vocab] float32 on the host, streams [1, hc_count,
                hidden]; None before the first
    ``lost``    cells are missing, so nothing is drafted until the slot starts again
    ==========  ====================================================================================================
    """

    def __init__(self, draft, capacity, page_size, kv_format, device):
        self.page_size, self.device = page_size, device
        self.widest = min(draft.window, np.iinfo(np.int32).max)  # widths stand in step records
        self.most = min(draft.window, capacity)
        pages = -(-capacity // page_size)
        # A call's rows lie anywhere in their pages, and the first of them reaches back a whole window.
        self.ring = min(pages, -(-(self.most + DRAFT_ROWS) // page_size) + 1)
        self.table = np.full(pages, -1, np.int32)
        self.table[: self.ring] = np.arange(self.ring)
        kv = PagedKV.new(kv_format, capacity, page_size, draft.model.geometry, self.table)
        self.state = State(device(kv), None)
        self.reset()

    def reset(self, window=None):
        """Forget everything; rows then attend to the last ``window`` cells, or to all that the layer may see."""
        self.window = self.widest if window is None else min(window, self.widest)
        self.n, self.tip, self.lost = 0, None, False
        self.table[:] = -1
        self.table[: self.ring] = np.arange(self.ring)
        self.last_page = self.ring - 1
        self.state.kv.table[...] = self.device(self.table)

    def make_room(self, end):
        """Make the pages of the cells before ``end`` resident; they take the places of the oldest ones."""
        needed = (end - 1) // self.page_size
        if needed <= self.last_page:
            return
        oldest = needed - self.ring + 1
        new = np.arange(max(self.last_page + 1, oldest), needed + 1)
        self.table[:oldest] = -1
        self.table[new] = new % self.ring
        self.last_page = needed
        self.state.kv.table[...] = self.device(self.table)

    def copy_from(self, other):
        """Become a copy of ``other``, which has the same sizes."""
        copy_pool(self.state.kv, other.state.kv)
        self.table[:], self.last_page = other.table, other.last_page
        self.window, self.n, self.tip, self.lost = other.window, other.n, other.tip, other.lost
