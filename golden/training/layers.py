"""The parts of the network in torch, over flat rows: formulas as ``reference/``, one function per stretch between two
operations that look along a sequence.

Every function sees ``rows`` = sequences * length tokens, so its shapes do not change from stage to stage of the
training and it is compiled once. ``low`` is the dtype of matrix products (bfloat16 in training), everything else is
float32. ``pos`` [rows] is a token's place in its sequence. ``p``: the tensors of one part by the reference's names.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F

from qsa.reference.model.config import Config

from .scan import invert

CHUNK = 64
"""Tokens that the delta rule takes at once."""

Part: TypeAlias = dict[str, torch.Tensor]
"""The tensors of one part, by the rest of their names."""

Layer: TypeAlias = dict[str, Part]
"""The parts of one layer."""


def linear(x: torch.Tensor, weight: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """x @ weight.T in the dtype ``low``."""
    return F.linear(x.to(low), weight.to(low))


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) over the last axis, float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``x`` [rows, heads, dim] by ``table`` [rows, n_rot], cosines first; as ``reference/layers/rope.py``."""
    half = table.shape[1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def shifted(x: torch.Tensor, by: int, pos: torch.Tensor) -> torch.Tensor:
    """Row i holds x of row i - by, 0 where that is another sequence. ``x`` [rows, channels]."""
    if by == 0:
        return x
    return F.pad(x, (0, 0, by, 0))[:-by] * (pos >= by)[:, None]


def causal_conv(x: torch.Tensor, weight: torch.Tensor, pos: torch.Tensor, dilation: int = 1) -> torch.Tensor:
    """As ``reference/layers/conv.py``; ``weight`` [channels, 1, kernel]."""
    kernel = weight.shape[-1]
    taps = [shifted(x, (kernel - 1 - tap) * dilation, pos) * weight[:, 0, tap] for tap in range(kernel)]
    return sum(taps[1:], taps[0])


def mix(streams: torch.Tensor, p: Part, c: Config, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Input [rows, hidden] of a block from the streams [rows, hc_count, hidden], and the injection's weights."""
    normed = rms(streams, c.rms_norm_eps) * (1 + p["hc_norm.weight"].view(c.hc_count, c.hidden_size))
    flat = normed.flatten(1).to(low)
    rank = F.silu(linear(flat, p["input_mix_weight_down.weight"], low).float() / c.hc_count)
    share = torch.sigmoid(linear(rank, p["input_mix_weight_up.weight"], low).float()).view(normed.shape)
    x = (share * normed).mean(1)
    if "block_inject_weight.weight" not in p:
        return x, None
    return x, 2 * torch.sigmoid(linear(flat, p["block_inject_weight.weight"], low).float() / c.hc_count)


def injected(streams: torch.Tensor, share: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Streams after a block whose output is ``y`` [rows, hidden]."""
    return streams + share[:, :, None] * y.float()[:, None, :]


def moe(x: torch.Tensor, p: Part, c: Config, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and shared expert of ``x`` [rows, hidden]; all experts are computed, those not chosen with share 0.

    Returns [rows, hidden] and the balance loss: num_experts * sum(chosen part * mean mass), 1 when even.
    """
    mass = F.softmax(F.linear(x.float(), p["gate.weight"]), -1)
    best, ids = mass.topk(c.num_experts_per_tok, -1)
    share = torch.zeros_like(mass).scatter(1, ids, best / best.sum(-1, keepdim=True))
    chosen = (share > 0).float().mean(0) / c.num_experts_per_tok
    balance = c.num_experts * (chosen * mass.mean(0)).sum()
    wide = linear(x, p["experts.gate_up_proj"].flatten(0, 1), low).view(len(x), c.num_experts, -1)
    gate, up = wide.chunk(2, -1)
    wide = F.silu(gate) * up * share.to(low)[:, :, None]
    y = linear(wide.flatten(1), p["experts.down_proj"].transpose(0, 1).flatten(1), low)
    shared = F.silu(linear(x, p["shared_expert.gate_proj.weight"], low))
    shared = shared * linear(x, p["shared_expert.up_proj.weight"], low)
    shared = linear(shared, p["shared_expert.down_proj.weight"], low)
    return y + torch.sigmoid(linear(x, p["shared_expert_gate.weight"], low)) * shared, balance


def mlp_block(streams: torch.Tensor, layer: Layer, c: Config, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The second half of every layer. Returns the streams and the balance loss."""
    x, share = mix(streams, layer["mlp_hyper_connection"], c, low)
    y, balance = moe(x, layer["mlp"], c, low)
    return injected(streams, share, y), balance


def delta_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gated delta rule within chunks: what each needs of the state before it, and gives to the one after it.

    q, k [chunks, heads, CHUNK, key dim]; v [..., value dim]; log_decay, beta [chunks, heads, CHUNK]; float32.
    Returns M, N with S' = M S + N, and P, R with out = P S + R; S [key dim, value dim] is the state before the chunk.
    """
    total = log_decay.cumsum(-1)
    place = torch.arange(q.shape[-2], device=q.device)
    past, self_too = place[:, None] > place, place[:, None] >= place
    # Masked before the exponential: above the diagonal it would overflow.
    decay = torch.exp(torch.where(self_too, total[..., :, None] - total[..., None, :], -torch.inf))
    weighted = k * beta[..., None]
    inverse = invert(torch.where(past, weighted @ k.mT * decay, 0.0))
    w = inverse @ (weighted * torch.exp(total)[..., None])
    u = inverse @ (v * beta[..., None])
    mass = q @ k.mT * decay
    last = total[..., -1:]
    rest = k * torch.exp(last - total)[..., None]
    eye = torch.eye(k.shape[-1], device=k.device)
    m = eye * torch.exp(last)[..., None] - rest.mT @ w
    return m, rest.mT @ u, q * torch.exp(total)[..., None] - mass @ w, mass @ u


def linear_before(
    streams: torch.Tensor, layer: Layer, pos: torch.Tensor, c: Config, low: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A DeltaNet layer up to its state. Returns M, N, P, R of :func:`delta_chunks`, the gate z and the injection."""
    p = layer["linear_attn"]
    x, share = mix(streams, layer["attn_hyper_connection"], c, low)
    rows, keys, heads = len(x), c.linear_num_key_heads, c.linear_num_value_heads
    key_dim, value_dim = c.linear_key_head_dim, c.linear_value_head_dim
    mixed = F.silu(causal_conv(linear(x, p["in_proj_qkv.weight"], low).float(), p["conv1d.weight"], pos))
    q, k, v = mixed.split([keys * key_dim, keys * key_dim, heads * value_dim], 1)
    q, k = (a.view(rows, keys, key_dim) for a in (q, k))
    q, k = (a * torch.rsqrt(a.square().sum(-1, keepdim=True) + 1e-6) for a in (q, k))
    q, k = (a.repeat_interleave(heads // keys, 1) for a in (q * key_dim**-0.5, k))
    step = F.softplus(linear(x, p["in_proj_a.weight"], low).float() + p["dt_bias"])
    log_decay = -torch.exp(p["A_log"]) * step
    beta = torch.sigmoid(linear(x, p["in_proj_b.weight"], low).float())

    def chunked(a: torch.Tensor) -> torch.Tensor:
        return a.reshape(rows // CHUNK, CHUNK, *a.shape[1:]).transpose(1, 2)

    terms = delta_chunks(*(chunked(a) for a in (q, k, v.view(rows, heads, value_dim), log_decay, beta)))
    return *terms, linear(x, p["in_proj_z.weight"], low), share


def linear_after(
    streams: torch.Tensor,
    layer: Layer,
    states: torch.Tensor,
    reads: torch.Tensor,
    rest: torch.Tensor,
    z: torch.Tensor,
    share: torch.Tensor,
    c: Config,
    low: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rest of a DeltaNet layer from the ``states`` before each chunk. Returns the streams and the balance loss."""
    p, rows = layer["linear_attn"], len(streams)
    out = (reads @ states + rest).transpose(1, 2).reshape(rows, c.linear_num_value_heads, -1)
    gate = z.float().view(out.shape)
    gate = torch.sigmoid(gate) if c.output_gate_type == "sigmoid" else F.silu(gate)
    out = rms(out, c.rms_norm_eps) * p["norm.weight"] * gate
    streams = injected(streams, share, linear(out.flatten(1), p["out_proj.weight"], low))
    return mlp_block(streams, layer, c, low)


def qsa_before(
    streams: torch.Tensor, layer: Layer, table: torch.Tensor, c: Config, low: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A QSA layer up to its attention.

    Returns q [rows, n_head, dim], k, v [rows, n_head_kv, dim], gate, injection, and the indexer's queries
    [rows, idx_heads, idx_dim] and pooled keys [rows / ratio, idx_dim]. The indexer learns from its own loss alone: its
    input is detached.
    """
    p, eps = layer["self_attn"], c.rms_norm_eps
    x, share = mix(streams, layer["attn_hyper_connection"], c, low)
    rows = len(x)
    q, gate = linear(x, p["q_proj.weight"], low).view(rows, c.num_attention_heads, -1).chunk(2, -1)
    q = rotate(rms(q, eps) * (1 + p["q_norm.weight"]), table).to(low)
    k = linear(x, p["k_proj.weight"], low).view(rows, c.num_key_value_heads, -1)
    k = rotate(rms(k, eps) * (1 + p["k_norm.weight"]), table).to(low)
    v = linear(x, p["v_proj.weight"], low).view(k.shape)
    index = linear(x.detach(), p["indexer.index_qk_proj.weight"], low).view(rows, c.indexer_n_heads + 1, -1)
    queries = rotate(rms(index[:, :-1], eps) * (1 + p["indexer.q_layernorm.weight"]), table)
    ratio = c.indexer_compress_ratio
    pooled = index[:, -1:].float().view(rows // ratio, ratio, 1, -1).mean(1)
    pooled = rotate(rms(pooled, eps) * (1 + p["indexer.k_layernorm.weight"]), table[::ratio])
    return q, k, v, gate, share, queries.to(low), pooled[:, 0].to(low)


def qsa_after(
    streams: torch.Tensor,
    layer: Layer,
    out: torch.Tensor,
    gate: torch.Tensor,
    share: torch.Tensor,
    c: Config,
    low: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rest of a QSA layer from the attention's ``out`` [rows, n_head, dim]. Returns streams and balance loss."""
    y = linear((out * torch.sigmoid(gate)).flatten(1), layer["self_attn"]["o_proj.weight"], low)
    return mlp_block(injected(streams, share, y), layer, c, low)


def ple(
    streams: torch.Tensor, p: Part, rows: torch.Tensor, pos: torch.Tensor, c: Config, low: torch.dtype
) -> torch.Tensor:
    """Streams after PLE; ``rows`` [tokens, heads] are the table's rows of every token's n-grams."""
    eps, groups = c.rms_norm_eps, (c.hc_count, c.hidden_size)
    embedding = F.embedding(rows, p["ple_embedding.ngram_embedding.weight"]).flatten(1)
    key = rms(linear(embedding, p["key_proj.weight"], low).view(streams.shape), eps)
    key = key * (1 + p["norm_key.weight"].view(groups))
    query = rms(streams, eps) * (1 + p["norm_query.weight"].view(groups))
    s = (key * query).sum(-1) / c.hidden_size**0.5
    root = torch.sign(s) * torch.sqrt(s.abs().clamp_min(1e-6))
    value = linear(embedding, p["value_proj.weight"], low).float()
    gated = torch.sigmoid(root)[:, :, None] * value[:, None, :]
    normed = rms(gated, eps) * (1 + p["norm_conv.weight"].view(groups))
    mixed = causal_conv(normed.flatten(1), p["conv1d.weight"], pos, c.ngram_size)
    return streams + gated + F.silu(mixed).view(streams.shape)


def draft_start(streams: torch.Tensor, embedded: torch.Tensor, p: Part, c: Config, low: torch.dtype) -> torch.Tensor:
    """The draft layer's streams from the model's (or its own) and the embedding of the next token; norm ``whole``."""
    eps = c.rms_norm_eps
    embedded = linear(rms(embedded, eps) * (1 + p["pre_fc_norm_embedding.weight"]), p["fc_embedding.weight"], low)
    normed = rms(streams.flatten(1), eps) * (1 + p["pre_fc_norm_hidden.weight"])
    hidden = linear(normed.view(streams.shape), p["fc_hidden.weight"], low)
    return hidden.float() + embedded.float()[:, None]


def head_loss(
    streams: torch.Tensor,
    mixer: Part,
    head: torch.Tensor,
    targets: torch.Tensor,
    weights: torch.Tensor,
    c: Config,
    low: torch.dtype,
) -> torch.Tensor:
    """Weighted mean cross-entropy in nats of the logits of the mixed streams. ``weights`` [rows] float32."""
    x, _ = mix(streams, mixer, c, low)
    losses = F.cross_entropy(linear(x, head, low).float(), targets, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp_min(1)
