"""The whole text model in the exact arithmetic: int8 weights and K/V, the same bytes in chunks, windows and batches.

Source: design section 4; formulas as ``reference/model/text_model.py``. A call takes rows of one sequence or of
several, those of one sequence standing together: a row's bytes depend on its own sequence's earlier rows alone, so no
cut of a prompt into chunks, no window and no batch changes a byte. Which backend computes changes nothing either.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qsa.reference import exact
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import RULES, step_records
from qsa.reference.layers.functions import part
from qsa.reference.model.mtp import NORMS
from qsa.reference.model.text_model import Model, check_tensors, shapes

from . import ple, qsa, weights
from . import streams as hyper
from .layer import Layer
from .mtp import WINDOW, Draft


@dataclass
class State:
    """What one sequence leaves behind: ``n``, the tokens so far; per layer the state of its attention
    (deltanet.State or qsa.State) and of its PLE (ple.State, None where there is none)."""

    n: int
    attention: list
    ple: list

    def advance(self, ids):
        """Advance what is kept on the host by the tokens ``ids`` [n] int64."""
        for ple_state in self.ple:
            if ple_state is not None:
                ple_state.remember(ids)
        self.n += len(ids)

    def overwritten(self):
        """The arrays that a row changes for good: recurrent memories, convolutions' inputs, PLE's ids, the indexer's
        tails. What else a row writes (K/V, pooled keys) is written again by the row that takes its place."""
        for attention, ple_state in zip(self.attention, self.ple, strict=True):
            if isinstance(attention, qsa.State):
                yield attention.index.tail
            else:
                yield from (attention.memory, attention.past)
            if ple_state is not None:
                yield from (ple_state.tokens, ple_state.past)

    def snapshot(self):
        """What :meth:`restore` needs to take back every row run from now on."""
        return self.n, [array.copy() for array in self.overwritten()]

    def restore(self, snapshot):
        """Back to where ``snapshot`` was taken."""
        self.n = snapshot[0]
        for array, earlier in zip(self.overwritten(), snapshot[1], strict=True):
            array[...] = earlier


class Inputs(NamedTuple):
    """What a run computes from: ``ids`` [n] int64 of all sequences; ``ngrams``, a layer -> the rows [n, heads] int64 of
    its PLE's table; ``rows``. Made on the host by :meth:`TextModel.inputs`."""

    ids: np.ndarray
    ngrams: dict
    rows: qsa.Rows

    def placed(self, to_device):
        """The same with all arrays moved by ``to_device``."""
        ngrams = {layer: to_device(rows) for layer, rows in self.ngrams.items()}
        return Inputs(to_device(self.ids), ngrams, self.rows.placed(to_device))


class Output(NamedTuple):
    """``x`` [n, hidden], the mixed rows that the head reads, and ``streams`` [n, hc_count, hidden], the final residual
    streams, which the draft layer reads. float32."""

    x: np.ndarray
    streams: np.ndarray


class TextModel(ABC):
    """A text model over a backend's operations; an arithmetic says how it stores weights and which K/V it takes.

    config       ``reference.Config``; head_dim must be a multiple of 64, the indexer's dim of 32
    tensors      name -> array of any float dtype or QuantisedLinear; names of ``model.shapes``
    rule         selection rule, ``blocks`` or ``cells``
    draft_norm   ``whole`` or ``streams``, see ``reference/model/mtp.py``
    draft_window cells the draft layer attends to
    backend      the five operations and ``layers``

    ``stored`` are the tensors as the arithmetic keeps them, ``draft`` the draft layer (mtp.Draft) or None;
    ``batch_windows``, to be set: whether a run of several sequences selects and attends once for all of them.

    Where the backend has ``to_device``, weights and states lie on its device, and so do the arrays that a run returns;
    ids, their n-grams and step records are made on the host.
    Raises ValueError when a tensor is missing, extra, misshapen or not finite, when a stored hash constant is not the
    derived one, on an unknown rule or norm, or on sizes outside the arithmetic.
    """

    arithmetic, kv_formats = None, ()
    """Name of the arithmetic, and the K/V formats that it takes: a subclass's own."""

    def __init__(self, config, tensors, rule="blocks", draft_norm="whole", draft_window=WINDOW, *, backend):
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
        self.to_device = getattr(backend, "to_device", _stays)
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

    @classmethod
    def from_model(cls, model, **options):
        """From a float64 ``reference.Model``, whose weights are quantised; ``options`` go to the constructor."""
        return cls(model.config, model.tensors, **{"rule": model.rule} | options)

    @staticmethod
    @abstractmethod
    def store(tensors):
        """The tensors (name -> array) as this arithmetic keeps them. Raises ValueError naming one that it cannot."""

    def dequantised(self):
        """The float64 ``reference.Model`` of the very weights that are multiplied here."""
        tensors = weights.dequantise_tensors(self.stored)
        return Model(self.config, tensors, self.rule, self.draft_norm)

    def init_state(self, capacity, page_size=4, kv_format="int8"):
        """The state of a sequence that has not begun, with room for ``capacity`` tokens.

        Raises ValueError on a K/V format that the arithmetic does not take.
        """
        if kv_format not in self.kv_formats:
            allowed = ", ".join(self.kv_formats)
            raise ValueError(f"kv_format = {kv_format!r}: the {self.arithmetic} arithmetic takes {allowed}")
        states = [layer.init_state(self.to_device, capacity, page_size, kv_format) for layer in self.layers]
        return State(0, [attention for attention, _ in states], [ple_state for _, ple_state in states])

    check_ids = Model.check_ids

    def logits(self, x):
        """float32 [n, vocab_size] of mixed rows ``x`` [n, hidden]."""
        return self.backend.layers.linear(x, self.head)

    def forward(self, ids, state):
        """Continue one sequence by ``ids`` [n]. Returns logits [n, vocab_size] float32 and :class:`Output`; advances
        ``state``. Raises ValueError as :meth:`run`."""
        output = self.run([ids], [state])
        return self.logits(output.x), output

    def run(self, ids, states, journal=None):
        """Continue several sequences, each of ``states`` by its entry of ``ids`` (a row of integers).

        Returns :class:`Output` of all rows, sequence after sequence; advances the states. An empty list given as
        ``journal`` gets what :meth:`replay` needs.
        Raises ValueError on bad ids, a state given twice or rows beyond a state's capacity, and changes nothing then;
        also when K or V has values that no scale can hold, with the states advanced in part.
        """
        inputs = self.inputs(ids, states)
        output = self.compute(inputs.placed(self.to_device), states, journal)
        if journal is not None:
            journal.append(inputs.ids)
        for mine, state in zip(inputs.rows.spans, states, strict=True):
            state.advance(inputs.ids[mine])
        return output

    def inputs(self, ids, states):
        """:class:`Inputs` of a run, on the host; the states stay as they are. Arguments and errors as :meth:`run`."""
        if len(ids) != len(states) or len({id(state) for state in states}) != len(states):
            raise ValueError(f"ids, states: {len(ids)} and {len(states)}: one row of ids for every state, each its own")
        ids = [self.check_ids(one) for one in ids]
        for one, state in zip(ids, states, strict=True):
            room = min((s.kv.capacity for s in state.attention if isinstance(s, qsa.State)), default=None)
            if room is not None and state.n + len(one) > room:
                raise ValueError(f"ids: {state.n} + {len(one)} tokens: the state holds {room}")
        counts = [len(one) for one in ids]
        rows = qsa.rows_of([state.n for state in states], counts, self.geometry, self.rule)
        ids = np.concatenate(ids)
        ngrams = {
            index: ple.table_rows(
                ids, list(zip(rows.spans, (s.ple[index] for s in states), strict=True)), self.config, layer.ple_index
            )
            for index, layer in enumerate(self.layers)
            if layer.ple
        }
        return Inputs(ids, ngrams, rows)

    def compute(self, inputs, states, journal=None):
        """What :meth:`run` does on the device: :class:`Output` of ``inputs``, which lie there. Of the states it
        advances all but what :meth:`State.advance` does; ``journal`` gets the layers' entries."""
        embedded = self.backend.layers.embed(inputs.ids, self.embedding)
        streams = np.repeat(embedded[:, None], self.config.hc_count, axis=1)
        for index, layer in enumerate(self.layers):
            own = [s.attention[index] for s in states], [s.ple[index] for s in states]
            options = self.rule, self.batch_windows, journal
            streams = layer.forward(streams, inputs.ngrams.get(index), inputs.rows, *own, *options)
        return Output(hyper.mix(streams, self.mixer, self.config, self.backend.layers)[0], streams)

    def replay(self, journal, rows, state):
        """Advance ``state``, restored to where it was before a :meth:`run`, by the first rows of its sequence there.

        journal  the list that the run filled: what every layer stored, then the ids
        rows     slice of the run's rows: the sequence's first ones, one or more

        The bytes are those of running these rows alone; nothing but recurrences and indexer keys is computed again.
        """
        count = rows.stop - rows.start
        steps = step_records(range(state.n, state.n + count), self.rule, self.geometry)
        self.recompute(journal, rows, self.to_device(steps), state)
        state.advance(journal[-1][rows])

    def recompute(self, journal, rows, steps, state):
        """What :meth:`replay` does on the device; ``steps``: the rows' step records, there."""
        entries = iter(journal)
        for layer, attention, ple_state in zip(self.layers, state.attention, state.ple, strict=True):
            layer.replay(entries, rows, steps, attention, ple_state)


def _stays(x):
    """The placing of a backend whose arrays are the host's."""
    return x


class ExactModel(TextModel):
    """A text model in the exact arithmetic: weights are quantised here unless they come so; K/V have integer codes.

    ``backend``: this package, or ``qsa.kernels.cpu``. Arguments and errors as :class:`TextModel`.
    """

    arithmetic, kv_formats = "exact", EXACT_FORMATS
    store = staticmethod(weights.quantise_tensors)

    def __init__(self, config, tensors, rule="blocks", draft_norm="whole", draft_window=WINDOW, backend=exact):
        super().__init__(config, tensors, rule, draft_norm, draft_window, backend=backend)
