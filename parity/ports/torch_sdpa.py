"""PyTorch's scaled_dot_product_attention over the gathered cells, torch.topk as selection, on a GPU where there is one.

``Float32`` and ``BFloat16`` differ in the type of everything that they keep. torch.topk breaks ties as it likes and
gives the blocks in no order of ids.
"""

from typing import Any, ClassVar

from .loading import library

torch = library("torch")
sdpa = torch.nn.functional.scaled_dot_product_attention
device = "cuda" if torch.cuda.is_available() else "cpu"
_COMMON = {"arrays": "torch", "device": device, "rules": ["blocks"], "ids": "blocks"}
_NARROW = ("query", "kv", "weights", "output", "index_keys", "index_query", "index_scores")


class Float32:
    """float32 throughout."""

    dtype: Any = torch.float32
    declaration: ClassVar[dict[str, Any]] = _COMMON

    def cache(self, capacity: int) -> Any:
        return torch.empty(2, capacity, 2, 256, dtype=self.dtype, device=device)

    def append(self, cache: Any, k: Any, v: Any, positions: Any) -> None:
        cache[:, positions] = torch.stack([k, v]).to(self.dtype)

    def read(self, cache: Any, positions: Any) -> Any:
        return cache[:, positions]

    def attend(self, q: Any, kv: Any, ids: Any, steps: Any) -> Any:
        out = torch.empty_like(q)
        for row, width in enumerate(steps[:, 3].tolist()):
            k, v = kv[:, None, ids[row, :width].long()].transpose(2, 3)
            out[row] = sdpa(q[row, None, :, None], k, v, enable_gqa=True)[0, :, 0]
        return out

    def index_cache(self, max_blocks: int, weight: Any, rope: Any, rope0: Any) -> dict[str, Any]:
        raw = torch.zeros(max_blocks * 4, 128, device=device)
        return {"raw": raw, "weight": weight, "cos": rope[:, :32], "sin": rope[:, 32:]}

    def index_append(self, index: dict[str, Any], raw: Any, positions: Any) -> None:
        index["raw"][positions] = raw

    def index_read(self, index: dict[str, Any], blocks: Any) -> Any:
        x = index["raw"].view(-1, 4, 128).mean(1)
        a, b, rest = torch.nn.functional.rms_norm(x, (128,), index["weight"], 1e-6).split([32, 32, 64], 1)
        cos, sin = index["cos"], index["sin"]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], 1)[blocks].to(self.dtype)

    def block_scores(self, q_idx: Any, index: dict[str, Any], steps: Any) -> Any:
        return (q_idx @ self.index_read(index, slice(None)).T).relu().sum(1)

    def select(self, scores: Any, steps: Any) -> list[Any]:
        counts = steps[:, 2].tolist()
        return [row[:n].topk(min(512, n)).indices for row, n in zip(scores, counts, strict=True)]


class BFloat16(Float32):
    """bf16 in everything that is kept or handed over; PyTorch multiplies and adds in float32."""

    dtype = torch.bfloat16
    declaration: ClassVar[dict[str, Any]] = _COMMON | {"types": dict.fromkeys(_NARROW, "bf16")}
