"""FlashInfer's QSA attention over bf16 pages, with its output gate: ``flashinfer.QSA``.

Written against its public interface and not run in this version. Without FlashInfer's package, QSA_FLASHINFER names a
folder that holds a module ``flashinfer_qsa.py`` with the same names.
"""

from typing import Any

from .loading import cuda, kernel_file, library

torch = library("torch")
flashinfer = kernel_file("flashinfer", "QSA_FLASHINFER", "flashinfer_qsa.py")
device, PAGE, ROWS = cuda(torch), 16, 64
if not hasattr(flashinfer, "QSA"):
    raise ImportError(f"flashinfer {getattr(flashinfer, '__version__', '')}: has no QSA: install a newer one")
declaration = {
    "arrays": "torch",
    "device": device,
    "rules": ["blocks"],
    "shapes": {"rows": ROWS},
    "types": dict.fromkeys(("query", "kv", "weights", "output"), "bf16"),
}


def _runtime(pages: int) -> Any:
    types = {f"{name}_data_type": torch.bfloat16 for name in ("q", "kv", "o")}
    sizes = {"num_qo_heads": 24, "num_kv_heads": 2, "head_dim": 256, "compress_ratio": 4, "token_topk": 2048}
    index = {"max_rows": ROWS, "max_columns": pages * PAGE // 4, "index_num_heads": 4, "index_head_dim": 128}
    config = flashinfer.QSAConfig(kv_cache_format="dense", **types, **sizes, **index)
    need = flashinfer.QSA.workspace_requirements(config, device=torch.device(device))
    persistent, transient = (torch.empty(n, dtype=torch.uint8, device=device) for n in need[:2])
    qsa = flashinfer.QSA(config, persistent)
    qsa.bind_transient_workspace(transient)
    qsa.plan_cache(pages * PAGE, PAGE)
    return qsa


def cache(capacity: int) -> tuple[Any, Any]:
    pages = -(-capacity // PAGE)
    return torch.zeros(2, pages, PAGE, 2, 256, dtype=torch.bfloat16, device=device), _runtime(pages)


def append(cache: Any, k: Any, v: Any, positions: Any) -> None:
    cache[0][:, positions // PAGE, positions % PAGE] = torch.stack([k, v]).bfloat16()


def read(cache: Any, positions: Any) -> Any:
    return cache[0][:, positions // PAGE, positions % PAGE]


def attend(q: Any, kv: Any, ids: Any, steps: Any) -> Any:
    # The sigmoid of 100 is 1.
    return attend_gated(q, torch.full_like(q, 100.0), kv, ids, steps)


def attend_gated(q: Any, gate: Any, kv: Any, ids: Any, steps: Any) -> Any:
    (k, v), qsa = kv
    route = torch.where(torch.arange(ids.shape[1], device=device) < steps[:, 3:], ids, -1).int().contiguous()
    table = torch.arange(len(k), dtype=torch.int32, device=device)[None]
    first = torch.zeros(len(q), dtype=torch.int32, device=device)
    given = {"route": route, "block_table": table, "token_to_req": first, "output_gate": gate.contiguous()}
    return qsa.run_attention(q.contiguous(), k, v, **given).clone()
