"""The whole text model: embedding, layers over residual streams, last mix, head. Source: published model code.

There is one form, the incremental one. A whole sequence is one chunk from a fresh state, so both forms agree at every
cut of a sequence into chunks, up to the rounding of matrix products of different height.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..geometry import RULES
from ..layers.functions import linear, part, prefixed
from . import deltanet, moe, ple, qsa
from . import streams as hyper
from .config import Config
from .mtp import Draft
from .mtp import shapes as draft_shapes


def shapes(config: Config, draft: bool = False) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint, integer ones included; of the draft layer too when asked.

    Names are those of a text-only checkpoint; checkpoint.py maps the others to them.
    """
    names: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "lm_head.weight": (config.vocab_size, config.hidden_size),
    }
    names |= prefixed("model.hyper_connection_mixer.", hyper.shapes(config, inject=False))
    for layer, layer_type in enumerate(config.layer_types):
        base = f"model.layers.{layer}."
        if layer_type == "linear_attention":
            names |= prefixed(base + "linear_attn.", deltanet.shapes(config))
        else:
            names |= prefixed(base + "self_attn.", qsa.shapes(config.geometry, config.hidden_size))
        names |= prefixed(base + "attn_hyper_connection.", hyper.shapes(config))
        names |= prefixed(base + "mlp_hyper_connection.", hyper.shapes(config))
        names |= prefixed(base + "mlp.", moe.shapes(config))
        if layer + 1 in config.ple_layer_ids:
            index = config.ple_layer_ids.index(layer + 1)
            names |= prefixed(base + "ple.", ple.shapes(config, index))
            names |= prefixed(base + "ple.", {name: value.shape for name, value in ple.buffers(config, index).items()})
    if draft:
        names |= prefixed("mtp.", draft_shapes(config))
    return names


@dataclass
class State:
    """What one sequence leaves behind: ``n``, the tokens so far; per layer the state of its attention (deltanet.State
    or qsa.State), and of its PLE (ple.State, None where there is none)."""

    n: int
    attention: list
    ple: list

    def copy(self) -> Self:
        """A state of its own: nothing done with either one is seen in the other."""
        return copy.deepcopy(self)


@dataclass
class Trace:
    """Intermediate results of one call.

    ``hidden``: list, the residual streams [n, hc_count · hidden] before each layer, last the mixed output [n, hidden].
    ``selected``: layer → bool [n, cells], the cells that each row selects (QSA layers).
    """

    hidden: list = field(default_factory=list)
    selected: dict = field(default_factory=dict)


class Output(NamedTuple):
    """``logits`` [n, vocab_size] float64, and ``streams`` [n, hc_count, hidden], the final residual streams, which the
    draft layer reads."""

    logits: np.ndarray
    streams: np.ndarray


class Model:
    """A text model. ``tensors`` maps the names of :func:`shapes` to arrays of any float dtype; each is lifted to
    float64 when it is used. ``rule`` is the selection rule, ``blocks`` or ``cells``.

    ``draft`` is the draft layer (mtp.Draft), None when the tensors have none; ``draft_norm`` is its open question.
    Raises ValueError when a tensor is missing, extra or misshapen, when a stored hash constant is not the derived one,
    or on an unknown rule.
    """

    def __init__(
        self, config: Config, tensors: Mapping[str, Any], rule: str = "blocks", draft_norm: str = "whole"
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"rule = {rule!r}: allowed are {', '.join(RULES)}")
        self.config, self.rule, self.geometry = config, rule, config.geometry
        self.tensors = tensors
        has_draft = any(name.startswith("mtp.") for name in tensors)
        check_tensors(tensors, shapes(config, has_draft))
        self.embedding, self.head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        self.mixer = part(tensors, "model.hyper_connection_mixer.")
        self.layers = [Layer(config, layer, part(tensors, f"model.layers.{layer}.")) for layer in range(self.n_layer)]
        self.draft = Draft(self, part(tensors, "mtp."), draft_norm) if has_draft else None

    @property
    def n_layer(self) -> int:
        """Layers, without the draft layer."""
        return self.config.num_hidden_layers

    def init_state(self) -> State:
        """The state of a sequence that has not begun."""
        states = [layer.init_state() for layer in self.layers]
        return State(0, [attention for attention, _ in states], [ple_state for _, ple_state in states])

    def check_ids(self, ids: npt.ArrayLike) -> np.ndarray:
        """``ids`` as int64 [n]. Raises ValueError unless they are a non-empty row of integers in the vocabulary."""
        ids = np.asarray(ids)
        if ids.ndim != 1 or not len(ids):
            raise ValueError(f"ids: shape {ids.shape}: a non-empty one-dimensional array is required")
        if ids.dtype.kind not in "iu":
            raise ValueError(f"ids: dtype {ids.dtype}: integers are required")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            bad = ids[(ids < 0) | (ids >= self.config.vocab_size)][0]
            raise ValueError(f"ids: {bad}: 0 to {self.config.vocab_size - 1} are in the vocabulary")
        return ids.astype(np.int64)

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Embeddings [n, hidden] float64 of checked ids [n]."""
        return np.asarray(self.embedding[ids], np.float64)

    def forward(self, ids: npt.ArrayLike, state: State, trace: Trace | None = None) -> Output:
        """Continue a sequence by ``ids`` [n]; returns :class:`Output` and advances ``state``.

        A :class:`Trace` given as ``trace`` is filled. Raises ValueError on bad ids, and then changes nothing.
        """
        ids = self.check_ids(ids)
        streams = hyper.start(self.embed(ids), self.config)
        for index, layer in enumerate(self.layers):
            if trace is not None:
                trace.hidden.append(streams.reshape(len(ids), -1))
            streams, selected = layer.forward(streams, ids, state.attention[index], state.ple[index], self.rule)
            if trace is not None and selected is not None:
                trace.selected[index] = selected
        state.n += len(ids)
        x, _ = hyper.mix(streams, self.mixer, self.config)
        if trace is not None:
            trace.hidden.append(x)
        return Output(linear(x, self.head), streams)

    def logits(self, ids: npt.ArrayLike) -> np.ndarray:
        """Logits [n, vocab_size] float64 of the whole sequence ``ids`` [n]. Raises ValueError on bad ids."""
        return self.forward(ids, self.init_state()).logits

    def trace(self, ids: npt.ArrayLike) -> Trace:
        """The :class:`Trace` of the whole sequence ``ids`` [n]. Raises ValueError on bad ids."""
        trace = Trace()
        self.forward(ids, self.init_state(), trace)
        return trace


class Layer:
    """One layer: PLE where the configuration has it, attention of the layer's kind, MoE."""

    def __init__(self, config: Config, index: int, tensors: Mapping[str, Any]) -> None:
        self.config, self.geometry = config, config.geometry
        self.linear = config.layer_types[index] == "linear_attention"
        self.attention = part(tensors, "linear_attn." if self.linear else "self_attn.")
        self.attention_mix, self.mlp_mix = (
            part(tensors, "attn_hyper_connection."),
            part(tensors, "mlp_hyper_connection."),
        )
        self.mlp, self.ple = part(tensors, "mlp."), part(tensors, "ple.")
        self.ple_index = config.ple_layer_ids.index(index + 1) if self.ple else None
        if self.ple_index is not None:
            ple.check_buffers(self.ple, config, self.ple_index)

    def init_state(self) -> tuple[deltanet.State | qsa.State, ple.State | None]:
        """States of a sequence that has not begun: of the attention, and of PLE or None."""
        attention = deltanet.init_state(self.config) if self.linear else qsa.init_state(self.geometry)
        return attention, ple.init_state(self.config) if self.ple else None

    def forward(
        self, streams: np.ndarray, ids: np.ndarray, state: Any, ple_state: ple.State | None, rule: str
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Streams [n, hc_count, hidden] after the layer, and the cells selected, bool [n, cells] or None."""
        if self.ple_index is not None:
            assert ple_state is not None, "the state of a layer with PLE has a part for PLE"
            streams = streams + ple.forward(streams, ids, self.ple, self.config, self.ple_index, ple_state)
        selected = None

        def attend(x: np.ndarray) -> np.ndarray:
            nonlocal selected
            if self.linear:
                return deltanet.forward(x, self.attention, self.config, state)
            y, selected = qsa.forward(x, self.attention, self.geometry, state, rule)
            return y

        streams = hyper.through(streams, self.attention_mix, self.config, attend)
        streams = hyper.through(streams, self.mlp_mix, self.config, lambda x: moe.forward(x, self.mlp, self.config))
        return streams, selected


def check_tensors(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError unless names and shapes of ``tensors`` are those of ``expected`` (name → shape)."""
    for kind, names in (("missing", set(expected) - set(tensors)), ("extra", set(tensors) - set(expected))):
        if names:
            raise ValueError(
                f"{kind} tensor{'s' if len(names) > 1 else ''}: {', '.join(sorted(names)[:5])}"
                + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"tensor {name}: shape {tuple(tensors[name].shape)}: the configuration needs {shape}")
