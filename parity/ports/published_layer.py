"""The loader of ``transformers_qsa``: the published attention layer with stand-ins for what lies around its operations.

Queries and keys come projected, normed and rotated already, and the output projection gives its input back.
"""

from types import SimpleNamespace
from typing import Any

from .loading import library

torch = library("torch")
published = library("transformers.models.qwen4_exp.modeling_qwen4_exp")

if tuple(map(int, library("transformers").__version__.split(".")[:2])) < (5, 24):
    # The mask of eager attention has another form in 5.17: its two variants gave wrong cells on a machine with it.
    raise ImportError("transformers: needs 5.24 or newer", name="transformers")

_SIZES: dict[str, Any] = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "hidden_size": 1,
    "rms_norm_eps": 1e-6,
}


def mask(kind: str, dtype: Any, steps: Any, cells: int) -> Any:
    """What every row sees, [1, 1, rows, cells]: bool for ``sdpa``, for ``eager`` 0 or the lowest number."""
    visible = (torch.arange(cells) < steps[:, 1:2])[None, None]
    low = torch.full((), torch.finfo(dtype).min, dtype=dtype)
    return visible if kind == "sdpa" else torch.where(visible, 0 * low, low)


def indexer(q_idx: Any, raw: Any, weight: Any, rope: Any) -> tuple[Any, Any, Any]:
    """(the published indexer, its input, the tables cos and sin).

    The input [1, rows, 5 * 128] holds the queries; the keys come from the cache, so what stands in their place is not
    read. The tables have a row for every key, then one for every query, which is rotated already: 1 and 0.
    """
    module = published.Qwen4ExpTextQSAIndexer(SimpleNamespace(**_SIZES), 0).requires_grad_(False)
    module.index_qk_proj = module.q_layernorm = torch.nn.Identity()
    module.k_layernorm.weight.data = weight - 1
    tables = []
    for part, still in zip(rope.split(32, 1), (1.0, 0.0), strict=True):
        # Only the first position of a block is read.
        keys = part.repeat(1, 2).repeat_interleave(4, 0)[: len(raw)]
        tables.append(torch.cat([keys, torch.full((len(q_idx), 64), still)])[None].to(q_idx.dtype))
    return module, torch.cat([q_idx.flatten(1), q_idx[:, 0]], 1)[None], tables


def attention(
    kind: str, q: Any, gate: Any, kv: Any, steps: Any, indexer: Any, hidden: Any, rope: Any, raw: Any = None
) -> Any:
    """[rows, 24, 256] of the published layer's forward: selection by ``indexer``, attention of ``kind``, gate.

    ``kv`` [2, 1, 2, cells, 256] and ``raw`` are what its cache holds; ``hidden`` and ``rope`` go to the indexer.
    """
    same, cells = torch.nn.Identity(), kv.shape[3]
    layer = SimpleNamespace(indexer=indexer, head_dim=256, scaling=1 / 16, num_key_value_groups=12, layer_idx=0)
    layer.config, layer.training, layer.is_causal = SimpleNamespace(_attn_implementation=kind), False, True
    layer.q_proj, layer.k_proj, layer.v_proj = (
        lambda _: torch.cat([q, gate], -1),
        lambda _: q[:, :2],
        lambda _: q[:, :2],
    )
    layer.q_norm = layer.k_norm = layer.o_proj = same
    cache = SimpleNamespace(update=lambda *_, **__: kv, update_indexer=lambda *_: raw[None])
    given = hidden, rope, mask(kind, q.dtype, steps, cells), cache
    return published.Qwen4ExpTextAttention.forward(layer, *given)[0].view(q.shape)
