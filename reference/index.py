"""The indexer's buffers of one slot: tail, dead key, pooled keys.

Source: design sections 2 and 4; the published model code pools the raw keys of a block, then norms, then rotates.
"""

import numpy as np
import numpy.typing as npt

from .arguments import check_array, check_floats, check_steps, check_writable
from .geometry import REAL, Geometry
from .layers.rope import rope_table


class Index:
    """Indexer buffers of one slot, written by ``append_index`` and read by ``block_scores``.

    ==========  ==========================  =====================================================================
    ``tail``    [ratio - 1, idx_dim]        raw keys of the open block, at index pos % ratio
    ``dead``    [idx_dim]                   key of the spare block slot
    ``pooled``  [max_blocks, idx_dim]       key of every complete block
    ``weight``  [idx_dim] float32           factor of the norm as multiplied (1 + w of the checkpoint)
    ``rope``    [max_blocks, n_rot] f32     cos and sin at the first position of every block, cos in the first half
    ``rope0``   [n_rot] float32             the same at position 0, for the dead key
    ==========  ==========================  =====================================================================

    ``dtype`` is float32 for the exact and float arithmetic, float64 for the reference. The sequence's cell 0 stands at
    position ``pos_base``. ``mscale`` multiplies cos and sin (YaRN). Raises ValueError on a misshapen weight, or when
    idx_dim does not divide into 32 lanes.
    """

    def __init__(
        self,
        max_blocks: int,
        weight: npt.ArrayLike,
        geometry: Geometry = REAL,
        dtype: npt.DTypeLike = np.float32,
        pos_base: int = 0,
        mscale: float = 1.0,
    ) -> None:
        g = geometry
        if g.idx_dim % 32:
            raise ValueError(f"idx_dim = {g.idx_dim}: the lane tree needs a multiple of 32")
        if max_blocks < 1:
            raise ValueError(f"max_blocks = {max_blocks}: must be at least 1")
        self.geometry = g
        self.weight = np.ascontiguousarray(weight, np.float32)
        if self.weight.shape != (g.idx_dim,):
            raise ValueError(f"weight: shape {self.weight.shape}: must be ({g.idx_dim},)")
        self.tail = np.zeros((g.ratio - 1, g.idx_dim), dtype)
        self.dead = np.zeros(g.idx_dim, dtype)
        self.pooled = np.zeros((max_blocks, g.idx_dim), dtype)
        positions = pos_base + g.ratio * np.arange(max_blocks, dtype=np.int64)
        self.rope = rope_table(positions, g.n_rot, g.rope_base, mscale)
        self.rope0 = rope_table(np.zeros(1, np.int64), g.n_rot, g.rope_base, mscale)[0]

    @property
    def max_blocks(self) -> int:
        """Blocks that fit, the spare one included: a sequence of n cells needs n // ratio + 1."""
        return len(self.pooled)

    def check_blocks(self, steps: np.ndarray) -> None:
        """Raises ValueError when the blocks of checked step records do not fit the buffers."""
        last = int(steps[:, 2].max(initial=0))
        if last >= self.max_blocks:
            raise ValueError(f"steps: n_bid = {last}: the index holds {self.max_blocks} blocks, the spare one included")


def check_index(index: object) -> Index:
    """``index``. Raises ValueError unless it is an :class:`Index`."""
    if not isinstance(index, Index):
        raise ValueError(f"index: {type(index).__name__}: must be an Index")
    return index


def check_rows(raw: np.ndarray, steps: np.ndarray, index: Index) -> None:
    """Raises ValueError unless raw keys [rows, idx_dim] and step records [rows, 4] match and fit the index, whose
    buffers may be written."""
    check_index(index)
    if check_floats("raw", raw).ndim != 2 or raw.shape[1] != index.geometry.idx_dim:
        raise ValueError(f"raw: shape {raw.shape}: must be [rows, {index.geometry.idx_dim}]")
    check_steps(steps, len(raw))
    index.check_blocks(steps)
    last = int(steps[:, 0].max(initial=-1))
    if last // index.geometry.ratio >= index.max_blocks:
        raise ValueError(f"steps: pos = {last}: the index holds {index.max_blocks} blocks, the spare one included")
    for name in ("tail", "dead", "pooled"):
        check_writable(f"index.{name}", check_array(f"index.{name}", getattr(index, name)))
