"""A slot: the complete state of one sequence, which can be digested, forked, saved, restored and reset."""

from collections.abc import Mapping

import numpy as np

from qsa.model import TextModel, qsa
from qsa.reference.index import check_index_format

from ..request import check_model, integer
from .draft_cache import DraftCells
from .identity import identity
from .kv_state import ARRAY_NAMES, Spec, cell_specs, copy_pool, read_cells, transfers, write_cells
from .memory import MAX_CELLS, memory_check
from .serialization import Origin, check_specs, checked_integers, digest_of, origin_of, pack, unpack


class Slot:
    """The state of one sequence: paged K/V and index of every QSA layer, recurrent memories, PLE's history, and the
    draft layer's cells.

    model      a :class:`~qsa.model.TextModel`
    capacity   number of cells
    page_size  cells of a page; kv_format: a K/V format of the model's arithmetic
    index_format  format of the indexer's keys, ``fp32`` or ``int16``

    ``state`` is the model's :class:`~qsa.model.State`. ``draft`` is a
    :class:`~qsa.engine.slots.draft_cache.DraftCells`, or None when the model has no draft layer. Slots share nothing,
    not even pages. Raises ValueError on sizes below 1 or above MAX_CELLS, on sizes that do not fit into memory, and on
    a format that the model does not support.
    """

    def __init__(
        self,
        model: TextModel,
        capacity: int,
        page_size: int = 4,
        kv_format: str = "int8",
        index_format: str = "fp32",
    ) -> None:
        check_model(model)
        self.capacity = integer("capacity", capacity, 1, MAX_CELLS)
        self.page_size = integer("page_size", page_size, 1, MAX_CELLS)
        self.model, self.kv_format = model, kv_format
        self.index_format = check_index_format("index_format", index_format)
        self.host, self.device = transfers(model.backend)
        self.draft: DraftCells | None = None
        with memory_check(model, self.capacity, self.page_size, kv_format, index_format=index_format):
            self.state = model.init_state(capacity, page_size, kv_format, index_format)
            if model.draft is not None:
                self.draft = DraftCells(model.draft, capacity, page_size, kv_format, self.device)
            self._initial_state = self.state.snapshot()

    @property
    def n(self) -> int:
        """Number of tokens run so far; they are in cells 0 to n - 1."""
        return self.state.n

    def reset(self, window: int | None = None) -> None:
        """Begin a new sequence, whose drafts attend to the last ``window`` cells. K/V cells are not cleared: no row
        reads a cell that its own sequence has not written."""
        self.state.restore(self._initial_state)
        for _, layer_state in self._qsa_states():
            layer_state.index.dead[...] = 0
            if self.index_format == "int16":
                layer_state.index.dead_exponent[...] = 0
        if self.draft is not None:
            self.draft.reset(window)

    def _qsa_states(self) -> list[tuple[int, qsa.State]]:
        """(layer index, state) of every QSA layer."""
        return [(i, state) for i, state in enumerate(self.state.attention) if isinstance(state, qsa.State)]

    def _arrays(self) -> dict[str, np.ndarray]:
        """Name -> array on the host of the whole state without the draft layer; cells in the order of the sequence."""
        arrays = {"n": np.array([self.n], np.int64)}
        blocks = self.n // self.model.geometry.ratio
        for layer, state in self._qsa_states():
            cells = read_cells(state.kv, 0, self.n, self.host)
            arrays |= {f"{layer}.{name}": array for name, array in cells.items()}
            arrays[f"{layer}.pooled"] = self.host(state.index.pooled[:blocks])
            arrays[f"{layer}.dead"] = self.host(state.index.dead)
            if self.index_format == "int16":
                arrays[f"{layer}.pooled_exponent"] = self.host(state.index.pooled_exponent[:blocks])
                arrays[f"{layer}.dead_exponent"] = self.host(state.index.dead_exponent)
        for i, array in enumerate(self.state.overwritten()):
            arrays[f"overwritten.{i}"] = self.host(array)
        return arrays

    def _draft_arrays(self) -> dict[str, np.ndarray]:
        """The same for the draft layer: the cells that a later row can attend to. Empty when cells are missing."""
        cells = self.draft
        if cells is None or cells.incomplete or not cells.n:
            return {}
        first = max(0, cells.n - cells.window)
        span = np.array([first, cells.n, cells.window], np.int64)
        arrays = read_cells(cells.state.kv, first, cells.n, self.host)
        return {"draft.span": span} | {f"draft.{name}": array for name, array in arrays.items()}

    def digest(self, draft: bool = True) -> str:
        """xxh3_128 in hexadecimal over every byte of the state: K/V codes and scales of the cells in order, pooled
        keys, tail and dead key, recurrent memories, PLE's history, and with ``draft`` the draft layer's cells.

        Page size, page tables and memory beyond the sequence are not included, so every backend gives one digest.
        """
        return digest_of(self._arrays() | (self._draft_arrays() if draft else {}))

    def fork(self) -> "Slot":
        """A new slot with a copy of the whole state, indexer keys included."""
        other = Slot(self.model, self.capacity, self.page_size, self.kv_format, self.index_format)
        other.copy_from(self)
        if self.draft is not None and other.draft is not None:
            other.draft.copy_from(self.draft)
        return other

    def copy_from(self, other: "Slot") -> None:
        """Take the state of ``other``, a slot of the same model and sizes, but for the draft layer's cells."""
        self.state.restore(other.state.snapshot())
        for (_, source), (_, target) in zip(other._qsa_states(), self._qsa_states(), strict=True):
            copy_pool(target.kv, source.kv)
            target.index.dead[...], target.index.pooled[...] = source.index.dead, source.index.pooled
            if self.index_format == "int16":
                target.index.dead_exponent[...] = source.index.dead_exponent
                target.index.pooled_exponent[...] = source.index.pooled_exponent

    def fits(self, other: "Slot") -> bool:
        """Whether ``other`` is a slot of the same model and sizes."""
        sizes = ((each.capacity, each.page_size, each.kv_format, each.index_format) for each in (self, other))
        return self.model is other.model and len(set(sizes)) == 1

    def save(self) -> bytes:
        """The state as bytes (a safetensors file). :meth:`restore` reads it in a slot of any page size and capacity
        whose model has the same identity (``engine/slots/identity.py``)."""
        arrays = self._arrays() | self._draft_arrays()
        if self.draft is not None and self.draft.last_output is not None and "draft.span" in arrays:
            logits, streams = self.draft.last_output
            arrays |= {"draft.tip_logits": logits, "draft.tip_streams": self.host(streams)}
        return pack(arrays, self._origin())

    def _origin(self) -> Origin:
        """Format version, identity of the model and formats that a saved file must have."""
        return origin_of(identity(self.model), self.kv_format, self.index_format)

    def restore(self, saved: bytes) -> None:
        """Replace the state by one that :meth:`save` returned.

        Raises ValueError, and changes nothing, when ``saved`` is no saved state, belongs to another model or
        format, has more cells than fit, or was changed by as little as a bit after it was saved.
        """
        arrays = unpack(saved, self._origin())
        n = self._check_arrays(arrays)
        self.reset()
        for layer, state in self._qsa_states():
            write_cells(state.kv, 0, {name: arrays[f"{layer}.{name}"] for name in ARRAY_NAMES}, self.host, self.device)
            pooled = arrays[f"{layer}.pooled"]
            state.index.pooled[: len(pooled)] = self.device(pooled)
            state.index.dead[...] = self.device(arrays[f"{layer}.dead"])
            if self.index_format == "int16":
                exponents = arrays[f"{layer}.pooled_exponent"]
                state.index.pooled_exponent[: len(exponents)] = self.device(exponents)
                state.index.dead_exponent[...] = self.device(arrays[f"{layer}.dead_exponent"])
        for i, array in enumerate(self.state.overwritten()):
            stored = arrays[f"overwritten.{i}"]
            # PLE's ids are on the host whatever the backend.
            array[...] = stored if isinstance(array, np.ndarray) else self.device(stored)
        self.state.n = n
        if self.draft is not None:
            self._restore_draft(self.draft, arrays, n)

    def _check_arrays(self, arrays: Mapping[str, np.ndarray]) -> int:
        """The number of cells in ``arrays``. Raises ValueError unless they are exactly the arrays that a slot of this
        model saves with that many cells."""
        (n,) = checked_integers(arrays, "n", 1)
        if not 0 <= n <= self.capacity:
            raise ValueError(f"saved: {n} cells: the slot holds {self.capacity}")
        specs: dict[str, Spec] = {"n": ((1,), np.int64)}
        for layer, state in self._qsa_states():
            specs |= {f"{layer}.{name}": spec for name, spec in cell_specs(state.kv, n).items()}
            pooled, dead = state.index.pooled, state.index.dead
            specs[f"{layer}.pooled"] = (n // self.model.geometry.ratio, *pooled.shape[1:]), pooled.dtype
            specs[f"{layer}.dead"] = dead.shape, dead.dtype
            if self.index_format == "int16":
                specs[f"{layer}.pooled_exponent"] = (n // self.model.geometry.ratio,), np.int16
                specs[f"{layer}.dead_exponent"] = (1,), np.int16
        for i, array in enumerate(self.state.overwritten()):
            specs[f"overwritten.{i}"] = array.shape, array.dtype
        if self.draft is not None and "draft.span" in arrays:
            specs |= self._draft_specs(self.draft, arrays)
        check_specs(arrays, specs)
        return n

    def _draft_specs(self, cells: DraftCells, arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
        """Name -> (shape, dtype) of the draft layer's arrays. Raises ValueError on an impossible ``draft.span``."""
        first, end, window = span = checked_integers(arrays, "draft.span", 3)
        if end < 1 or window < 1 or first != max(0, end - window):
            raise ValueError(f"saved: draft.span = {span}: must be the last cells of a window")
        config = self.model.config
        specs = {f"draft.{name}": spec for name, spec in cell_specs(cells.state.kv, end - first).items()}
        return specs | {
            "draft.span": ((3,), np.int64),
            "draft.tip_logits": ((config.vocab_size,), np.float32),
            "draft.tip_streams": ((1, config.hc_count, config.hidden_size), np.float32),
        }

    def _restore_draft(self, cells: DraftCells, arrays: Mapping[str, np.ndarray], n: int) -> None:
        first, end, window = arrays.get("draft.span", np.zeros(3, np.int64)).tolist()
        cells.reset(window or None)
        # A slot that did not draft saved no cells, so it cannot draft after the restore either.
        cells.incomplete = end != n
        if cells.incomplete or not n:
            return
        cells.ensure_pages(end)
        stored = {name: arrays[f"draft.{name}"] for name in ARRAY_NAMES}
        kept_first = max(first, end - cells.retained_cells)
        stored = {name: array[kept_first - first :] for name, array in stored.items()}
        write_cells(cells.state.kv, kept_first, stored, self.host, self.device)
        cells.n = n
        cells.last_output = arrays["draft.tip_logits"], self.device(arrays["draft.tip_streams"])


def draft_cells(slot: Slot) -> DraftCells:
    """The draft layer's cells of a slot whose model has a draft layer."""
    assert slot.draft is not None, "the model has no draft layer"
    return slot.draft
