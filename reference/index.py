"""The indexer's buffers of one slot: tail, dead key, pooled keys.

Source: design sections 2 and 4; the published model code pools the raw keys of a block, then norms, then rotates.
"""

import numpy as np
import numpy.typing as npt

from .arguments import check_array, check_floats, check_steps, check_writable
from .geometry import REAL, Geometry
from .key_codes import decode, encode
from .layers.rope import rope_table

INDEX_FORMATS = ("fp32", "int16")
"""How pooled keys and the dead key are kept: as they are made, or encoded (``key_codes.py``); the first by default."""


class Index:
    """Indexer buffers of one slot, written by ``append_index`` and read by ``block_scores``.

    ===================  ==========================  ============================================================
    ``tail``             [ratio - 1, idx_dim]        raw keys of the open block, at index pos % ratio
    ``dead``             [idx_dim]                   key of the spare block slot
    ``pooled``           [max_blocks, idx_dim]       key of every complete block
    ``weight``           [idx_dim] float32           factor of the norm as multiplied (1 + w of the checkpoint)
    ``rope``             [max_blocks, n_rot] f32     cos and sin at the first position of every block, cos first
    ``rope0``            [n_rot] float32             the same at position 0, for the dead key
    ``dead_exponent``    [1] int16                   of ``int16`` alone: the dead key's exponent, else None
    ``pooled_exponent``  [max_blocks] int16          of ``int16`` alone: every pooled key's exponent, else None
    ===================  ==========================  ============================================================

    ``format`` is one of :data:`INDEX_FORMATS`: ``fp32`` keeps ``dead`` and ``pooled`` in ``dtype``, ``int16`` as int16
    codes with exponents. ``dtype`` is float32 for the exact and float arithmetic, float64 for the reference. The
    sequence's cell 0 stands at position ``pos_base``. ``mscale`` multiplies cos and sin (YaRN). Raises ValueError on an
    unknown format, a misshapen weight, or when idx_dim does not divide into 32 lanes.
    """

    def __init__(
        self,
        max_blocks: int,
        weight: npt.ArrayLike,
        geometry: Geometry = REAL,
        dtype: npt.DTypeLike = np.float32,
        pos_base: int = 0,
        mscale: float = 1.0,
        format: str = "fp32",
    ) -> None:
        g = geometry
        check_index_format("format", format)
        if g.idx_dim % 32:
            raise ValueError(f"idx_dim = {g.idx_dim}: the lane tree needs a multiple of 32")
        if max_blocks < 1:
            raise ValueError(f"max_blocks = {max_blocks}: must be at least 1")
        self.geometry = g
        self.weight = np.ascontiguousarray(weight, np.float32)
        if self.weight.shape != (g.idx_dim,):
            raise ValueError(f"weight: shape {self.weight.shape}: must be ({g.idx_dim},)")
        self.tail = np.zeros((g.ratio - 1, g.idx_dim), dtype)
        self.format = format
        coded = format == "int16"
        self.dead = np.zeros(g.idx_dim, np.int16 if coded else dtype)
        self.pooled = np.zeros((max_blocks, g.idx_dim), np.int16 if coded else dtype)
        self.dead_exponent = np.zeros(1, np.int16) if coded else None
        self.pooled_exponent = np.zeros(max_blocks, np.int16) if coded else None
        positions = pos_base + g.ratio * np.arange(max_blocks, dtype=np.int64)
        self.rope = rope_table(positions, g.n_rot, g.rope_base, mscale)
        self.rope0 = rope_table(np.zeros(1, np.int64), g.n_rot, g.rope_base, mscale)[0]

    @property
    def max_blocks(self) -> int:
        """Blocks that fit, the spare one included: a sequence of n cells needs n // ratio + 1."""
        return len(self.pooled)

    def set_pooled(self, blocks: int | slice | np.ndarray, keys: npt.ArrayLike) -> None:
        """Store ``keys`` [..., idx_dim] as the pooled keys of ``blocks``, encoded where the format asks for it."""
        if self.pooled_exponent is None:
            self.pooled[blocks] = keys
        else:
            self.pooled[blocks], self.pooled_exponent[blocks] = encode(keys)

    def set_dead(self, key: npt.ArrayLike) -> None:
        """Store ``key`` [idx_dim] as the dead key, encoded where the format asks for it."""
        if self.dead_exponent is None:
            self.dead[:] = key
        else:
            self.dead[:], self.dead_exponent[0] = encode(key)

    def pooled_values(self, blocks: slice = slice(None)) -> np.ndarray:
        """float64 [n, idx_dim]: values of the pooled keys of ``blocks``; NaN where an encoded key is not finite."""
        if self.pooled_exponent is None:
            return self.pooled[blocks].astype(np.float64)
        return decode(self.pooled[blocks], self.pooled_exponent[blocks])

    def dead_values(self) -> np.ndarray:
        """float64 [idx_dim]: values of the dead key; NaN where it is encoded and not finite."""
        if self.dead_exponent is None:
            return self.dead.astype(np.float64)
        return decode(self.dead[None], self.dead_exponent)[0]

    def check_blocks(self, steps: np.ndarray) -> None:
        """Raises ValueError when the blocks of checked step records do not fit the buffers."""
        last = int(steps[:, 2].max(initial=0))
        if last >= self.max_blocks:
            raise ValueError(f"steps: n_bid = {last}: the index holds {self.max_blocks} blocks, the spare one included")


def check_index_format(name: str, value: object) -> str:
    """``value``. Raises ValueError, naming the argument ``name``, unless it is one of :data:`INDEX_FORMATS`."""
    if not isinstance(value, str) or value not in INDEX_FORMATS:
        raise ValueError(f"{name} = {value!r}: allowed are {', '.join(INDEX_FORMATS)}")
    return value


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
    for name in written(index):
        check_writable(f"index.{name}", check_array(f"index.{name}", getattr(index, name)))


def written(index: Index) -> tuple[str, ...]:
    """Names of the arrays of ``index`` that ``append_index`` writes."""
    coded = ("dead_exponent", "pooled_exponent") if index.format == "int16" else ()
    return ("tail", "dead", "pooled", *coded)
