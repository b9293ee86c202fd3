"""The draft layer (MTP) over a backend's operations; formulas as ``reference/model/mtp.py``, with dense attention.

A row attends to its last ``window`` cells, whatever the budget; the draft layer's own indexer is not used. The float64
layer selects cells; up to the budget it attends to the same ones.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.reference.layers.functions import part

from . import moe, qsa
from . import streams as hyper

if TYPE_CHECKING:
    from .text_model import TextModel

DRAFT_WINDOW = 32768
"""Default for the number of cells that a row of the draft layer attends to at most."""


class Draft:
    """The draft layer of ``model``.

    tensors  in runtime form, named without the prefix ``mtp.``
    norm     ``whole`` or ``streams``, as in ``reference/model/mtp.py``
    window   number of latest cells that a row attends to, at least 1; ValueError otherwise
    """

    def __init__(self, model: "TextModel", tensors: Mapping[str, Any], norm: str, window: int = DRAFT_WINDOW) -> None:
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

    def init_state(self, capacity: int, page_size: int = 4, kv_format: str = "int8") -> qsa.State:
        """The initial state of a sequence: a qsa.State without an index."""
        model = self.model
        sizes = capacity, page_size, kv_format
        return qsa.init_state(self.attention, model.geometry, model.to_device, *sizes, indexer=False)

    def forward(
        self,
        streams: Any,
        next_ids: Any,
        starts: Sequence[int],
        counts: Sequence[int],
        states: Sequence[qsa.State],
        windows: Sequence[int] | None = None,
    ) -> tuple[Any, Any]:
        """Propose tokens for several sequences; the rows of one sequence are consecutive.

        streams   [n, hc_count, hidden] float32, the final residual streams of the tokens at the rows' positions
        next_ids  [n] int64, the token after each of them
        starts    first position of every sequence's rows; counts: number of its rows, at least 1
        states    qsa.State of every sequence; its cells from ``start`` on are overwritten
        windows   number of latest cells that the rows of every sequence attend to; by default ``window``

        Returns ``x`` [n, hidden] float32, of which ``model.logits`` makes the logits of the token after next_ids, and
        the layer's own streams [n, hc_count, hidden] for the next step. Raises ValueError on bad ids or shapes.
        """
        ids, rows = self.inputs(streams.shape, next_ids, starts, counts, windows)
        dense_width = int(rows.steps[:, 3].max())
        to_device = self.model.to_device
        return self.compute(streams, to_device(ids), rows.placed(to_device), states, dense_width)

    def inputs(
        self,
        shape: tuple[int, ...],
        next_ids: Any,
        starts: Sequence[int],
        counts: Sequence[int],
        windows: Sequence[int] | None = None,
    ) -> tuple[np.ndarray, qsa.Rows]:
        """The inputs on the host of a call of :meth:`forward` whose streams have ``shape``: checked ids, and qsa.Rows
        whose widths are limited by ``windows``."""
        model, n = self.model, sum(counts)
        ids, needed = model.check_ids(next_ids), (n, model.config.hc_count, model.config.hidden_size)
        if len(ids) != n or shape != needed:
            raise ValueError(f"streams: shape {shape}, {len(ids)} ids: {list(needed)} and {n} are required")
        rows = qsa.rows_of(starts, counts, model.geometry, model.rule)
        window = self.window if windows is None else np.repeat(np.asarray(windows, np.int32), counts)
        rows.steps[:, 3] = np.minimum(rows.steps[:, 1], window)
        return ids, rows

    def compute(
        self, streams: Any, ids: Any, rows: qsa.Rows, states: Sequence[qsa.State], dense_width: int
    ) -> tuple[Any, Any]:
        """The part of :meth:`forward` that runs on the device, where ``ids`` and the arrays of ``rows`` are;
        ``dense_width``: upper limit of the widths in the step records."""
        model = self.model
        config, layers, eps, n = model.config, model.backend.layers, model.config.rms_norm_eps, len(streams)
        embedding = layers.rms_norm(layers.embed(ids, model.embedding), self.embedding_norm, eps)
        embedding = layers.linear(embedding, self.fc_embedding)
        normed = streams.reshape(n, -1) if self.whole else streams
        normed = layers.rms_norm(normed, self.hidden_norm, eps).reshape(-1, config.hidden_size)
        hidden = layers.linear(normed, self.fc_hidden).reshape(streams.shape)
        streams = layers.add(hidden, embedding[:, None])

        def attend(x: np.ndarray) -> np.ndarray:
            options: dict[str, Any] = {"dense_width": dense_width, "batched": model.batch_windows}
            return qsa.forward(x, self.attention, model.geometry, rows, states, model.backend, **options)

        streams = hyper.through(streams, self.attention_mix, config, layers, attend)
        streams = hyper.through(
            streams, self.mlp_mix, config, layers, lambda x: moe.forward(x, self.mlp, config, layers)
        )
        x, _ = hyper.mix(streams, self.mixer, config, layers)
        return x, streams
