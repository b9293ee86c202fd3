"""A tiny random model, its texts token by token, and what the checks of the engine run beside it.

Truth comes from the model alone: one row at a time, in a state of its own, with the draws of ``reference/exact``. No
line of ``engine/`` is in it. It is made once, by the run of the unchanged code, and kept.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from qsa.engine.draft import CommittedRows, DraftRequest, Proposal
from qsa.engine.runner import Runner
from qsa.kernels.cpu import sampler as host_sampler
from qsa.model import ExactModel, Output, State, TextModel, qsa
from qsa.reference import exact
from qsa.reference.exact import sampler
from qsa.reference.kv import read_kv
from qsa.reference.model.presets import TINY_CONFIG
from qsa.reference.model.random_model import random_model
from qsa.reference.sampler import GREEDY, Sampling

VOCAB = 61

END = 3
"""The token that ends a text: n-grams do not reach behind it."""

POISON = VOCAB - 1
"""The token whose embedding is NaN in :func:`poisoned_model`; no prompt and no stop id has it."""

_CHANGED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "eos_token_id": END,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "indexer_n_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 8,
    "rope_theta": 1e7,
    "layer_types": ("linear_attention", "indexed_attention"),
    "ple_layer_ids": (1,),
    "ple_embed_dim": 32,
    "hc_count": 2,
}
"""Fields of the tiny configuration that are smaller still, or larger where int8 needs whole groups: a layer of either
kind, PLE, and a selection that leaves cells out from 13 on."""

CONFIG = type(TINY_CONFIG)(
    **{name: _CHANGED.get(name, getattr(TINY_CONFIG, name)) for name in TINY_CONFIG.__dataclass_fields__}
)


@cache
def model(seed: int = 3, draft_window: int = 16, rule: str = "blocks") -> TextModel:
    """The model on the exact NumPy backend, with a draft layer."""
    return ExactModel.from_model(random_model(CONFIG, seed, draft=True), draft_window=draft_window, rule=rule)


@cache
def other_experts() -> TextModel:
    """The same model but for the last expert of its last layer: an identity of the weights' beginnings misses that."""
    tensors = dict(random_model(CONFIG, 3, draft=True).tensors)
    name = next(name for name in sorted(tensors, reverse=True) if "model.layers.1.mlp.experts" in name)
    changed = tensors[name].copy()
    changed[-1] = -changed[-1]
    return ExactModel(CONFIG, tensors | {name: changed}, draft_window=16)


@cache
def poisoned_model() -> TextModel:
    """The model, but the embedding of :data:`POISON` is NaN: its K and V have no scale, so ``append_kv`` refuses them
    when the layers before it have already advanced."""

    def embed(ids: Any, table: Any) -> np.ndarray:
        out = exact.layers.embed(ids, table)
        if len(table.codes) == VOCAB:
            out[np.asarray(ids) == POISON] = np.nan
        return out

    return _over(layers=_replaced(exact.layers, embed=embed))


def _replaced(source: Any, **names: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(source, name) for name in dir(source)} | names)


def _over(**names: Any) -> TextModel:
    """The model over the exact backend with some names replaced or added."""
    operations = {name: getattr(exact, name) for name in ("append_index", "append_kv", "attend", "block_scores")}
    operations |= {"select": exact.select, "layers": exact.layers}
    backend = SimpleNamespace(**operations | names)
    return ExactModel.from_model(random_model(CONFIG, 3, draft=True), draft_window=16, backend=backend)


class HostProgram:
    """What a graph runner calls a program, on the host: it carries out what it records, over the same buffers."""

    def __init__(self, record: Callable[[], Any], stream: Any, clock: Any = None) -> None:
        self._record, self.result, self.generation = record, None, 0

    def wait(self) -> None:
        """Nothing: a call is over when it returns."""

    def __call__(self) -> Any:
        """Carry it out."""
        self.result, self.generation = self._record(), self.generation + 1
        return self.result


class HostStaging:
    """The arrays of a program on the host: filled first, moved by the program."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._given = {name: array.copy() for name, array in arrays.items()}
        self.arrays = {name: np.zeros_like(array) for name, array in arrays.items()}

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Write what the next call takes."""
        for name, array in arrays.items():
            self._given[name][...] = array

    def move(self) -> None:
        """Make it what the program reads."""
        for name, array in self._given.items():
            self.arrays[name][...] = array


class RowSampler:
    """A sampler as a device has it, which draws on the host. It refuses to draw a row that nobody asked for."""

    @staticmethod
    def takes(options: np.ndarray) -> bool:
        """Every list fits."""
        return True

    @staticmethod
    def sample(logits: np.ndarray, **given: Any) -> np.ndarray:
        """Tokens int32 [rows], error codes for rows without a position."""
        tokens = given.pop("tokens", None)
        drawn = host_sampler.sample(logits, **given)
        if tokens is None:
            return drawn
        tokens[...] = drawn
        return tokens


def _pinned(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    array = np.zeros(shape, dtype)
    return array, array


@cache
def program_model() -> TextModel:
    """The model over a backend with programs and a sampler of its own, as a device has them, on the host."""
    return _over(
        Program=HostProgram,
        Staging=HostStaging,
        pinned=_pinned,
        program_stream=lambda: None,
        row_sampler=RowSampler(),
    )


def prompt(count: int, seed: int) -> list[int]:
    """``count`` ids; a mark of the sequence's end is among longer ones, since it cuts n-grams."""
    ids = np.random.default_rng(seed).integers(4, POISON, count).tolist()
    if count > 8:
        ids[count // 2] = END
    return ids


class Truth(NamedTuple):
    """A text token by token. ``tokens``: what follows the prompt. ``logits`` [rows, vocab] and ``streams``: those of
    every cell. ``state`` after all of them but the last token."""

    tokens: list[int]
    logits: np.ndarray
    streams: np.ndarray
    state: State


@cache
def decoded(ids: tuple[int, ...], count: int, options: Sampling = GREEDY, seed: int = 0) -> Truth:
    """The :class:`Truth` of ``count`` tokens after the prompt ``ids``."""
    own, sequence = model(), list(ids)
    state = own.init_state(len(ids) + count)
    logits, streams = [], []
    for at in range(len(ids) + count - 1):
        row, output = own.forward([sequence[at]], state)
        logits.append(row[0].copy())
        streams.append(output.streams[0].copy())
        if at >= len(ids) - 1:
            sequence.append(int(sampler.sample(row[0], sequence, options, seed, at)))
    return Truth(sequence[len(ids) :], np.array(logits), np.array(streams), state)


def state_arrays(state: State, geometry: Any) -> dict[str, np.ndarray]:
    """Name -> copy of every array of a model's state; of K/V and pooled keys what the sequence has written."""
    found: dict[str, np.ndarray] = {"n": np.array([state.n])}
    for layer, attention in enumerate(state.attention):
        if isinstance(attention, qsa.State):
            cells = read_kv(attention.kv, np.arange(state.n))
            found |= {f"layer {layer} {name}": getattr(cells, name) for name in cells._fields}
            found[f"layer {layer} pooled"] = attention.index.pooled[: state.n // geometry.ratio].copy()
            found[f"layer {layer} dead"] = attention.index.dead.copy()
            found[f"layer {layer} tail"] = attention.index.tail.copy()
        else:
            found[f"layer {layer} memory"], found[f"layer {layer} past"] = (
                attention.memory.copy(),
                attention.past.copy(),
            )
    for layer, own in enumerate(state.ple):
        if own is not None:
            found[f"PLE {layer} tokens"], found[f"PLE {layer} past"] = own.tokens.copy(), own.past.copy()
    return found


@cache
def draft_truth(ids: tuple[int, ...], count: int, drafts: int, window: int) -> tuple[np.ndarray, list[int]]:
    """What the draft layer has after ``count`` greedy tokens of ``ids``, its cells appended one by one, each attending
    to the last ``window``: its logits at the last cell, and the chain of ``drafts`` tokens that follows."""
    own, truth = model(), decoded(ids, count)
    sequence = [*ids, *truth.tokens]
    layer = own.draft_layer
    state = layer.init_state(len(sequence) + drafts)
    x: Any = None
    streams: Any = None
    for at, token in enumerate(sequence[1:]):
        x, streams = layer.forward(truth.streams[at : at + 1], np.array([token]), [at], [1], [state], [window])
    first, chain = own.logits(x)[0].copy(), []
    for step in range(drafts):
        chain.append(int(own.logits(x)[0].argmax()))
        start = len(sequence) - 1 + step
        x, streams = layer.forward(streams[-1:], np.array(chain[-1:]), [start], [1], [state], [window])
    return first, chain


class Scripted:
    """A drafter that drafts the text itself, ``texts``: prompt -> tokens. Of every seven tokens those at the indices
    ``wrong`` are drafted wrong, so that windows keep one row, two and more; every ``rest``-th proposal is empty."""

    def __init__(
        self, texts: dict[tuple[int, ...], list[int]], wrong: Collection[int] = (1, 2, 5), rest: int = 5
    ) -> None:
        self.texts, self.wrong, self.rest, self.calls = texts, wrong, rest, 0
        self.committed: list[tuple[Any, int, int]] = []

    def on_commit(self, committed: list[CommittedRows]) -> None:
        """Keep which rows were committed."""
        self.committed += [(rows.request, rows.start, len(rows.next_ids)) for rows in committed]

    def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
        """A proposal for each request."""
        self.calls += 1
        return [self._proposal(each) for each in requests]

    def _proposal(self, draft_request: DraftRequest) -> Proposal:
        proposal, request = Proposal(), draft_request.request
        if self.calls % self.rest == 0:
            return proposal
        done = len(request.tokens)
        text = self.texts[tuple(request.ids)][done : done + draft_request.max_drafts]
        for index, token in enumerate(text, done):
            proposal.add((token + 1) % POISON if index % 7 in self.wrong else token)
        return proposal


class Recording(Runner):
    """A runner that keeps, for every call, the slots that it served (by the order in which they first came) and their
    rows."""

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self.calls: list[list[tuple[int, int]]] = []
        self._slots: list[Any] = []

    def run(self, ids: Sequence[Any], slots: Sequence[Any], journal: list | None = None) -> Output:
        """As :meth:`Runner.run`."""
        self._slots += [slot for slot in slots if slot not in self._slots]
        self.calls.append([(self._slots.index(slot), len(rows)) for slot, rows in zip(slots, ids, strict=True)])
        return super().run(ids, slots, journal)
