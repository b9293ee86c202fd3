"""The functions of a backend as typing protocols, for a type checker and for readers (``qsa backend new``).

A backend need not import them, and need not have all of them: each group stands for itself. Our own operations, with
pools of ours, are ``qsa.kernels.backend.Operations``. Arrays are those that the backend declares (NumPy unless it says
otherwise); sizes are those of the real geometry: 24 query heads over 2 KV heads of 256 dims, 4 indexer heads of 128.
"""

from typing import Any, Protocol

from qsa.kernels.backend import Array


class Storage(Protocol):
    """K and V of one sequence in the backend's own form."""

    def cache(self, capacity: int) -> Any:
        """Storage for ``capacity`` cells; handed back as ``kv``."""
        ...

    def append(self, cache: Any, k: Array, v: Array, positions: Array) -> Any:
        """Stores k, v [n, 2, 256] float32 at positions [n] int64. Returns None, or the storage that takes its place."""
        ...

    def read(self, cache: Any, positions: Array) -> tuple[Array, Array]:
        """K and V [n, 2, 256] of positions [n], dequantised: truth is made of them."""
        ...


class IndexStorage(Protocol):
    """Pooled indexer keys of one sequence in the backend's own form."""

    def index_cache(self, max_blocks: int, weight: Array, rope: Array, rope0: Array) -> Any:
        """An index for ``max_blocks`` blocks, the spare one included; handed back as ``index``.

        weight  [128] float32, factor of the norm
        rope    [max_blocks, 64] float32: cos, then sin, at the first position of every block; rope0 at position 0
        """
        ...

    def index_append(self, index: Any, raw: Array, positions: Array) -> Any:
        """Pools, norms, rotates raw keys [n, 128] of positions [n]. Returns None, or the index that takes its place."""
        ...

    def index_read(self, index: Any, blocks: Array) -> Array:
        """Keys [n, 128] of blocks [n], as numbers."""
        ...


class Attention(Protocol):
    """Attention of rows over their selected cells."""

    def attend(self, q: Array, kv: Any, ids: Array, steps: Array) -> Array:
        """[rows, 24, 256].

        q      [rows, 24, 256] in the declared query type, normed and rotated
        ids    [rows, 2051] int32 cells, or [rows, 512] blocks where ``attend_ids`` is declared so; a row's width counts
        steps  [rows, 4] int32: pos, n_kv, n_bid, width
        """
        ...

    def attend_gated(self, q: Array, gate: Array, kv: Any, ids: Array, steps: Array) -> Array:
        """:meth:`attend` times sigmoid(gate); gate [rows, 24, 256] in the query's type."""
        ...


class Selection(Protocol):
    """Scores of blocks, and the cells that they select."""

    def block_scores(self, q_idx: Array, index: Any, steps: Array) -> Array:
        """[rows, blocks]: the sum over heads of relu(key . query); q_idx [rows, 4, 128], normed and rotated."""
        ...

    def select(self, scores: Array, steps: Array, rule: str) -> Any:
        """Ids of every row, an array or a list of rows; scores [rows, blocks] float32, rule ``blocks`` or ``cells``."""
        ...

    def indexer(self, q_idx: Array, raw: Array, weight: Array, rope: Array, steps: Array, rule: str) -> Any:
        """Ids of every row from queries [rows, 4, 128] and raw keys [n, 128] in one call."""
        ...


class SparseAttention(Protocol):
    """The whole of it in one call."""

    def sparse_attention(
        self, q: Array, q_idx: Array, raw: Array, weight: Array, rope: Array, kv: Any, steps: Array, rule: str
    ) -> Array:
        """[rows, 24, 256]: :meth:`Selection.indexer`, then :meth:`Attention.attend` over the cells that it selects."""
        ...


class Stages(Protocol):
    """Intermediate arrays, so that a failure names the first that is wrong."""

    def attend_stages(self, q: Array, kv: Any, ids: Array, steps: Array, row: int) -> dict[str, Array]:
        """Of one row of :meth:`Attention.attend`, any of cells [n], scores [24, n] in nats, weights [24, n], whatever
        their sum, and output [24, 256] before it is rotated back."""
        ...
