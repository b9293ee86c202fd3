"""The golden model over the backend under test, and texts from the engine on it.

Of our own backends the whole model runs there, layers included. Somebody's own module lends the model ``block_scores``,
``select`` and ``attend``, as far as it has them; the rest is the CPU backend's. So a kernel is held to whole texts
before there is an engine around it.
"""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from qsa.engine import Drafting, Engine
from qsa.engine.load import BACKENDS, load_model
from qsa.golden.families import text
from qsa.kernels import cpu
from qsa.model import ExactModel, FloatModel
from qsa.model.generate import Text

from ..backend import Backend, UnsupportedError

CAPACITY = (16 << 10) + 1024 + 8
"""Cells of a slot: the longest prompt, the longest answer, a window."""


def model(backend):
    """The golden model (``reference.exact.model.TextModel``) over ``backend`` (:class:`~.backend.Backend`), in its
    arithmetic; the last two are kept. Raises UnsupportedError where the backend has no operation that a model calls."""
    return _model(backend.name, backend.arithmetic)


@lru_cache(maxsize=2)
def _model(name, arithmetic):
    backend = Backend(name, arithmetic)
    own = {operations: name for name, operations in BACKENDS.items()}
    if name in own:
        return load_model(text.MODEL, own[name], arithmetic)
    borrowed = [each for each in ("block_scores", "select", "attend") if backend.has(each)]
    if not borrowed:
        raise UnsupportedError("model: the backend has none of block_scores, select, attend")
    operations = {each: getattr(cpu, each) for each in cpu.__all__} | {each: _lent(backend, each) for each in borrowed}
    kind = ExactModel if arithmetic == "exact" else FloatModel
    return kind(*text.tensors(), backend=SimpleNamespace(**operations))


def _lent(backend, name):
    """``backend``'s operation as the model calls it: with the place for the result, which may be wider."""

    def block_scores(q_idx, index, steps, out):
        out[...] = backend.block_scores(q_idx, index, steps)

    def select(scores, steps, ids, rule, geometry):
        found = backend.select(scores, steps, rule, geometry)[:, : ids.shape[1]]
        ids[:, : found.shape[1]], ids[:, found.shape[1] :] = found, -1

    def attend(q, kv, ids, steps, slots=None, out=None, arithmetic=None):
        if isinstance(kv, list) and len(kv) == 1:
            kv, slots = kv[0], None  # a module need not know of slots
        found = backend.attend(q, kv, ids, steps, slots)
        if out is None:
            return found
        out[...] = found
        return out

    return {"block_scores": block_scores, "select": select, "attend": attend}[name]


@lru_cache(maxsize=2)
def _engine(name, arithmetic, slots):
    """An Engine of the golden model with room for every one of the seven. It is kept: what it captured is replayed, and
    a slot's next text begins where another one ended."""
    return Engine(_model(name, arithmetic), slots=slots, capacity=CAPACITY)


def check_windows(request):
    """Raises what ended ``request``, or what made a window of it run again: row by row the text is right, but then
    there was no window."""
    for error in (request.error, request.window_error):
        if error is not None:
            raise error


def text_of(engine, request):
    """The :class:`Text` of a request that ``engine`` has ended and whose slot no other has taken. Raises what any of
    its windows raised."""
    check_windows(request)
    # The last token is a row like any other: what it says of the next one hangs on all that the slot holds.
    output = engine.runner.run([np.array(request.tokens[-1:])], [engine.slots[request.slot]])
    return Text(np.array(request.tokens, np.int32), engine.runner.logits(output.x)[0])


def texts(backend, wanted, spec=1, tokens=None, **options):
    """(texts, requests): for every one of ``wanted`` (arguments of ``reference.exact.generate.generate`` behind the
    model) its :class:`Text`, all of them in one batch, and the engine's finished Request.

    spec     rows of a verify window; above 1 the draft layer fills it
    tokens   None, or tokens at most; options: of ``Drafting``

    Raises what any window raised.
    """
    counts = [given["count"] if tokens is None else min(tokens, given["count"]) for given in wanted]
    running = _engine(backend.name, backend.arithmetic, len(wanted))
    drafting = Drafting(spec=spec, **options) if spec > 1 else None
    requests = [
        running.submit(given["ids"], count, given["options"], given["seed"], drafting=drafting)
        for given, count in zip(wanted, counts, strict=True)
    ]
    running.run()
    return [text_of(running, request) for request in requests], requests
