"""The published model code as it is: the forward of transformers' ``Qwen4ExpTextAttention`` and of its indexer.

Attention masks the whole context, as in the model: 20,000 cells at most here.
"""

from types import SimpleNamespace
from typing import Any, ClassVar

from . import published_layer as published
from .loading import library

torch = library("torch")
_COMMON = {"arrays": "torch", "rules": ["blocks"], "shapes": {"context": 20_000}}
_BF16 = dict.fromkeys(("query", "kv", "weights", "output", "raw_keys", "index_keys", "index_query"), "bf16")


class EagerFloat32:
    """Eager attention in float32."""

    kind: ClassVar[str] = "eager"
    dtype: Any = torch.float32
    declaration: ClassVar[dict[str, Any]] = _COMMON

    def cache(self, capacity: int) -> Any:
        return torch.zeros(2, 1, 2, capacity, 256, dtype=self.dtype)

    def append(self, cache: Any, k: Any, v: Any, positions: Any) -> None:
        cache[:, 0][:, :, positions] = torch.stack([k, v]).transpose(1, 2).to(self.dtype)

    def read(self, cache: Any, positions: Any) -> Any:
        return cache[:, 0][:, :, positions].transpose(1, 2)

    def attend(self, q: Any, kv: Any, ids: Any, steps: Any) -> Any:
        # The sigmoid of 100 is 1.
        return self.attend_gated(q, torch.full_like(q, 100.0), kv, ids, steps)

    def attend_gated(self, q: Any, gate: Any, kv: Any, ids: Any, steps: Any) -> Any:
        selected = torch.zeros(1, 1, len(q), kv.shape[3], dtype=torch.bool)
        for row, width in enumerate(steps[:, 3].tolist()):
            selected[0, 0, row, ids[row, :width].long()] = True
        rope = torch.ones(1, len(q), 64, dtype=self.dtype)
        hidden = q.flatten(1)[None]
        return published.attention(self.kind, q, gate, kv, steps, lambda *_: selected, hidden, (rope, 0 * rope))

    def indexer(self, q_idx: Any, raw: Any, weight: Any, rope: Any, steps: Any) -> list[Any]:
        module, hidden, tables = published.indexer(q_idx, raw, weight, rope)
        mask, cache = published.mask(self.kind, self.dtype, steps, len(raw)), SimpleNamespace()
        cache.update_indexer = lambda *_: raw[None]
        return [torch.nonzero(row)[:, 0] for row in module(hidden, tables, mask, cache)[0, 0]]

    def sparse_attention(self, q: Any, q_idx: Any, raw: Any, weight: Any, rope: Any, kv: Any, steps: Any) -> Any:
        given = published.indexer(q_idx, raw, weight, rope)
        return published.attention(self.kind, q, torch.full_like(q, 100.0), kv, steps, *given, raw)


class SdpaFloat32(EagerFloat32):
    """PyTorch's attention in float32."""

    kind = "sdpa"


class EagerBFloat16(EagerFloat32):
    """Eager attention in bf16: scores and weights are bf16 too."""

    dtype = torch.bfloat16
    declaration: ClassVar[dict[str, Any]] = _COMMON | {"types": _BF16 | {"scores": "bf16"}}


class SdpaBFloat16(EagerFloat32):
    """PyTorch's attention in bf16."""

    kind, dtype = "sdpa", torch.bfloat16
    declaration: ClassVar[dict[str, Any]] = _COMMON | {"types": _BF16}
