"""A Triton kernel of ours: one program for a row and a KV head, which walks over the row's cells in tiles.

Inputs are bf16 or float32, sums and products float32. It runs on a CUDA device, and on the CPU in Triton's interpreter
(``TRITON_INTERPRET=1``).
"""

import os
from typing import Any, ClassVar

from .loading import cuda, library

torch, triton = library("torch"), library("triton", "it comes with PyTorch for CUDA")
tl = library("triton.language")
device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else cuda(torch)
TILE, GROUP = tl.constexpr(32), tl.constexpr(16)


@triton.jit
def _attend(q, k, v, ids, steps, out, n_ids):  # type: ignore[no-untyped-def]
    row, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(steps + row * 4 + 3)
    # 12 query heads share a KV head; a product of tiles has 16 rows at least.
    head, dim, lane = tl.arange(0, GROUP), tl.arange(0, 256), tl.arange(0, TILE)
    at = (row * 24 + kv_head * 12 + head[:, None]) * 256 + dim[None, :]
    query = tl.load(q + at, mask=head[:, None] < 12, other=0.0).to(tl.float32)
    highest = tl.full((GROUP,), -1e30, tl.float32)
    mass, total = tl.zeros((GROUP,), tl.float32), tl.zeros((GROUP, 256), tl.float32)
    for start in range(0, count, TILE):
        here = start + lane < count
        cell = tl.load(ids + row * n_ids + start + lane, mask=here, other=0).to(tl.int64)
        place = (cell[:, None] * 2 + kv_head) * 256 + dim[None, :]
        keys = tl.load(k + place, mask=here[:, None], other=0.0).to(tl.float32)
        values = tl.load(v + place, mask=here[:, None], other=0.0).to(tl.float32)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee") * 0.0625
        s = tl.where(here[None, :], s, -float("inf"))
        top = tl.maximum(highest, tl.max(s, 1))
        p, shrink = tl.exp(s - top[:, None]), tl.exp(highest - top)
        total = total * shrink[:, None] + tl.dot(p, values, input_precision="ieee")
        mass, highest = mass * shrink + tl.sum(p, 1), top
    result = total / tl.maximum(mass, 1e-30)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=head[:, None] < 12)


class Float32:
    """float32 in and out."""

    dtype: Any = torch.float32
    declaration: ClassVar[dict[str, Any]] = {"arrays": "torch", "device": device, "domain": {"unused_rows": True}}

    def cache(self, capacity: int) -> Any:
        return torch.empty(2, capacity, 2, 256, dtype=self.dtype, device=device)

    def append(self, cache: Any, k: Any, v: Any, positions: Any) -> None:
        cache[:, positions] = torch.stack([k, v]).to(self.dtype)

    def read(self, cache: Any, positions: Any) -> Any:
        return cache[:, positions]

    def attend(self, q: Any, kv: Any, ids: Any, steps: Any) -> Any:
        out = torch.empty_like(q)
        # One stage: two tiles of float32 fill most of a multiprocessor's shared memory already.
        given = q.contiguous(), *kv, ids.contiguous(), steps.contiguous()
        _attend[(len(q), 2)](*given, out, ids.shape[1], num_stages=1)
        return out


class BFloat16(Float32):
    """bf16 in and out."""

    dtype = torch.bfloat16
    declaration: ClassVar[dict[str, Any]] = Float32.declaration | {
        "types": dict.fromkeys(("query", "kv", "output"), "bf16")
    }
