"""The golden model over the backend under test, and texts from the engine on it.

One of our own backends runs the whole model, layers included. Of any other module the model takes ``block_scores``,
``select`` and ``attend``, as far as it has them, and the rest from the CPU backend. So a kernel is held to whole texts
before there is an engine around it.

The engine, the model and the CPU kernels are imported where they are used: together they take a second, and a list of
cases needs none of them.
"""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.golden.canonical import digest
from qsa.golden.families import text
from qsa.golden.recipe import name_of
from qsa.golden.record import GoldenError, Record
from qsa.golden.store import Store
from qsa.kernels.switches import Switches, switches
from qsa.reference.geometry import Geometry
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..backend import Backend, UnsupportedError
from ..contract.domain import check_heads

if TYPE_CHECKING:
    from qsa.engine import Engine, Request, Slot
    from qsa.model.generate import Text

CAPACITY = (16 << 10) + 1024 + 8
"""Cells of a slot: the longest prompt, the longest answer, a window."""


def model(backend: Backend) -> Any:
    """The golden model (``qsa.model.TextModel``) over ``backend`` (:class:`~.backend.Backend`), in its
    arithmetic; the last two are kept. Raises UnsupportedError where the backend has no operation that a model calls."""
    return _model(backend)


@lru_cache(maxsize=2)
def _model(backend: Backend) -> Any:
    from qsa.engine.load import BACKENDS, load_model
    from qsa.kernels import cpu
    from qsa.model import ExactModel, FloatModel

    own = {operations: name for name, operations in BACKENDS.items()}
    if backend.name in own:
        return load_model(text.checked_folder(), own[backend.name], backend.arithmetic)
    config, tensors = text.tensors()
    if backend.own_storage:
        raise UnsupportedError("model: own storage: the golden model keeps K and V in our pools")
    attention = config.geometry
    check_heads("model", backend.declaration, attention.n_head, attention.n_head_kv, attention.head_dim)
    borrowed = [operation for operation in ("block_scores", "select", "attend") if backend.has(operation)]
    if not borrowed:
        raise UnsupportedError("model: the backend has none of block_scores, select, attend")
    operations = {name: getattr(cpu, name) for name in cpu.__all__}
    operations |= {name: _operation(backend, name) for name in borrowed}
    kind = ExactModel if backend.arithmetic == "exact" else FloatModel
    return kind(config, tensors, backend=SimpleNamespace(**operations))


def _operation(backend: Backend, name: str) -> Callable[..., Any]:
    """``backend``'s operation as the model calls it: with an array for the result, which may be wider."""

    def block_scores(q_idx: np.ndarray, index: Index, steps: np.ndarray, out: np.ndarray) -> None:
        out[...] = backend.block_scores(q_idx, index, steps)

    def select(scores: np.ndarray, steps: np.ndarray, ids: np.ndarray, rule: str, geometry: Geometry) -> None:
        found = backend.select(scores, steps, rule, geometry)[:, : ids.shape[1]]
        ids[:, : found.shape[1]], ids[:, found.shape[1] :] = found, -1

    def attend(
        q: np.ndarray,
        kv: PagedKV | list[PagedKV],
        ids: np.ndarray,
        steps: np.ndarray,
        slots: np.ndarray | None = None,
        out: np.ndarray | None = None,
        arithmetic: str | None = None,
    ) -> np.ndarray:
        if isinstance(kv, list) and len(kv) == 1:
            kv, slots = kv[0], None  # a module may lack the argument `slots`
        found = backend.attend(q, kv, ids, steps, slots)
        if out is None:
            return found
        out[...] = found
        return out

    operations: dict[str, Callable[..., Any]] = {"block_scores": block_scores, "select": select, "attend": attend}
    return operations[name]


@lru_cache(maxsize=2)
def _engine(backend: Backend, slots: int) -> "Engine":
    """An Engine of the golden model whose slots hold any of the seven computations. It is kept, so that captured
    programs are replayed and a slot's next text follows another one."""
    from qsa.engine import Engine

    return Engine(_model(backend), slots=slots, capacity=CAPACITY)


READ_APART = 4096
"""Tokens of a prompt from which on it is read apart: shorter ones cost little, so the engine reads all of them."""

CHUNK = 1024


class PromptReader:
    """Slots that have read the first tokens of long prompts, so that prompts with the same beginning, and cases with
    the same prompt, read it once. The engine itself reads the end of each, and the shorter prompts.

    model  a :class:`~qsa.model.TextModel`
    """

    def __init__(self, model: Any) -> None:
        from qsa.engine.programs.graph_runner import make_runner

        self.model, self._runner = model, make_runner(model)
        self._read: dict[bytes, Slot] = {}

    def prefix(self, ids: np.ndarray) -> "Slot | None":
        """The slot that has read all whole chunks of ``ids`` [n] but the last; None of a prompt that is not long."""
        from qsa.engine import Slot

        if len(ids) < READ_APART:
            return None
        wanted = ids[: (len(ids) - 1) // CHUNK * CHUNK]
        if (found := self._read.get(wanted.tobytes())) is not None:
            return found
        begun = [read for read in self._read if wanted.tobytes().startswith(read)]
        slot = self._read[max(begun, key=len)].fork() if begun else Slot(self.model, CAPACITY)
        for first in range(slot.n, len(wanted), CHUNK):
            self._runner.run([wanted[first : first + CHUNK]], [slot])
        self._read[wanted.tobytes()] = slot
        return slot


@lru_cache(maxsize=2)
def _reader(model: Any, state: Switches) -> PromptReader:
    """The :class:`PromptReader` of a model under switches in ``state``: what one kernel read says nothing of others."""
    return PromptReader(model)


def record(family: str, recipe: dict[str, Any], inputs: dict[str, np.ndarray]) -> Record:
    """The golden of a family that runs the golden model. Raises GoldenError when it is missing or damaged, or was made
    from other ``inputs`` (name -> array) or weights."""
    name = name_of(family, recipe)
    found = Store().load(name)
    if found.inputs != {key: digest(array) for key, array in inputs.items()} | {"weights": digest(text.weights_hash())}:
        raise GoldenError(f"{name}: made from other inputs or weights: `qsa golden regen {name}`, then accept")
    return found


def check_windows(request: "Request") -> None:
    """Raises the error that ended ``request``, or that made a window of it run again row by row: the text is right
    then, but no window made it."""
    for error in (request.error, request.window_error):
        if error is not None:
            raise error


def text_of(engine: "Engine", request: "Request") -> "Text":
    """The :class:`Text` of a request that ``engine`` has ended and whose slot no other request has taken. Raises what
    any of its windows raised."""
    from qsa.model.generate import Text

    check_windows(request)
    assert request.slot is not None
    # The logits of the last token depend on all that the slot holds.
    output = engine.runner.run([np.array(request.tokens[-1:])], [engine.slots[request.slot]])
    return Text(np.array(request.tokens, np.int32), engine.runner.logits(output.x)[0])


def texts(
    backend: Backend, wanted: list[dict[str, Any]], spec: int = 1, tokens: int | None = None, **options: Any
) -> "tuple[list[Text], list[Request]]":
    """(texts, requests): for every one of ``wanted`` (arguments of ``qsa.model.generate.generate`` behind the
    model) its :class:`Text`, all of them in one batch, and the engine's finished Request.

    spec     rows of a verify window; above 1 the draft layer fills it
    tokens   None, or tokens at most; options: of ``Drafting``

    Raises what any window raised.
    """
    from qsa.engine import Drafting

    counts = [given["count"] if tokens is None else min(tokens, given["count"]) for given in wanted]
    running = _engine(backend, len(wanted))
    drafting = Drafting(spec=spec, **options) if spec > 1 else None
    reader = _reader(running.model, switches()) if drafting is None else None
    requests = [
        running.submit(
            given["ids"],
            count,
            given["options"],
            given["seed"],
            drafting=drafting,
            prefix=reader.prefix(given["ids"]) if reader else None,
        )
        for given, count in zip(wanted, counts, strict=True)
    ]
    running.run()
    return [text_of(running, request) for request in requests], requests
