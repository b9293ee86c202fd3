"""SGLang's Triton kernel of QSA attention and its selection of 512 blocks.

Written against its public source and not run in this version. Without SGLang's package, QSA_SGLANG names a folder that
holds the files ``sparse_attn.py`` and ``kernel.py`` of ``sglang/srt/layers/attention/qsa``; the selection on a GPU
needs the package itself.
"""

from typing import Any

from .loading import cuda, kernel_file, library

torch = library("torch")
attention = kernel_file("sglang.srt.layers.attention.qsa.sparse_attn", "QSA_SGLANG", "sparse_attn.py")
selection = kernel_file("sglang.srt.layers.attention.qsa.kernel", "QSA_SGLANG", "kernel.py")
device = cuda(torch)
# The scaled query is rounded to bf16 a second time: the contract has no stage for that, and none is declared.
declaration = {
    "arrays": "torch",
    "device": device,
    "rules": ["blocks"],
    "ids": "blocks",
    "types": dict.fromkeys(("query", "kv", "weights", "output"), "bf16"),
}


def cache(capacity: int) -> Any:
    return torch.zeros(2, capacity, 2, 256, dtype=torch.bfloat16, device=device)


def append(cache: Any, k: Any, v: Any, positions: Any) -> None:
    cache[:, positions] = torch.stack([k, v]).bfloat16()


def read(cache: Any, positions: Any) -> Any:
    return cache[:, positions]


def attend(q: Any, kv: Any, ids: Any, steps: Any) -> Any:
    # Every row is a request of one query over the same cells; -1 behind a row's ids is skipped.
    rows, lane = len(q), torch.arange(ids.shape[1], device=device)
    ids = torch.where(lane < steps[:, 3:], ids, -1).int()[:, None].expand(-1, 2, -1).contiguous()
    queries = torch.arange(rows + 1, dtype=torch.int32, device=device)
    return attention.sparse_gqa_fwd_interface_triton_ck(
        q.contiguous(), kv[0], kv[1], ids, queries, torch.zeros_like(queries), steps[:, 1].int().contiguous(), 1 / 16
    )


def select(scores: Any, steps: Any) -> Any:
    ends = steps[:, 2].int().contiguous()
    return selection.qsa_fast_topk(scores.contiguous(), torch.zeros_like(ends), ends, 512)
