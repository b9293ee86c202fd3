"""Muon for the matrices inside the layers, AdamW for everything else."""

import torch

ADAM = (
    "embed_tokens.weight",
    "lm_head.weight",
    "ngram_embedding.weight",
    "conv1d.weight",
    "block_inject_weight.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "mlp.gate.weight",
    "shared_expert_gate.weight",
    "index_qk_proj.weight",
)
"""Endings of matrices for AdamW: tables, head, taps, gates with few outputs, and the indexer, whose loss is another."""

RATES = {"ngram_embedding.weight": 2.5, "index_qk_proj.weight": 0.7}
"""Learning rates beside the common one."""


def orthogonal(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest matrices with singular values near 1, by Newton-Schulz steps. ``g`` [count, m, n] float32."""
    x = g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + torch.baddbmm(-4.7750 * a, a, a, beta=1.0, alpha=2.0315) @ x
    return x.mT if tall else x


class Optimiser:
    """``tensors``: name -> leaf tensor. ``muon`` and ``adam`` are the peak learning rates."""

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        muon: float = 0.02,
        adam: float = 2e-3,
        momentum: float = 0.95,
        decay: float = 0.01,
    ) -> None:
        matrices = {n: t for n, t in tensors.items() if t.dim() > 1 and not n.endswith(ADAM)}
        self.rate, self.momentum, self.decay = muon, momentum, decay
        shapes = sorted({t.shape for t in matrices.values()})
        self.groups = [[t for t in matrices.values() if t.shape == shape] for shape in shapes]
        self.speeds = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]
        rest = {n: t for n, t in tensors.items() if n not in matrices}
        named = [(rate, [t for n, t in rest.items() if n.endswith(end)]) for end, rate in RATES.items()]
        named.append((1.0, [t for n, t in rest.items() if not n.endswith(tuple(RATES))]))
        groups = [{"params": list_, "lr": adam * rate, "peak": adam * rate} for rate, list_ in named]
        fused = all(t.is_cuda for t in rest.values())
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0, fused=fused)
        self.rest = list(rest.values())

    @torch.no_grad()
    def step(self, factor: float) -> torch.Tensor:
        """One step with the learning rates times ``factor``; gradients are cleared. Returns the norm of AdamW's."""
        norm = torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = group["peak"] * factor
        self.adam.step()
        for tensors, speed in zip(self.groups, self.speeds, strict=True):
            grad = torch.stack([t.grad for t in tensors])
            speed.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp(speed, self.momentum).flatten(0, -3)).float().view(speed.shape)
            scale = max(1.0, speed.shape[-2] / speed.shape[-1]) ** 0.5 * self.rate * factor
            torch._foreach_mul_(tensors, 1 - self.rate * factor * self.decay)
            torch._foreach_add_(tensors, list(update.unbind(0)), alpha=-scale)
        for tensors in (self.rest, *self.groups):
            for tensor in tensors:
                tensor.grad = None
        return norm

    def state(self) -> list[torch.Tensor]:
        """Tensors to restore after a bad step: momenta of both kinds."""
        return self.speeds + [v for one in self.adam.state.values() for k, v in one.items() if k != "step"]
