"""One layer of the text model: PLE where the configuration has it, attention of the layer's kind, MoE."""

from qsa.reference.layers.functions import part
from qsa.reference.model.ple import check_buffers

from . import deltanet, moe, ple, qsa
from . import streams as hyper


class Layer:
    """The layer at ``index`` of a model; ``tensors`` in runtime form, without what comes before a layer's names."""

    def __init__(self, config, index, tensors, backend):
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

    def init_state(self, to_device, capacity, page_size, kv_format):
        """States of a sequence that has not begun: of the attention, and of PLE or None."""
        if self.linear:
            attention = deltanet.init_state(self.config, to_device)
        else:
            attention = qsa.init_state(self.attention, self.geometry, to_device, capacity, page_size, kv_format)
        return attention, ple.init_state(self.config, to_device) if self.ple else None

    def forward(self, streams, ngrams, rows, states, ple_states, rule, together, journal):
        """Streams [n, hc_count, hidden] after the layer; advances the states. ``journal``, unless None, gets one entry
        of PLE, where there is one, and one of the attention."""
        config, layers = self.config, self.backend.layers
        if self.ple:
            spans = list(zip(rows.spans, ple_states, strict=True))
            streams = ple.forward(streams, ngrams, self.ple, config, spans, layers, journal)

        def attend(x):
            if self.linear:
                spans = list(zip(rows.spans, states, strict=True))
                return deltanet.forward(x, self.attention, config, spans, layers, journal)
            options = {"journal": journal, "together": together}
            return qsa.forward(x, self.attention, self.geometry, rows, states, self.backend, rule, **options)

        streams = hyper.through(streams, self.attention_mix, config, layers, attend)
        return hyper.through(streams, self.mlp_mix, config, layers, lambda x: moe.forward(x, self.mlp, config, layers))

    def replay(self, entries, rows, steps, state, ple_state):
        """Advance the states by ``rows`` of an earlier call; ``entries``: an iterator over what that call's journal got
        from this layer on, ``steps``: the rows' step records."""
        if self.ple:
            ple.replay(next(entries), rows, self.ple, self.config, ple_state, self.backend.layers)
        if self.linear:
            deltanet.replay(next(entries), rows, self.attention, state, self.backend.layers)
        else:
            qsa.replay(next(entries)[rows], steps, state, self.backend)
