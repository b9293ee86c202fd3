"""One layer of the text model: PLE where the configuration has it, attention of the layer's kind, and MoE."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qsa.reference.layers.functions import part
from qsa.reference.model.config import Config
from qsa.reference.model.ple import check_buffers

from . import deltanet, moe, ple, qsa
from . import streams as hyper


class Layer:
    """The layer at ``index`` of a model; ``tensors``: in runtime form, named without the layer's prefix."""

    def __init__(self, config: Config, index: int, tensors: Mapping[str, Any], backend: Any) -> None:
        self.config, self.geometry, self.backend = config, config.geometry, backend
        self.linear = config.layer_types[index] == "linear_attention"
        layers = backend.layers
        if self.linear:
            self.attention = deltanet.load(part(tensors, "linear_attn."), layers)
        else:
            self.attention = qsa.load(part(tensors, "self_attn."), self.geometry, layers)
        self.attention_mix, self.mlp_mix = (
            hyper.load(part(tensors, f"{name}_hyper_connection."), config, layers) for name in ("attn", "mlp")
        )
        self.mlp = moe.load(part(tensors, "mlp."), layers)
        self.ple = None
        if index + 1 in config.ple_layer_ids:
            self.ple_index = config.ple_layer_ids.index(index + 1)
            check_buffers(part(tensors, "ple."), config, self.ple_index)
            self.ple = ple.load(part(tensors, "ple."), config, layers)

    def init_state(
        self,
        to_device: Callable[[Any], Any],
        capacity: int,
        page_size: int,
        kv_format: str,
        index_format: str = "fp32",
    ) -> tuple[Any, ple.State | None]:
        """Initial states of a sequence: that of the attention, and that of PLE or None."""
        attention: Any
        if self.linear:
            attention = deltanet.init_state(self.config, to_device)
        else:
            sizes = capacity, page_size, kv_format
            attention = qsa.init_state(self.attention, self.geometry, to_device, *sizes, index_format=index_format)
        return attention, ple.init_state(self.config, to_device) if self.ple else None

    def forward(
        self,
        streams: np.ndarray,
        ngrams: Any,
        rows: qsa.Rows,
        states: Sequence[Any],
        ple_states: Sequence[Any],
        rule: str,
        batched: bool,
        journal: list | None,
    ) -> np.ndarray:
        """The streams [n, hc_count, hidden] float32 after the layer; advances the states.

        ngrams      table rows [n, heads] int64 of PLE, or None
        states      for every sequence the state of its attention; ple_states: that of its PLE, or None
        batched     whether a QSA layer selects and attends in one call for all sequences
        journal     None, or a list that receives one entry of PLE, if the layer has one, and one of the attention
        """
        config, layers = self.config, self.backend.layers
        if self.ple:
            spans = list(zip(rows.spans, ple_states, strict=True))
            streams = ple.forward(streams, ngrams, self.ple, config, spans, layers, journal, rows.bounds)

        def attend(x: np.ndarray) -> np.ndarray:
            if self.linear:
                spans = list(zip(rows.spans, states, strict=True))
                return deltanet.forward(x, self.attention, config, spans, layers, journal, rows.bounds)
            return qsa.forward(
                x, self.attention, self.geometry, rows, states, self.backend, rule, journal=journal, batched=batched
            )

        streams = hyper.through(streams, self.attention_mix, config, layers, attend)
        return hyper.through(streams, self.mlp_mix, config, layers, lambda x: moe.forward(x, self.mlp, config, layers))

    def replay(self, entries: Iterator[Any], rows: slice, steps: np.ndarray, state: Any, ple_state: Any) -> None:
        """Advance the states by ``rows`` of an earlier call.

        entries  iterator over that call's journal, at the entries of this layer
        steps    step records [n, 4] int32 of the rows
        """
        if self.ple:
            ple.replay(next(entries), rows, self.ple, self.config, ple_state, self.backend.layers)
        if self.linear:
            deltanet.replay(next(entries), rows, self.attention, state, self.backend.layers)
        else:
            qsa.replay(next(entries)[rows], steps, state, self.backend)

    def replay_kept(
        self,
        entries: Iterator[Any],
        spans: Sequence[slice],
        bounds: Any,
        steps: Any,
        states: Sequence[Any],
        ple_states: Sequence[Any],
    ) -> None:
        """:meth:`replay` of several sequences at once; arguments as :meth:`TextModel.recompute_kept`."""
        if self.ple:
            ple.replay_kept(next(entries), bounds, self.ple, self.config, ple_states, self.backend.layers)
        entry = next(entries)
        if self.linear:
            deltanet.replay_kept(entry, bounds, self.attention, states, self.backend.layers)
            return
        for span, state in zip(spans, states, strict=True):
            qsa.replay(entry[span], steps[span], state, self.backend)
