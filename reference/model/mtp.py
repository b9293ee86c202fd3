"""The draft layer (MTP): one QSA layer with its own cells that proposes the token after the next one.

Source: formulas and tensor names as public engines read them from the published checkpoint; the published model code
leaves the draft layer out. Open: engines disagree about the norm of the residual streams before ``fc_hidden``. vLLM,
SGLang and Strata norm all streams of a row together (``whole``, the default here), llama.cpp and LightLLM each on its
own (``streams``). It changes drafts, never an output.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..layers.functions import linear, part, prefixed
from ..layers.norm import group_norm, rms_norm, whole_norm
from . import moe, qsa
from . import streams as hyper
from .config import Config

if TYPE_CHECKING:
    from .text_model import Model

NORMS = {"whole": whole_norm, "streams": group_norm}


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes, without the ``mtp.`` before every name. Embedding and head are the model's own."""
    hidden = config.hidden_size
    names = {
        "pre_fc_norm_embedding.weight": (hidden,),
        "pre_fc_norm_hidden.weight": (config.hc_count * hidden,),
        "fc_embedding.weight": (hidden, hidden),
        "fc_hidden.weight": (hidden, hidden),
    }
    names |= prefixed("layers.0.self_attn.", qsa.shapes(config.geometry, hidden))
    names |= prefixed("layers.0.attn_hyper_connection.", hyper.shapes(config))
    names |= prefixed("layers.0.mlp_hyper_connection.", hyper.shapes(config))
    names |= prefixed("layers.0.mlp.", moe.shapes(config))
    return names | prefixed("hyper_connection_mixer.", hyper.shapes(config, inject=False))


class Draft:
    """The draft layer of ``model``. ``norm`` is ``whole`` or ``streams``; see the top of this file.

    Raises ValueError on an unknown norm.
    """

    def __init__(self, model: "Model", tensors: Mapping[str, Any], norm: str = "whole") -> None:
        if norm not in NORMS:
            raise ValueError(f"draft_norm = {norm!r}: allowed are {', '.join(NORMS)}")
        self.model, self.norm, self.tensors = model, NORMS[norm], tensors
        self.attention, self.mlp = part(tensors, "layers.0.self_attn."), part(tensors, "layers.0.mlp.")
        self.attention_mix = part(tensors, "layers.0.attn_hyper_connection.")
        self.mlp_mix = part(tensors, "layers.0.mlp_hyper_connection.")
        self.mixer = part(tensors, "hyper_connection_mixer.")

    def init_state(self) -> qsa.State:
        """The state of a sequence that has not begun: no cells. Returns qsa.State."""
        return qsa.init_state(self.model.geometry)

    def forward(self, streams: np.ndarray, next_ids: npt.ArrayLike, state: qsa.State) -> tuple[np.ndarray, np.ndarray]:
        """Propose tokens. ``streams`` [n, hc_count, hidden] float64: the model's final residual streams of the tokens
        at the next n positions; ``next_ids`` [n]: the token after each of them.

        Returns ``logits`` [n, vocab_size] of the token after next_ids, and the layer's own streams [n, hc_count,
        hidden], which stand in for the model's in a further step of the same draft. Advances ``state``: cell i holds
        the streams of position i joined with token i + 1, and is rotated at position i.
        Raises ValueError on bad ids or when the lengths differ.
        """
        config, geometry, weights = self.model.config, self.model.geometry, self.tensors
        ids = self.model.check_ids(next_ids)
        if streams.shape != (len(ids), config.hc_count, config.hidden_size):
            needed = f"[{len(ids)}, {config.hc_count}, {config.hidden_size}]"
            raise ValueError(f"streams: shape {streams.shape}: {needed} is required")
        eps = config.rms_norm_eps
        embedding = rms_norm(self.model.embed(ids), weights["pre_fc_norm_embedding.weight"], eps)
        hidden = self.norm(streams, weights["pre_fc_norm_hidden.weight"], eps)
        embedding, hidden = (
            linear(embedding, weights["fc_embedding.weight"]),
            linear(hidden, weights["fc_hidden.weight"]),
        )
        streams = hidden + embedding[:, None, :]

        def attend(x: np.ndarray) -> np.ndarray:
            return qsa.forward(x, self.attention, geometry, state, self.model.rule)[0]

        streams = hyper.through(streams, self.attention_mix, config, attend)
        streams = hyper.through(streams, self.mlp_mix, config, lambda x: moe.forward(x, self.mlp, config))
        x, _ = hyper.mix(streams, self.mixer, config)
        return linear(x, self.model.head), streams
