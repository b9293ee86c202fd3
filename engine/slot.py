"""Slot: everything that one sequence leaves behind, as one thing to digest, fork, save and reset."""

import numpy as np

from qsa.model import qsa

from .identity import identity
from .kv_state import SIDES, DraftCells, cell_forms, copy_pool, read_cells, transfers, write_cells
from .memory import MAX_CELLS, room
from .request import integer
from .serialization import check_forms, checked_integers, digest_of, maker_of, pack, unpack


class Slot:
    """The state of one sequence: paged K/V and index of every QSA layer, recurrent memories, PLE's history, the draft
    layer's cells.

    model      a ``reference.exact.model.TextModel``
    capacity   cells that fit
    page_size  cells of a page; kv_format: a K/V format of the model's arithmetic

    ``state`` is the model's own (``reference.exact.model.State``), ``draft`` the :class:`~qsa.engine.cells.DraftCells`
    or None without a draft layer. Slots share nothing, pages included. Raises ValueError on sizes below 1 or above
    MAX_CELLS, sizes that there is no memory for, or a format that the model does not take.
    """

    def __init__(self, model, capacity, page_size=4, kv_format="int8"):
        self.capacity = integer("capacity", capacity, 1, MAX_CELLS)
        self.page_size = integer("page_size", page_size, 1, MAX_CELLS)
        self.model, self.kv_format = model, kv_format
        self.host, self.device = transfers(model.backend)
        self.draft = None
        with room(model, self.capacity, self.page_size, kv_format):
            self.state = model.init_state(capacity, page_size, kv_format)
            if model.draft is not None:
                self.draft = DraftCells(model.draft, capacity, page_size, kv_format, self.device)
            self._fresh = self.state.snapshot()

    @property
    def n(self):
        """Tokens run so far: cells 0 to n - 1 hold them."""
        return self.state.n

    def reset(self, window=None):
        """Begin a new sequence, whose drafts attend to the last ``window`` cells. Cells are not wiped: no row looks
        beyond those written since."""
        self.state.restore(self._fresh)
        for _, one in self._indexes():
            one.index.dead[...] = 0
        if self.draft is not None:
            self.draft.reset(window)

    def _indexes(self):
        """(layer, qsa.State) of every QSA layer."""
        return [(i, one) for i, one in enumerate(self.state.attention) if isinstance(one, qsa.State)]

    def _arrays(self):
        """Name -> array on the host of all that the sequence is: cells in its own order, without the draft layer."""
        arrays = {"n": np.array([self.n], np.int64)}
        blocks = self.n // self.model.geometry.ratio
        for layer, one in self._indexes():
            cells = read_cells(one.kv, 0, self.n, self.host)
            arrays |= {f"{layer}.{name}": array for name, array in cells.items()}
            arrays[f"{layer}.pooled"] = self.host(one.index.pooled[:blocks])
            arrays[f"{layer}.dead"] = self.host(one.index.dead)
        for place, array in enumerate(self.state.overwritten()):
            arrays[f"overwritten.{place}"] = self.host(array)
        return arrays

    def _draft_arrays(self):
        """The same of the draft layer: the cells that a later row can still attend to; none when some are lost."""
        cells = self.draft
        if cells is None or cells.lost or not cells.n:
            return {}
        first = max(0, cells.n - cells.window)
        span = np.array([first, cells.n, cells.window], np.int64)
        arrays = read_cells(cells.state.kv, first, cells.n, self.host)
        return {"draft.span": span} | {f"draft.{name}": array for name, array in arrays.items()}

    def digest(self, draft=True):
        """xxh3_128, in hexadecimal, over every byte of the state: stored K/V codes and scales of its cells in order,
        pooled keys, tail and dead key, recurrent memories, PLE's history, and with ``draft`` the draft layer's cells.

        Page size, page tables and what lies beyond the sequence do not enter, so it is the same on every backend.
        """
        return digest_of(self._arrays() | (self._draft_arrays() if draft else {}))

    def fork(self):
        """A slot of its own with a copy of everything here, the indexer's keys included."""
        other = Slot(self.model, self.capacity, self.page_size, self.kv_format)
        other.state.restore(self.state.snapshot())
        for (_, mine), (_, its) in zip(self._indexes(), other._indexes(), strict=True):
            copy_pool(its.kv, mine.kv)
            its.index.dead[...], its.index.pooled[...] = mine.index.dead, mine.index.pooled
        if self.draft is not None:
            other.draft.copy_from(self.draft)
        return other

    def save(self):
        """The state as bytes (a safetensors file) for :meth:`restore`, in a slot of any page size and capacity whose
        model has the same identity (``engine/identity.py``)."""
        arrays = self._arrays() | self._draft_arrays()
        if "draft.span" in arrays:
            logits, streams = self.draft.tip
            arrays |= {"draft.tip_logits": logits, "draft.tip_streams": self.host(streams)}
        return pack(arrays, self._maker())

    def _maker(self):
        """Who can read what is saved here: the version, the model's identity, the K/V format."""
        return maker_of(identity(self.model), self.kv_format)

    def restore(self, saved):
        """Continue the sequence that :meth:`save` gave; what was here is gone.

        Raises ValueError, and changes nothing, when it is no saved state, is another model's or another format's, has
        more cells than fit, or is not what was saved, to the bit.
        """
        arrays = unpack(saved, self._maker())
        n = self._checked(arrays)
        self.reset()
        for layer, one in self._indexes():
            write_cells(one.kv, 0, {name: arrays[f"{layer}.{name}"] for name in SIDES}, self.host, self.device)
            pooled = arrays[f"{layer}.pooled"]
            one.index.pooled[: len(pooled)] = self.device(pooled)
            one.index.dead[...] = self.device(arrays[f"{layer}.dead"])
        for place, array in enumerate(self.state.overwritten()):
            stored = arrays[f"overwritten.{place}"]
            # PLE's ids lie on the host whatever the backend.
            array[...] = stored if isinstance(array, np.ndarray) else self.device(stored)
        self.state.n = n
        if self.draft is not None:
            self._restore_draft(arrays, n)

    def _checked(self, arrays):
        """The number of cells in ``arrays``. Raises ValueError unless they are all that a slot of this model has saved
        with so many cells."""
        (n,) = checked_integers(arrays, "n", 1)
        if not 0 <= n <= self.capacity:
            raise ValueError(f"saved: {n} cells: the slot holds {self.capacity}")
        forms = {"n": ((1,), np.int64)}
        for layer, one in self._indexes():
            forms |= {f"{layer}.{name}": form for name, form in cell_forms(one.kv, n).items()}
            pooled, dead = one.index.pooled, one.index.dead
            forms[f"{layer}.pooled"] = (n // self.model.geometry.ratio, *pooled.shape[1:]), pooled.dtype
            forms[f"{layer}.dead"] = dead.shape, dead.dtype
        for place, array in enumerate(self.state.overwritten()):
            forms[f"overwritten.{place}"] = array.shape, array.dtype
        if self.draft is not None and "draft.span" in arrays:
            forms |= self._draft_forms(arrays)
        check_forms(arrays, forms)
        return n

    def _draft_forms(self, arrays):
        first, end, window = span = checked_integers(arrays, "draft.span", 3)
        if end < 1 or window < 1 or first != max(0, end - window):
            raise ValueError(f"saved: draft.span = {span}: must be the last cells of a window")
        config, cells = self.model.config, cell_forms(self.draft.state.kv, end - first)
        return {f"draft.{name}": form for name, form in cells.items()} | {
            "draft.span": ((3,), np.int64),
            "draft.tip_logits": ((config.vocab_size,), np.float32),
            "draft.tip_streams": ((1, config.hc_count, config.hidden_size), np.float32),
        }

    def _restore_draft(self, arrays, n):
        cells = self.draft
        first, end, window = arrays.get("draft.span", np.zeros(3, np.int64)).tolist()
        cells.reset(window or None)
        # A slot that was not drafting saved no cells: then nothing is drafted here either.
        cells.lost = end != n
        if cells.lost or not n:
            return
        cells.make_room(end)
        stored = {name: arrays[f"draft.{name}"] for name in SIDES}
        keep = max(first, end - cells.most)
        stored = {name: array[keep - first :] for name, array in stored.items()}
        write_cells(cells.state.kv, keep, stored, self.host, self.device)
        cells.n = n
        cells.tip = arrays["draft.tip_logits"], self.device(arrays["draft.tip_streams"])
