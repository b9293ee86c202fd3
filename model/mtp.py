"""The draft layer (MTP) in the exact arithmetic; formulas as ``reference/model/mtp.py``, attention dense over a window.

A row attends to its last ``window`` cells, whatever the budget: the draft layer's own indexer is not used. Up to the
budget the float64 layer, which selects, sees the same cells.
"""

import numpy as np

from qsa.reference.layers.functions import part

from . import moe, qsa
from . import streams as hyper

WINDOW = 32768
"""Cells that a row of the draft layer attends to at most, unless told otherwise."""


class Draft:
    """The draft layer of an exact ``model``. ``tensors`` are in runtime form, without the ``mtp.`` before every name.

    ``norm``: ``whole`` or ``streams``, as in ``reference/model/mtp.py``; ``window``: cells that a row attends to, 1 or
    more.
    """

    def __init__(self, model, tensors, norm, window=WINDOW):
        config, layers = model.config, model.backend.layers
        if window < 1:
            raise ValueError(f"window = {window}: must be at least 1")
        self.model, self.window = model, window
        hidden = tensors["pre_fc_norm_hidden.weight"]
        self.whole = norm == "whole"
        self.hidden_norm = hidden if self.whole else hidden.reshape(config.hc_count, config.hidden_size)
        self.embedding_norm = tensors["pre_fc_norm_embedding.weight"]
        self.fc_embedding, self.fc_hidden = (
            layers.load_linear(tensors[f"fc_{name}.weight"]) for name in ("embedding", "hidden")
        )
        self.attention = qsa.load(part(tensors, "layers.0.self_attn."), model.geometry, layers)
        self.attention_mix = hyper.load(part(tensors, "layers.0.attn_hyper_connection."), config, layers)
        self.mlp_mix = hyper.load(part(tensors, "layers.0.mlp_hyper_connection."), config, layers)
        self.mlp = moe.load(part(tensors, "layers.0.mlp."), layers)
        self.mixer = hyper.load(part(tensors, "hyper_connection_mixer."), config, layers)

    def init_state(self, capacity, page_size=4, kv_format="int8"):
        """The state of a sequence that has not begun: a qsa.State without an index."""
        model = self.model
        options = capacity, page_size, kv_format
        return qsa.init_state(self.attention, model.geometry, model.to_device, *options, indexer=False)

    def forward(self, streams, next_ids, starts, counts, states, windows=None):
        """Propose tokens for several sequences; the rows of one sequence stand together.

        streams   [n, hc_count, hidden] float32, the final residual streams of the tokens at the rows' positions
        next_ids  [n] int64, the token after each of them
        starts    first position of every sequence's rows; counts: how many rows it has (at least 1)
        states    qsa.State of every sequence; cells from ``start`` on are overwritten
        windows   cells that the rows of every sequence attend to at most; by default ``window`` for all

        Returns ``x`` [n, hidden] float32, of which ``model.logits`` makes the logits of the token after next_ids, and
        the layer's own streams [n, hc_count, hidden] for a further step. Raises ValueError on bad ids or shapes.
        """
        ids, rows = self.inputs(streams.shape, next_ids, starts, counts, windows)
        widest = int(rows.host[:, 3].max())
        to_device = self.model.to_device
        return self.compute(streams, to_device(ids), rows.placed(to_device), states, widest)

    def inputs(self, shape, next_ids, starts, counts, windows=None):
        """The checked ids and the qsa.Rows, whose widths are those of the windows, of a call of :meth:`forward` with
        streams of ``shape``; on the host."""
        model, n = self.model, sum(counts)
        ids, needed = model.check_ids(next_ids), (n, model.config.hc_count, model.config.hidden_size)
        if len(ids) != n or shape != needed:
            raise ValueError(f"streams: shape {shape}, {len(ids)} ids: {list(needed)} and {n} are required")
        rows = qsa.rows_of(starts, counts, model.geometry, model.rule)
        window = self.window if windows is None else np.repeat(np.asarray(windows, np.int32), counts)
        rows.steps[:, 3] = np.minimum(rows.steps[:, 1], window)
        return ids, rows

    def compute(self, streams, ids, rows, states, widest):
        """What :meth:`forward` does on the device, where ``ids`` and ``rows`` lie; ``widest``: the largest width that a
        row's step may have."""
        model = self.model
        config, layers, eps, n = model.config, model.backend.layers, model.config.rms_norm_eps, len(streams)
        embedding = layers.rms_norm(layers.embed(ids, model.embedding), self.embedding_norm, eps)
        embedding = layers.linear(embedding, self.fc_embedding)
        normed = streams.reshape(n, -1) if self.whole else streams
        normed = layers.rms_norm(normed, self.hidden_norm, eps).reshape(-1, config.hidden_size)
        hidden = layers.linear(normed, self.fc_hidden).reshape(streams.shape)
        streams = layers.add(hidden, embedding[:, None])

        def attend(x):
            options = {"widest": widest, "together": model.batch_windows}
            return qsa.forward(x, self.attention, model.geometry, rows, states, model.backend, **options)

        streams = hyper.through(streams, self.attention_mix, config, layers, attend)
        streams = hyper.through(
            streams, self.mlp_mix, config, layers, lambda x: moe.forward(x, self.mlp, config, layers)
        )
        x, _ = hyper.mix(streams, self.mixer, config, layers)
        return x, streams
