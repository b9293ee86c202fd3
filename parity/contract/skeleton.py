"""The text of a new backend: every function of the contract with types and shapes, each unsupported as yet."""

from types import SimpleNamespace
from typing import Any

import msgspec

from .declaration import Declaration, Domain, Shapes, Types, declared

_HEAD = '''"""Backend {name} under the judge of qsa-parity.

Fill in what your kernel has, delete the other functions: what is missing is unsupported. Then:

    qsa parity accuracy --backend {name}.py

rows are query tokens, up to 8 in a window. A cell is a cached token; 4 cells are a block, the 0 to 3 cells after the
last whole block are the tail. ``steps`` is int32 [rows, 4]: pos, n_kv (cells that the row sees), n_bid (whole blocks
among them), width (cells that it selects). Inputs must not be changed, but for what an append writes into.
"""

from typing import Any

import numpy as np
from qsa.parity import Unsupported

declaration = {{
    "arithmetic": "{arithmetic}",
    # Every other field, with the value that it has unless you set it:
{fields}
}}

'''

_FUNCTIONS = '''
def append_kv(k: np.ndarray, v: np.ndarray, kv: Any, steps: np.ndarray, slots: np.ndarray | None = None) -> None:
    """Write the cell at ``pos`` of every row into ``kv``, pools of ours (delete this where you have storage of your
    own).

    k, v   float32 [rows, 2 KV heads, 256 dims]
    kv     a PagedKV of ``qsa.reference.kv``, or a list of them, one for each slot
    slots  int32 [rows]: the number of every row's entry in the list
    """
    raise Unsupported("not written yet")


def append_index(raw: np.ndarray, steps: np.ndarray, index: Any) -> None:
    """Append the raw indexer key of every row to ``index``, an Index of ``qsa.reference.index``: four of them are
    pooled (mean), normed and rotated.

    raw  [rows, 128 dims] of the type ``raw_keys``
    """
    raise Unsupported("not written yet")


def block_scores(q_idx: np.ndarray, index: Any, steps: np.ndarray) -> np.ndarray:
    """The sum over heads of relu(key . query) of every block.

    q_idx  [rows, 4 heads, 128 dims] of the type ``index_query``
    index  an Index of ours, or what your ``index_cache`` gave

    Returns [rows, blocks] of the type ``index_scores``; entries from n_bid on have no meaning unless ``tail_score``.
    May take the keyword ``schedule``.
    """
    raise Unsupported("not written yet")


def select(scores: np.ndarray, steps: np.ndarray, *, rule: str = "blocks") -> np.ndarray:
    """The cells that every row attends to.

    scores  [rows, blocks] of the type ``index_scores``
    rule    "blocks": the 512 best blocks and the tail. "cells": the 2,051 best cells, the tail first

    Returns integers [rows, n], or a list of rows, in any order; negative ones are padding. May take the keywords
    ``geometry`` and ``schedule``.
    """
    raise Unsupported("not written yet")


def attend(q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: np.ndarray | None = None) -> np.ndarray:
    """Softmax attention of every row over its selected cells; query head h reads KV head h // 12.

    q      [rows, 24 heads, 256 dims] of the type ``query``
    kv     a PagedKV of ours, or what your ``cache`` gave; a list of either with ``slots``
    ids    int32 [rows, n]: the first ``width`` of a row are its cells (or its blocks: ``attend_ids``)
    slots  int32 [rows]: the number of every row's entry in the list ``kv``

    Returns [rows, 24, 256] of the type ``output``. May take the keywords ``schedule``, ``splits``, ``arithmetic``,
    ``out``.
    """
    raise Unsupported("not written yet")


def cache(capacity: int) -> Any:
    """Storage of your own for K and V of one slot of at most ``capacity`` cells. It is handed back as it is. To have it
    used, delete ``append_kv``."""
    raise Unsupported("not written yet")


def append(cache: Any, k: np.ndarray, v: np.ndarray, positions: np.ndarray) -> None:
    """Store cells. k, v float32 [n, 2 KV heads, 256 dims]; positions int64 [n], the number of each cell."""
    raise Unsupported("not written yet")


def read(cache: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K and V [n, 2 KV heads, 256 dims] as your kernel sees them, as numbers (dequantised): truth is made of them."""
    raise Unsupported("not written yet")


def index_cache(max_blocks: int, weight: np.ndarray, rope: np.ndarray, rope0: np.ndarray) -> Any:
    """An index of your own. To have it used, delete ``append_index``.

    weight  float32 [128], factor of the norm
    rope    float32 [max_blocks, 64], cos (first half) and sin at the first cell of every block; rope0 [64] at cell 0
    """
    raise Unsupported("not written yet")


def index_append(index: Any, raw: np.ndarray, positions: np.ndarray) -> None:
    """Append raw keys [n, 128] of the type ``raw_keys`` of cells ``positions`` int64 [n] to your own index."""
    raise Unsupported("not written yet")


def index_read(index: Any, blocks: np.ndarray) -> np.ndarray:
    """The pooled keys [n, 128] of blocks int64 [n] as numbers."""
    raise Unsupported("not written yet")


def indexer(
    q_idx: np.ndarray,
    raw: np.ndarray,
    weight: np.ndarray,
    rope: np.ndarray,
    steps: np.ndarray,
    *,
    rule: str = "blocks",
) -> np.ndarray:
    """Keys, scores and selection in one call, for kernels that fuse them; arguments and result as above.

    Delete this where you have no such call: while it is here, it is tested in place of the three.
    """
    raise Unsupported("not written yet")


def attend_gated(q: np.ndarray, gate: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Attention times sigmoid(gate), for kernels that fuse them. gate [rows, 24, 256] of the type ``query``."""
    raise Unsupported("not written yet")


def sparse_attention(
    q: np.ndarray,
    q_idx: np.ndarray,
    raw: np.ndarray,
    weight: np.ndarray,
    rope: np.ndarray,
    kv: Any,
    steps: np.ndarray,
    *,
    rule: str = "blocks",
) -> np.ndarray:
    """Indexer and attention in one call, for kernels that fuse them; arguments and result as above."""
    raise Unsupported("not written yet")
'''


def text(name: str, arithmetic: str) -> str:
    """The source of a new backend ``name`` in ``arithmetic``, ``exact`` or ``float``."""
    return _HEAD.format(name=name, arithmetic=arithmetic, fields="\n".join(_fields(arithmetic))) + _FUNCTIONS


def _fields(arithmetic: str) -> list[str]:
    """Lines of comments: every field of the declaration but the first, with its default in ``arithmetic``."""
    plain = msgspec.to_builtins(declared(SimpleNamespace(declaration={"arithmetic": arithmetic})))
    parts = {"types": Types, "shapes": Shapes, "domain": Domain}
    lines = []
    for field in msgspec.structs.fields(Declaration)[1:]:
        if field.name in parts:
            lines.append(f'    # "{field.name}": {{')
            lines += [f'    #     "{key}": {_literal(value)},' for key, value in plain[field.name].items()]
            lines.append("    # },")
        else:
            lines.append(f'    # "{field.name}": {_literal(plain[field.name])},')
    return lines


def _literal(value: Any) -> str:
    """``value`` as Python code with double quotes."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
