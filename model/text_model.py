"""The whole text model over a backend's operations, and its exact arithmetic: int8 weights and K/V.

Source: design section 4; formulas as ``reference/model/text_model.py``. A run takes rows of one or several sequences;
the rows of one sequence are consecutive. In the exact arithmetic a row's bytes depend on the earlier rows of its own
sequence alone. So they are the same in chunks, windows and batches, and on every backend.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qsa.reference import exact
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import RULES, step_records
from qsa.reference.index import check_index_format
from qsa.reference.layers.functions import part
from qsa.reference.model.config import Config
from qsa.reference.model.mtp import NORMS
from qsa.reference.model.text_model import Model, check_tensors, shapes

from . import ple, qsa, weights
from . import streams as hyper
from .layer import Layer
from .mtp import DRAFT_WINDOW, Draft
from .state import Inputs, Output, State


class TextModel(ABC):
    """A text model over a backend's operations. A subclass says how its arithmetic stores weights and which K/V formats
    it supports.

    config        ``reference.Config``; head_dim must be a multiple of 64, the indexer's dim of 32
    tensors       name -> array of any float dtype or QuantisedLinear; the names are those of
                  ``reference.model.text_model.shapes``
    rule          selection rule, ``blocks`` or ``cells``
    draft_norm    ``whole`` or ``streams``, see ``reference/model/mtp.py``
    draft_window  number of latest cells that the draft layer attends to
    backend       the five operations and ``layers``

    ``stored``: the tensors as the arithmetic stores them. ``draft``: the draft layer (:class:`~qsa.model.Draft`), or
    None. ``batch_windows``: set it to True to select and attend once for all sequences of a run.

    When the backend has ``to_device``, weights, states and the arrays that a run returns are on its device; ids, their
    n-grams and step records are made on the host.

    Raises ValueError when a tensor is missing, extra, misshapen or not finite, when a stored hash constant is not the
    derived one, on an unknown rule or norm, and on sizes outside the arithmetic.
    """

    arithmetic: str = ""
    """Name of the arithmetic; set by the subclass."""
    kv_formats: tuple[str, ...] = ()
    """K/V formats that the arithmetic supports; set by the subclass."""

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, Any],
        rule: str = "blocks",
        draft_norm: str = "whole",
        draft_window: int = DRAFT_WINDOW,
        *,
        backend: Any,
    ) -> None:
        for name, value, allowed in (("rule", rule, RULES), ("draft_norm", draft_norm, NORMS)):
            if value not in allowed:
                raise ValueError(f"{name} = {value!r}: allowed are {', '.join(allowed)}")
        if config.head_dim % 64 or config.indexer_head_dim % 32:
            sizes = f"head_dim = {config.head_dim}, indexer_head_dim = {config.indexer_head_dim}"
            raise ValueError(f"{sizes}: the {self.arithmetic} arithmetic needs multiples of 64 and 32")
        has_draft = any(name.startswith("mtp.") for name in tensors)
        check_tensors(tensors, shapes(config, has_draft))
        self.config, self.geometry, self.rule, self.backend = config, config.geometry, rule, backend
        self.draft_norm = draft_norm
        self.stored = self.store(tensors)
        self.to_device = getattr(backend, "to_device", _unchanged)
        forms = weights.placed(weights.runtime_tensors(self.stored), self.to_device)
        self.batch_windows = False
        self.embedding = backend.layers.load_table(forms["model.embed_tokens.weight"])
        self.head = backend.layers.load_linear(forms["lm_head.weight"])
        self.mixer = hyper.load(part(forms, "model.hyper_connection_mixer."), config, backend.layers)
        self.layers = [
            Layer(config, layer, part(forms, f"model.layers.{layer}."), backend)
            for layer in range(config.num_hidden_layers)
        ]
        self.draft = Draft(self, part(forms, "mtp."), draft_norm, draft_window) if has_draft else None

    @property
    def draft_layer(self) -> Draft:
        """The draft layer. Raises ValueError when the model has none."""
        if self.draft is None:
            raise ValueError("draft: the model has no draft layer")
        return self.draft

    @classmethod
    def from_model(cls, model: Model, **options: Any) -> "TextModel":
        """The model of the weights of a float64 ``reference.Model``; ``options`` are those of the constructor."""
        return cls(model.config, model.tensors, **{"rule": model.rule} | options)

    @staticmethod
    @abstractmethod
    def store(tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors (name -> array) as this arithmetic stores them. Raises ValueError that names a tensor it cannot
        store."""

    def dequantised(self) -> Model:
        """The float64 ``reference.Model`` of exactly the weights that are multiplied here."""
        tensors = weights.dequantise_tensors(self.stored)
        return Model(self.config, tensors, self.rule, self.draft_norm)

    def init_state(
        self, capacity: int, page_size: int = 4, kv_format: str = "int8", index_format: str = "fp32"
    ) -> State:
        """The initial state of a sequence of at most ``capacity`` tokens, in pages of ``page_size`` cells, with indexer
        keys of the format ``index_format``.

        Raises ValueError on a K/V format that the arithmetic does not support, and on an unknown index format.
        """
        check_index_format("index_format", index_format)
        if kv_format not in self.kv_formats:
            allowed = ", ".join(self.kv_formats)
            raise ValueError(f"kv_format = {kv_format!r}: the {self.arithmetic} arithmetic takes {allowed}")
        sizes = capacity, page_size, kv_format, index_format
        states = [layer.init_state(self.to_device, *sizes) for layer in self.layers]
        return State(0, [attention for attention, _ in states], [ple_state for _, ple_state in states])

    def check_ids(self, ids: Any) -> np.ndarray:
        """``ids`` as int64 [n]. Raises ValueError unless they are a non-empty row of integers in the vocabulary."""
        return Model.check_ids(self, ids)  # type: ignore[arg-type]

    def logits(self, x: Any) -> Any:
        """Logits float32 [n, vocab_size] of output rows ``x`` [n, hidden]."""
        return self.backend.layers.linear(x, self.head)

    def forward(self, ids: Any, state: State) -> tuple[Any, Output]:
        """Continue one sequence by ``ids`` [n]; advances ``state``.

        Returns logits [n, vocab_size] float32 and the :class:`Output`. Raises ValueError as :meth:`run`.
        """
        output = self.run([ids], [state])
        return self.logits(output.x), output

    def run(self, ids: Sequence[Any], states: Sequence[State], journal: list | None = None) -> Output:
        """Continue several sequences; advances the states.

        ids      for every sequence its next token ids
        states   for every sequence its state
        journal  None, or an empty list that receives what :meth:`replay` needs

        Returns the :class:`Output` of all rows, sequence after sequence. Raises ValueError, and changes nothing, on bad
        ids, on a state given twice, and on rows beyond a state's capacity. Raises ValueError also when K or V has
        values that no scale can represent; the states are then advanced in part.
        """
        inputs = self.inputs(ids, states)
        output = self.compute(inputs.placed(self.to_device), states, journal)
        if journal is not None:
            journal.append(inputs.ids)
        for span, state in zip(inputs.rows.spans, states, strict=True):
            state.advance(inputs.ids[span])
        return output

    def inputs(self, ids: Sequence[Any], states: Sequence[State]) -> Inputs:
        """The :class:`Inputs` of a run, on the host. Arguments and errors are those of :meth:`run`; the states do not
        change."""
        if len(ids) != len(states) or len({id(state) for state in states}) != len(states):
            raise ValueError(f"ids, states: {len(ids)} and {len(states)}: one row of ids for every state, each its own")
        sequences = [self.check_ids(tokens) for tokens in ids]
        for tokens, state in zip(sequences, states, strict=True):
            capacity = min((s.kv.capacity for s in state.attention if isinstance(s, qsa.State)), default=None)
            if capacity is not None and state.n + len(tokens) > capacity:
                raise ValueError(f"ids: {state.n} + {len(tokens)} tokens: the state holds {capacity}")
        counts = [len(tokens) for tokens in sequences]
        rows = qsa.rows_of([state.n for state in states], counts, self.geometry, self.rule)
        all_ids = sequences[0] if len(sequences) == 1 else np.concatenate(sequences)
        ngrams = {
            index: ple.table_rows(all_ids, _ple_spans(rows.spans, states, index), self.config, layer.ple_index)
            for index, layer in enumerate(self.layers)
            if layer.ple
        }
        return Inputs(all_ids, ngrams, rows)

    def prepare_inputs(self, states: Sequence[State], count: int) -> None:
        """Make what :meth:`inputs` will want for at most ``count`` further rows of each state and can make before their
        ids are known."""
        for state in states:
            qsa.keep_rows(state.n, count, self.geometry, self.rule)

    def compute(self, inputs: Inputs, states: Sequence[State], journal: list | None = None) -> Output:
        """The part of :meth:`run` that runs on the device, where the arrays of ``inputs`` are.

        It advances the states except for what :meth:`State.advance` does. A ``journal`` receives the layers' entries.
        """
        embedded = self.backend.layers.embed(inputs.ids, self.embedding)
        streams = np.repeat(embedded[:, None], self.config.hc_count, axis=1)
        for index, layer in enumerate(self.layers):
            attention, ple_states = [s.attention[index] for s in states], [s.ple[index] for s in states]
            options = self.rule, self.batch_windows, journal
            streams = layer.forward(streams, inputs.ngrams.get(index), inputs.rows, attention, ple_states, *options)
        return Output(hyper.mix(streams, self.mixer, self.config, self.backend.layers)[0], streams)

    def replay(self, journal: list, rows: slice, state: State) -> None:
        """Advance ``state``, restored to its snapshot before a :meth:`run`, by its first rows in that run.

        journal  the list that the run filled: the layers' entries, then the ids
        rows     slice of the run's rows: the first rows of the sequence, at least one

        The bytes are those of running these rows alone. Only recurrences and indexer keys are computed again.
        """
        count = rows.stop - rows.start
        steps = step_records(range(state.n, state.n + count), self.rule, self.geometry)
        self.recompute(journal, rows, self.to_device(steps), state)
        state.advance(journal[-1][rows])

    def recompute(self, journal: list, rows: slice, steps: Any, state: State) -> None:
        """The part of :meth:`replay` that runs on the device, where ``steps``, the rows' step records, are."""
        entries = iter(journal)
        for layer, attention, ple_state in zip(self.layers, state.attention, state.ple, strict=True):
            layer.replay(entries, rows, steps, attention, ple_state)

    def recompute_kept(
        self, journal: list, spans: Sequence[slice], bounds: Any, steps: Any, states: Sequence[State]
    ) -> None:
        """:meth:`recompute` of several sequences at once, each restored, by the first of its rows.

        spans   slice of every sequence's rows in the run
        bounds  the backend's ``RowBounds``: which of them are kept, read on the device
        steps   [n, 4] int32, step records of all rows on the device, with position -1 where a row is not kept
        """
        entries = iter(journal)
        for index, layer in enumerate(self.layers):
            attention, ple_states = [s.attention[index] for s in states], [s.ple[index] for s in states]
            layer.replay_kept(entries, spans, bounds, steps, attention, ple_states)


def _ple_spans(spans: Sequence[slice], states: Sequence[State], index: int) -> list[tuple[slice, Any]]:
    """(rows, state of the PLE of layer ``index``) of every sequence."""
    return [(span, state.ple[index]) for span, state in zip(spans, states, strict=True)]


def _unchanged(x: Any) -> Any:
    """The transfer to the device of a backend whose arrays are on the host."""
    return x


class ExactModel(TextModel):
    """A text model in the exact arithmetic. Weights are quantised, unless they are quantised already, and K/V have
    integer codes.

    ``backend``: ``qsa.reference.exact``, ``qsa.kernels.cpu`` or ``qsa.kernels.cuda``. Arguments and errors are those of
    :class:`TextModel`.
    """

    arithmetic, kv_formats = "exact", EXACT_FORMATS
    store = staticmethod(weights.quantise_tensors)

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, Any],
        rule: str = "blocks",
        draft_norm: str = "whole",
        draft_window: int = DRAFT_WINDOW,
        backend: Any = exact,
    ) -> None:
        super().__init__(config, tensors, rule, draft_norm, draft_window, backend=backend)
