"""The whole network in torch: parameters under the reference's names, losses of a batch, logits for comparison."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from qsa.reference.layers.rope import cos_sin
from qsa.reference.model.config import Config
from qsa.reference.model.ple import hash_constants
from qsa.reference.model.text_model import shapes

from . import attention, layers
from .scan import Carry

FIXED = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
"""Endings of the hash constants, which are no parameters."""

UNUSED = "mtp.layers.0.self_attn.indexer."
"""The draft layer attends densely: its indexer has names in the checkpoint but takes no part."""


def initial(config: Config, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Parameters by name, float32: normal matrices of variance 1 / inputs, outputs of blocks smaller, norms neutral.

    Embeddings have variance 1, the n-gram table 1/4. Decays of Gated DeltaNet start between 0.2 and 0.9999 per token.
    """
    parameters = {}
    for name, shape in sorted(shapes(config, draft=True).items()):
        if name.endswith(FIXED):
            continue
        if name.endswith("A_log"):
            value = torch.empty(shape).uniform_(1, 16, generator=generator).log()
        elif name.endswith("dt_bias"):
            step = torch.exp(torch.empty(shape).uniform_(-6.9, -2.3, generator=generator))
            value = step + torch.log(-torch.expm1(-step))
        elif len(shape) == 1:
            value = torch.ones(shape) if name.endswith("linear_attn.norm.weight") else torch.zeros(shape)
        elif name.endswith("conv1d.weight"):
            value = torch.randn(shape, generator=generator) * 0.1
            value[..., -1] += 0.0 if ".ple." in name else 1.0
        else:
            scale = shape[-1] ** -0.5
            if name.endswith("embed_tokens.weight"):
                scale = 1.0
            elif name.endswith("ngram_embedding.weight"):
                scale = 0.5
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj", "lm_head.weight")):
                scale *= 0.3
            elif name.endswith(("mix_weight_up.weight", "block_inject_weight.weight", ".gate.weight")):
                scale *= 0.5
            value = torch.randn(shape, generator=generator) * scale
        parameters[name] = value
    return parameters


def _nested(tensors, prefix, parts):
    """{part: its tensors by the rest of their names} of the tensors below ``prefix``."""
    return {
        one: {
            name[len(prefix + one) + 1 :]: value
            for name, value in tensors.items()
            if name.startswith(f"{prefix}{one}.")
        }
        for one in parts
    }


class Losses(NamedTuple):
    """Scalars: ``text`` (weighted nats per byte), ``drafts`` (a list, one per draft step), ``index`` (cross-entropy of
    the indexers), ``balance`` (1 when experts are used evenly)."""

    text: torch.Tensor
    drafts: list
    index: torch.Tensor
    balance: torch.Tensor


class Network:
    """The network over ``tensors`` (name -> tensor; those of :func:`initial`, on one device).

    ``low`` is the dtype of matrix products. ``compiled`` compiles the stretches between attention and state.
    """

    def __init__(
        self, config: Config, tensors: dict[str, torch.Tensor], low: torch.dtype = torch.float32, compiled: bool = False
    ) -> None:
        self.config, self.tensors, self.low = config, tensors, low
        self.device = tensors["lm_head.weight"].device
        types = {"linear_attention": "linear_attn", "indexed_attention": "self_attn"}
        parts = "attn_hyper_connection", "mlp_hyper_connection", "mlp", "ple"
        self.layers = [
            _nested(tensors, f"model.layers.{i}.", (types[kind], *parts)) for i, kind in enumerate(config.layer_types)
        ]
        self.draft_layer = _nested(tensors, "mtp.layers.0.", ("self_attn", *parts[:3]))
        self.draft = {
            name[4:]: value for name, value in tensors.items() if name.startswith("mtp.") and name.count(".") == 2
        }
        self.mixer = _nested(tensors, "model.", ("hyper_connection_mixer",))["hyper_connection_mixer"]
        self.draft_mixer = _nested(tensors, "mtp.", ("hyper_connection_mixer",))["hyper_connection_mixer"]
        names = "linear_before", "linear_after", "qsa_before", "qsa_after", "ple", "draft_start", "head_loss"
        call = torch.compile if compiled else lambda function, **_: function
        self.call = {name: partial(call(getattr(layers, name), dynamic=False), c=config, low=low) for name in names}
        self.hashes = [hash_constants(config, index) for index in range(len(config.ple_layer_ids))]

    def table(self, length: int, sequences: int) -> torch.Tensor:
        """cos and sin [sequences * length, n_rot] float32 of every row's position."""
        rope = torch.from_numpy(cos_sin(range(length), self.config.n_rot, self.config.rope_theta)).float()
        return rope.repeat(sequences, 1).to(self.device)

    def ngram_rows(self, ids: torch.Tensor, index: int) -> torch.Tensor:
        """Table rows [tokens, heads] of ``ids`` [sequences, length] int64; as ``reference/model/ple.py``, state new."""
        c, hash_ = self.config, self.hashes[index]
        mixed, cut, rows = ids * hash_.multipliers[0], torch.zeros_like(ids, dtype=torch.bool), []
        for back in range(1, c.ngram_size):
            older = F.pad(ids, (back, 0), value=c.eos_token_id)[:, : ids.shape[1]]
            cut = cut | (older == c.eos_token_id)
            mixed = mixed ^ (torch.where(cut, c.eos_token_id, older) * hash_.multipliers[back])
            for head in range((back - 1) * c.heads_per_ngram, back * c.heads_per_ngram):
                rows.append(mixed % hash_.sizes[head] + hash_.offsets[head])
        return torch.stack(rows, -1).flatten(0, 1)

    def _attend(self, streams, layer, table, length, select, index_rows):
        """One QSA layer. Returns streams, balance and index loss; ``index_rows`` None leaves the last one 0."""
        q, k, v, gate, share, queries, pooled = self.call["qsa_before"](streams, layer, table)
        if select:
            out = attention.selected(q, k, v, queries, pooled, length, self.config)
        else:
            out = attention.dense(q, k, v, length)
        loss = 0.0
        if index_rows is not None:
            loss = attention.index_loss(q, k, queries, pooled, length, self.config, index_rows)
        return *self.call["qsa_after"](streams, layer, out, gate, share), loss

    def trunk(
        self, ids: torch.Tensor, table: torch.Tensor, select: bool = False, index_rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Final streams of ``ids`` [sequences, length]; mean balance loss and sum of the indexers' losses."""
        c, length = self.config, ids.shape[1]
        embedded = F.embedding(ids.flatten(), self.tensors["model.embed_tokens.weight"])
        streams = embedded[:, None].repeat(1, c.hc_count, 1)
        pos = torch.arange(length, device=self.device).repeat(len(ids))
        balances, losses = [], []
        for i, layer in enumerate(self.layers):
            if i + 1 in c.ple_layer_ids:
                rows = self.ngram_rows(ids, c.ple_layer_ids.index(i + 1))
                streams = self.call["ple"](streams, layer["ple"], rows, pos)
            if c.layer_types[i] == "linear_attention":
                m, n, reads, rest, z, share = self.call["linear_before"](streams, layer, pos)
                states = Carry.apply(m, n, length // layers.CHUNK)
                streams, balance = self.call["linear_after"](streams, layer, states, reads, rest, z, share)
            else:
                streams, balance, loss = self._attend(streams, layer, table, length, select, index_rows)
                losses.append(loss)
            balances.append(balance)
        return streams, sum(balances) / len(balances), sum(losses)

    def draft_step(
        self, streams: torch.Tensor, next_ids: torch.Tensor, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft layer's streams from ``streams`` and the token after each row, ``next_ids`` [sequences, length]."""
        embedded = F.embedding(next_ids.flatten(), self.tensors["model.embed_tokens.weight"])
        streams = self.call["draft_start"](streams, embedded, self.draft)
        return self._attend(streams, self.draft_layer, table, next_ids.shape[1], False, None)[:2]

    def losses(
        self,
        tokens: torch.Tensor,
        weights: torch.Tensor,
        select: bool = False,
        draft_steps: int = 1,
        index_rows: torch.Tensor | None = None,
    ) -> Losses:
        """:class:`Losses` of ``tokens`` [sequences, length + 1] int64; ``weights`` alike, float32, of every target.

        Draft step s predicts the token s + 1 places after the row's next one; what lies beyond the sequence weighs 0.
        """
        ids, length = tokens[:, :-1], tokens.shape[1] - 1
        table = self.table(length, len(ids))
        streams, balance, index = self.trunk(ids, table, select, index_rows)
        head = self.tensors["lm_head.weight"]
        text = self.call["head_loss"](streams, self.mixer, head, tokens[:, 1:].flatten(), weights[:, 1:].flatten())
        drafts = []
        for step in range(1, draft_steps + 1):
            streams, more = self.draft_step(streams, ahead(tokens, step)[:, :-1], table)
            balance = balance + more / len(self.layers)
            goal, weight = ahead(tokens, step + 1)[:, :-1], ahead(weights, step + 1)[:, :-1]
            drafts.append(self.call["head_loss"](streams, self.draft_mixer, head, goal.flatten(), weight.flatten()))
        return Losses(text, drafts, index, balance)

    def guess(self, streams: torch.Tensor, mixer: layers.Part, head: torch.Tensor) -> torch.Tensor:
        """The likeliest token [rows] after each row."""
        return layers.linear(layers.mix(streams, mixer, self.config, self.low)[0], head, self.low).argmax(-1)

    def logits(self, ids: torch.Tensor, select: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [length, vocab] and draft logits [length - 1, vocab] of one sequence ``ids`` [length] (a multiple of
        CHUNK), for comparison with the reference."""
        with torch.no_grad():
            table, head = self.table(len(ids), 1), self.tensors["lm_head.weight"]
            streams = self.trunk(ids[None], table, select)[0]
            x, _ = layers.mix(streams, self.mixer, self.config, self.low)
            drafted = self.draft_step(streams, ahead(ids[None], 1), table)[0]
            y, _ = layers.mix(drafted, self.draft_mixer, self.config, self.low)
            return layers.linear(x, head, self.low), layers.linear(y, head, self.low)[:-1]


def ahead(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """``tokens`` [sequences, n] moved ``by`` places to the left, 0 behind the end."""
    return F.pad(tokens[:, by:], (0, by))
