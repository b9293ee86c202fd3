"""What looks along a sequence in a QSA layer: dense attention, attention over selected cells, the indexer's loss."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from qsa.reference.model.config import Config

ROWS = 1024
"""Query rows of the selected attention at a time: bounds its scores to ROWS * length per head and sequence."""


def by_sequence(x: torch.Tensor, length: int) -> torch.Tensor:
    """[rows, heads, dim] -> [sequences, heads, length, dim]."""
    return x.unflatten(0, (-1, length)).transpose(1, 2)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int) -> torch.Tensor:
    """Causal attention, [rows, n_head, dim]."""
    q, k, v = (by_sequence(x, length) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


def block_scores(queries: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """Scores [sequences, rows, blocks] float32 of ``queries`` [sequences, rows, idx_heads, idx_dim] against ``pooled``
    [sequences, blocks, idx_dim]."""
    dots = torch.einsum("brhd,bkd->brhk", queries, pooled)
    return F.relu(dots).sum(2, dtype=torch.float32)


def selected_cells(scores: torch.Tensor, positions: torch.Tensor, ratio: int, top: int) -> torch.Tensor:
    """bool [sequences, rows, blocks * ratio]: the ``top`` best complete blocks of every row, and its tail.

    Equal scores fall as topk leaves them; the rule (the lower block first) matters to parity, not to training.
    """
    blocks = scores.shape[-1]
    complete = torch.div(positions + 1, ratio, rounding_mode="floor")[:, None]
    valid = torch.arange(blocks, device=scores.device) < complete
    best = torch.where(valid, scores, -torch.inf).topk(min(top, blocks), -1).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True) & valid
    cell = torch.arange(blocks * ratio, device=scores.device)
    tail = (cell >= complete * ratio) & (cell <= positions[:, None])
    return chosen.repeat_interleave(ratio, -1) | tail


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of ``q`` [b, n_head_kv, group, rows, dim] over ``k``, ``v`` [b, n_head_kv, cells, dim] where ``mask``
    [b, rows, cells]."""
    b, kv, group, rows, dim = q.shape
    scores = (q.flatten(2, 3) @ k.mT).view(b, kv, group, rows, -1) * dim**-0.5
    mass = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
    return (mass.flatten(2, 3) @ v).view(q.shape)


def selected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: torch.Tensor,
    pooled: torch.Tensor,
    length: int,
    c: Config,
) -> torch.Tensor:
    """Attention of every row over its selected cells, [rows, n_head, dim]; no gradient flows through the selection."""
    q, k, v = (by_sequence(x, length) for x in (q, k, v))
    q = q.unflatten(1, (c.num_key_value_heads, -1))
    ratio, top = c.indexer_compress_ratio, c.indexer_budget // c.indexer_compress_ratio
    queries, pooled = (x.detach().unflatten(0, (len(q), -1)) for x in (queries, pooled))
    parts = []
    for start in range(0, length, ROWS):
        rows = slice(start, min(start + ROWS, length))
        with torch.no_grad():
            scores = block_scores(queries[:, rows], pooled[:, : rows.stop // ratio])
            mask = selected_cells(scores, torch.arange(rows.start, rows.stop, device=q.device), ratio, top)
        arguments = q[:, :, :, rows], k[:, :, : rows.stop], v[:, :, : rows.stop], mask
        parts.append(checkpoint(_masked, *arguments, use_reentrant=False))
    return torch.cat(parts, 3).flatten(1, 2).transpose(1, 2).flatten(0, 1)


def index_loss(
    q: torch.Tensor,
    k: torch.Tensor,
    queries: torch.Tensor,
    pooled: torch.Tensor,
    length: int,
    c: Config,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Cross-entropy of the indexer's softmax over a row's complete blocks against its attention mass on them.

    Taken at ``rows`` [n] positions of every sequence (each with at least one complete block). The mass is that of
    dense attention, summed over heads and the cells of a block; the indexer's logits are its scores / sqrt(idx_dim).
    """
    ratio = c.indexer_compress_ratio
    valid = torch.arange(length // ratio, device=q.device) < torch.div(rows + 1, ratio, rounding_mode="floor")[:, None]
    with torch.no_grad():
        q, k = by_sequence(q, length)[:, :, rows], by_sequence(k, length)
        q = q.unflatten(1, (c.num_key_value_heads, -1))
        scores = (q.flatten(2, 3) @ k.mT).float().unflatten(2, (-1, len(rows))) * q.shape[-1] ** -0.5
        future = torch.arange(length, device=q.device) > rows[:, None]
        mass = scores.masked_fill(future, -torch.inf).softmax(-1).mean((1, 2))
        mass = mass.unflatten(-1, (-1, ratio)).sum(-1) * valid
        mass = mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)
    queries, pooled = (x.unflatten(0, (len(q), -1)) for x in (queries, pooled))
    logits = block_scores(queries[:, rows], pooled) * queries.shape[-1] ** -0.5
    logs = logits.masked_fill(~valid, -1e9).log_softmax(-1)
    return -(mass * logs).sum(-1).mean()
