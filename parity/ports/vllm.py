"""vLLM's Triton kernel of QSA attention over bf16 pages: ``qsa_sparse_paged_attention``, with its output gate.

Written for vLLM 0.33 and not run in this version. Without vLLM's package, QSA_VLLM names a folder that holds the file
``qsa.py`` of ``vllm/models/qwen4_exp/nvidia/ops``.
"""

from typing import Any

from .loading import cuda, kernel_file, library

torch = library("torch")
ops = kernel_file("vllm.models.qwen4_exp.nvidia.ops.qsa", "QSA_VLLM", "qsa.py")
device, PAGE = cuda(torch), 16
declaration = {
    "arrays": "torch",
    "device": device,
    "rules": ["blocks"],
    "types": dict.fromkeys(("query", "kv", "weights", "output"), "bf16"),
}


def cache(capacity: int) -> Any:
    return torch.zeros(2, -(-capacity // PAGE), PAGE, 2, 256, dtype=torch.bfloat16, device=device)


def append(cache: Any, k: Any, v: Any, positions: Any) -> None:
    cache[:, positions // PAGE, positions % PAGE] = torch.stack([k, v]).bfloat16()


def read(cache: Any, positions: Any) -> Any:
    return cache[:, positions // PAGE, positions % PAGE]


def attend(q: Any, kv: Any, ids: Any, steps: Any) -> Any:
    # The sigmoid of 100 is 1.
    return attend_gated(q, torch.full_like(q, 100.0), kv, ids, steps)


def attend_gated(q: Any, gate: Any, kv: Any, ids: Any, steps: Any) -> Any:
    # A row's ids, and behind them their number.
    packed = torch.cat([ids, steps[:, 3:]], 1).int().contiguous()
    table = torch.arange(kv.shape[1], dtype=torch.int32, device=device)[None]
    first = torch.zeros(len(q), dtype=torch.int32, device=device)
    return ops.qsa_sparse_paged_attention(
        q.contiguous(), kv[0], kv[1], packed, table, first, False, output_gate=gate.contiguous()
    )
