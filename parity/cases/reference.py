"""The reference as a backend of the contract: what a right engine gives, for every function and declaration.

In the exact arithmetic results are the bytes of ``qsa.reference.exact``. In the float arithmetic they are float64
results, rounded once to the declared type.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.reference import append_index, append_kv, attend, block_scores, exact, select
from qsa.reference.geometry import step_records
from qsa.reference.index import Index

from ..contract import Declaration, rounded
from ..contract.ids import to_blocks, to_cells
from ..contract.number_types import stored
from .own_cells import OwnCells
from .tensors import Handle

_FLOAT64 = SimpleNamespace(append_index=append_index, attend=attend, block_scores=block_scores, select=select)


class Reference:
    """The functions of the contract. They take what a backend takes; own storage comes as a :class:`Handle`."""

    def __init__(self, arithmetic: str, declaration: Declaration) -> None:
        self.declaration, self.exact = declaration, arithmetic == "exact"
        self.operations: Any = exact if self.exact else _FLOAT64

    def append_kv(self, k: np.ndarray, v: np.ndarray, kv: Any, steps: np.ndarray, slots: Any = None) -> bool:
        return append_kv(k, v, kv, steps, slots)

    def append_index(self, raw: np.ndarray, steps: np.ndarray, index: Index) -> bool:
        return self.operations.append_index(_float32(raw), steps, index)

    def block_scores(self, q_idx: np.ndarray, index: Any, steps: np.ndarray, **options: Any) -> np.ndarray:
        index = self.index(index) if isinstance(index, Handle) else index
        scores = self.operations.block_scores(_float32(q_idx), index, steps)
        return scores if self.exact else stored(scores, self.declaration.types.index_scores)

    def select(self, scores: np.ndarray, steps: np.ndarray, rule: str = "blocks", **options: Any) -> np.ndarray:
        return self._form(self.operations.select(_float32(scores), steps, rule=rule), steps)

    def attend(
        self, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: Any = None, **options: Any
    ) -> np.ndarray:
        return self._typed(self.attention(q, kv, self.cells(ids, steps), steps, slots))

    def attention(self, q: np.ndarray, kv: Any, cells: np.ndarray, steps: np.ndarray, slots: Any = None) -> np.ndarray:
        """[rows, n_head, head_dim] over ``cells``: float64, or float32 in the exact arithmetic."""
        return self.operations.attend(_float32(q), pools(kv), cells, steps, slots)

    def attend_gated(self, q: np.ndarray, gate: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        attention = self.attention(q, kv, self.cells(ids, steps), steps).astype(np.float64)
        return self._typed(attention / (1 + np.exp(-gate.astype(np.float64))))

    def indexer(
        self,
        q_idx: np.ndarray,
        raw: np.ndarray,
        weight: np.ndarray,
        rope: np.ndarray,
        steps: np.ndarray,
        rule: str = "blocks",
    ) -> np.ndarray:
        return self._form(self._selected(q_idx, raw, weight, rope, steps, rule), steps)

    def sparse_attention(
        self,
        q: np.ndarray,
        q_idx: np.ndarray,
        raw: np.ndarray,
        weight: np.ndarray,
        rope: np.ndarray,
        kv: Any,
        steps: np.ndarray,
        rule: str = "blocks",
    ) -> np.ndarray:
        cells = self._selected(q_idx, raw, weight, rope, steps, rule)
        return self._typed(self.attention(q, kv, cells, steps))

    def cache(self, capacity: int) -> OwnCells:
        return OwnCells(capacity, self.declaration.types.kv)

    def append(self, cache: Handle, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
        cache.values.append(k, v, positions)

    def read(self, cache: Handle, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return cache.values.read(positions)

    def index_cache(self, max_blocks: int, weight: np.ndarray, rope: np.ndarray, rope0: np.ndarray) -> Index:
        index = Index(max_blocks, weight, dtype=np.float64)
        index.rope, index.rope0 = rope, rope0
        return index

    def index_append(self, index: Handle, raw: np.ndarray, positions: np.ndarray) -> None:
        append_index(_float32(raw), step_records(positions), index.values)

    def index_read(self, index: Handle, blocks: np.ndarray) -> np.ndarray:
        return rounded(index.values.pooled[blocks], self.declaration.types.index_keys)

    def index(self, handle: Handle) -> Index:
        """The index of the engine's own, with keys as its type has them."""
        index: Index = handle.values
        held = Index(index.max_blocks, index.weight, dtype=np.float64)
        held.pooled[:] = rounded(index.pooled, self.declaration.types.index_keys)
        held.dead[:] = index.dead
        return held

    def _selected(
        self, q_idx: np.ndarray, raw: np.ndarray, weight: np.ndarray, rope: np.ndarray, steps: np.ndarray, rule: str
    ) -> np.ndarray:
        """int32 [rows, 2051]: indexer keys, scores and selection one after the other."""
        index = Index(len(rope), weight, dtype=np.float32 if self.exact else np.float64)
        index.rope = rope
        self.operations.append_index(_float32(raw), step_records(np.arange(len(raw))), index)
        return self.operations.select(self.operations.block_scores(_float32(q_idx), index, steps), steps, rule=rule)

    def cells(self, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """``ids`` as attention gets them, in the form of cells."""
        if self.declaration.attend_ids == "cells":
            return ids
        return to_cells(list(ids), steps, "blocks").astype(np.int32)

    def _form(self, cells: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """``cells`` in the form in which the engine gives ids."""
        return cells if self.declaration.ids == "cells" else to_blocks(cells, steps)

    def _typed(self, out: np.ndarray) -> np.ndarray:
        return np.asarray(out, np.float32) if self.exact else stored(out, self.declaration.types.output)


def pools(kv: Any) -> Any:
    """K and V in pools: a PagedKV as it is, own storage as a pool of its values; a list of either as a list."""
    if isinstance(kv, list):
        return [pools(each) for each in kv]
    return kv.values.paged() if isinstance(kv, Handle) else kv


def _float32(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.float32 else x.astype(np.float32)
