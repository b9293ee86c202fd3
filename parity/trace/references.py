"""The operations in plain PyTorch: the references of definitions in the FlashInfer Trace schema.

Each function stands for itself, as its source text becomes the ``reference`` of a definition under the name ``run``.
``steps`` [rows, 4] int32 are (pos, n_kv, n_bid, width) of every row. Tests hold them to ``qsa.reference``.
"""

from typing import Any


def attend_cells(q: Any, k: Any, v: Any, positions: Any, ids: Any, steps: Any) -> Any:
    """Attention of every row over its selected cells; k, v [num_cells] are the cells at ascending ``positions``."""
    import torch

    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // k.shape[1]
    for row, width in enumerate(steps[:, 3].tolist()):
        cells = ids[row, :width].to(torch.int64)
        at = torch.searchsorted(positions, cells[cells >= 0])
        for head in range(q.shape[1] if len(at) else 0):
            keys, values = k[at, head // group].double(), v[at, head // group].double()
            scores = keys @ q[row, head].double() / q.shape[2] ** 0.5
            weights = torch.exp(scores - scores.max())
            out[row, head] = weights @ values / weights.sum()
    return out.to(torch.float32)


def attend_int8(
    q: Any, k_codes: Any, k_scale: Any, v_codes: Any, v_scale: Any, table: Any, ids: Any, steps: Any
) -> Any:
    """Attention over int8 K/V in pages: a value is code x scale of its group of dims. ``table`` leads from a logical
    page to a physical one, -1 where it is not resident: such a cell, and an id of -1, is not selected."""
    import torch

    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group, page_size = q.shape[1] // k_codes.shape[1], k_codes.shape[2]

    def decode(codes: Any, scale: Any) -> Any:
        return codes.double() * scale.double().repeat_interleave(codes.shape[-1] // scale.shape[-1], dim=-1)

    for row, width in enumerate(steps[:, 3].tolist()):
        cells = ids[row, :width].to(torch.int64)
        cells = cells[cells >= 0]
        page, offset = table[cells // page_size].to(torch.int64), cells % page_size
        page, offset = page[page >= 0], offset[page >= 0]
        keys = decode(k_codes[page, :, offset], k_scale[page, :, offset])
        values = decode(v_codes[page, :, offset], v_scale[page, :, offset])
        for head in range(q.shape[1] if len(page) else 0):
            scores = keys[:, head // group] @ q[row, head].double() / q.shape[2] ** 0.5
            weights = torch.exp(scores - scores.max())
            out[row, head] = weights @ values[:, head // group] / weights.sum()
    return out.to(torch.float32)


def attend_fp16(q: Any, k_codes: Any, v_codes: Any, table: Any, ids: Any, steps: Any) -> Any:
    """Attention over fp16 K/V in pages. ``table`` leads from a logical page to a physical one, -1 where it is not
    resident: such a cell, and an id of -1, is not selected."""
    import torch

    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group, page_size = q.shape[1] // k_codes.shape[1], k_codes.shape[2]
    for row, width in enumerate(steps[:, 3].tolist()):
        cells = ids[row, :width].to(torch.int64)
        cells = cells[cells >= 0]
        page, offset = table[cells // page_size].to(torch.int64), cells % page_size
        page, offset = page[page >= 0], offset[page >= 0]
        keys, values = k_codes[page, :, offset].double(), v_codes[page, :, offset].double()
        for head in range(q.shape[1] if len(page) else 0):
            scores = keys[:, head // group] @ q[row, head].double() / q.shape[2] ** 0.5
            weights = torch.exp(scores - scores.max())
            out[row, head] = weights @ values[:, head // group] / weights.sum()
    return out.to(torch.float32)


def block_scores(q_idx: Any, pooled: Any, steps: Any) -> Any:
    """The score of every complete block: the sum over heads of relu(key . query). Behind a row's n_bid: 0."""
    import torch

    out = torch.zeros((q_idx.shape[0], pooled.shape[0]), dtype=torch.float64, device=q_idx.device)
    for row, n_bid in enumerate(steps[:, 2].tolist()):
        dots = pooled[:n_bid].double() @ q_idx[row].double().T
        out[row, :n_bid] = torch.where(dots <= 0, torch.zeros_like(dots), dots).sum(dim=1)
    return out.to(torch.float32)


def select_blocks(scores: Any, steps: Any) -> Any:
    """The cells of the 512 best blocks of 4 (ties to the lower index, NaN last) and of the tail, ascending, then -1."""
    import torch

    ids = torch.full((scores.shape[0], 2051), -1, dtype=torch.int32, device=scores.device)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        if not width:
            continue
        seen = scores[row, :n_bid].double()
        seen = torch.where(torch.isnan(seen), torch.full_like(seen, -torch.inf), seen)
        nan = torch.isnan(scores[row, :n_bid])
        order = torch.sort(seen, descending=True, stable=True).indices
        order = torch.cat([order[~nan[order]], order[nan[order]]])
        blocks = torch.sort(order[:512]).values
        cells = (blocks[:, None] * 4 + torch.arange(4, device=scores.device)).reshape(-1)
        tail = torch.arange(n_bid * 4, n_kv, device=scores.device)
        ids[row, :width] = torch.cat([cells, tail]).to(torch.int32)
    return ids


def select_cells(scores: Any, steps: Any) -> Any:
    """The 2,051 best cells, the tail first, then the cells of the best blocks of 4 (ties to the lower index, NaN last),
    of which the last may be cut; ascending, then -1."""
    import torch

    ids = torch.full((scores.shape[0], 2051), -1, dtype=torch.int32, device=scores.device)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        if not width:
            continue
        seen = scores[row, :n_bid].double()
        seen = torch.where(torch.isnan(seen), torch.full_like(seen, -torch.inf), seen)
        nan = torch.isnan(scores[row, :n_bid])
        order = torch.sort(seen, descending=True, stable=True).indices
        order = torch.cat([order[~nan[order]], order[nan[order]]])
        cells = (order[:, None] * 4 + torch.arange(4, device=scores.device)).reshape(-1)
        tail = torch.arange(n_bid * 4, n_kv, device=scores.device)
        ids[row, :width] = torch.sort(torch.cat([tail, cells])[:width]).values.to(torch.int32)
    return ids
