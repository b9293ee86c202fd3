"""Checks of the engine's texts and states, by name: small runs against one row of the model at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qsa.engine import Drafting, Engine, Request, score
from qsa.engine.draft import DraftRequest
from qsa.model import TextModel
from qsa.reference.sampler import GREEDY, Sampling

from ..patching import Check, FoundError
from .model import (
    END,
    POISON,
    Recording,
    Scripted,
    decoded,
    draft_truth,
    model,
    poisoned_model,
    program_model,
    prompt,
    state_arrays,
)

STEPS = 400
"""Steps after which a run of the engine counts as endless; the longest here takes a fifth of it."""

HOT = Sampling(temperature=1.2, top_k=20)
PENALISED = Sampling(temperature=0.9, repeat=1.4, frequency=0.5, presence=0.3, last_n=6)


class Text(NamedTuple):
    """A request: its prompt, number of tokens, options, and the index of the token that is its stop id, if any."""

    ids: tuple[int, ...]
    length: int
    options: Sampling = GREEDY
    seed: int = 0
    drafting: Drafting | None = None
    stop: int | None = None

    def truth(self) -> list[int]:
        """The tokens that the request must get."""
        tokens = decoded(self.ids, self.length, self.options, self.seed).tokens
        return tokens if self.stop is None else tokens[: tokens.index(tokens[self.stop]) + 1]

    def submit(self, engine: Engine, **given: Any) -> Request:
        """Queue it."""
        stop = [] if self.stop is None else [decoded(self.ids, self.length, self.options, self.seed).tokens[self.stop]]
        options: dict[str, Any] = {"sampling": self.options, "seed": self.seed, "drafting": self.drafting, "stop": stop}
        return engine.submit(list(self.ids), self.length, **options | given)


TEXTS = (
    Text(tuple(prompt(15, 1)), 12, drafting=Drafting(4)),
    Text(tuple(prompt(5, 2)), 9, HOT, 7, Drafting(3)),
    Text(tuple(prompt(11, 3)), 12, PENALISED, 2**40 + 5, Drafting(8)),
    Text(tuple(prompt(9, 4)), 12, stop=4, drafting=Drafting(8)),
    Text(tuple(prompt(5, 2)), 6, HOT, 8),
)
"""Two more than the slots of :func:`texts`, the longest of which fills its slot."""


def same(what: str, expected: Any, got: Any) -> None:
    """Raises FoundError where two values, or the bytes of two arrays, differ."""
    if isinstance(expected, np.ndarray):
        equal = np.shape(expected) == np.shape(got) and expected.tobytes() == np.ascontiguousarray(got).tobytes()
        if not equal:
            raise FoundError(f"{what}: other bytes")
    elif expected != got:
        raise FoundError(f"{what}: must be {expected}, is {got}")


def same_state(what: str, expected: Any, got: Any) -> None:
    """Raises FoundError that names the first array in which two states of the model differ."""
    geometry = model().geometry
    if got.n != expected.n:
        raise FoundError(f"{what}: must have {expected.n} cells, has {got.n}")
    ours, theirs = state_arrays(expected, geometry), state_arrays(got, geometry)
    for name, array in ours.items():
        same(f"{what}: {name}", array, theirs[name])


def refused(what: str, call: Callable[[], Any], words: str) -> None:
    """Raises FoundError unless ``call`` raises a ValueError whose text has ``words``."""
    try:
        call()
    except ValueError as error:
        if words not in str(error):
            raise FoundError(f"{what}: refused for another reason: {error}") from error
        return
    raise FoundError(f"{what}: not refused")


def run(engine: Engine, on_step: Callable[[], object] = lambda: None) -> None:
    """Run steps until the engine is idle. Raises FoundError when it never is."""
    for _ in range(STEPS):
        if engine.idle:
            return
        engine.step()
        on_step()
    raise FoundError(f"the engine is not idle after {STEPS} steps")


def held(text: Text, request: Request) -> None:
    """Raises FoundError unless the request has finished with its text."""
    if request.error is not None:
        raise FoundError(f"the request failed: {request.error}") from request.error
    same("text", text.truth(), request.tokens)
    same("status", "finished", request.status)
    same("reason", "length" if text.stop is None else "stop", request.reason)


def _served(own: TextModel, drafter: Any, chosen: Sequence[Text], slots: int, **options: Any) -> None:
    """Run the ``chosen`` texts in one engine; each text, and the state that it leaves in its slot, against truth."""
    capacity = max(len(text.ids) + text.length - 1 for text in chosen)
    engine = Engine(own, slots, capacity, chunk=7, drafter=drafter, **options)
    requests = [text.submit(engine) for text in chosen]
    ended: list[Request] = []

    def states() -> None:
        # At once: the next request that takes the slot begins anew.
        for text, request in zip(chosen, requests, strict=True):
            if request.ended and request not in ended:
                ended.append(request)
                held(text, request)
                assert request.slot is not None, "it has run"
                truth = decoded(text.ids, len(request.tokens), text.options, text.seed)
                same_state("state", truth.state, engine.slots[request.slot].state)

    run(engine, states)
    same("requests that ended", len(chosen), len(ended))


def texts() -> None:
    """Five requests over three slots, with every kind of option, drafts that are right and wrong."""
    _served(model(), Scripted({text.ids: text.truth() for text in TEXTS}), TEXTS, 3)


def one_text() -> None:
    """One greedy request whose drafts are right and wrong in turn."""
    _served(model(), Scripted({TEXTS[0].ids: TEXTS[0].truth()}), TEXTS[:1], 1)


def endings() -> None:
    """A prompt that ends at the end of a text, one row at a time: n-grams do not reach behind it."""
    for ids in ((*prompt(6, 6), END), (*prompt(6, 6), END, 9)):
        _served(model(), None, (Text(ids, 4),), 1)


def programs() -> None:
    """Two requests over programs of fixed buffers and a sampler of the device's."""
    chosen = (TEXTS[0], TEXTS[2])
    _served(program_model(), Scripted({text.ids: text.truth() for text in chosen}), chosen, 2)


def counts() -> None:
    """Rounds, drafts and rollbacks of drafts that are all right, and all wrong."""
    text = Text(TEXTS[0].ids, 10, drafting=Drafting(4))
    for wrong, expected in (((), (3, 6, 6, 0)), (range(7), (9, 21, 0, 8))):
        engine = Engine(model(), 1, 24, drafter=Scripted({text.ids: text.truth()}, wrong, rest=99))
        request = text.submit(engine)
        run(engine)
        held(text, request)
        found = request.statistics
        got = (found.rounds, found.drafted, found.accepted, found.rollbacks)
        same(f"rounds, drafts, accepted, rollbacks with {len(wrong)} of 7 drafts wrong", expected, got)
        commits = [(start, count) for _, start, count in engine.drafter.committed]  # type: ignore[union-attr]
        end = 0
        for start, count in commits:
            same("start of committed rows", end, start)
            end = start + count
        same("end of committed rows", len(text.ids) + 9, end)


def draft_layer() -> None:
    """The draft layer's cells and its chains of two slots, against its own loop one row at a time."""
    _drafts(model())


def draft_programs() -> None:
    """The same over programs."""
    _drafts(program_model())


def _drafts(own: TextModel) -> None:
    chosen = [Text(tuple(prompt(n, n)), 6, drafting=Drafting(3, window=window)) for n, window in ((18, 16), (7, 5))]
    # Longer than the texts by the drafts that are asked for at the end.
    engine = Engine(own, 2, 32, chunk=7)
    requests = [text.submit(engine) for text in chosen]

    def first_drafts() -> None:
        for text, request in zip(chosen, requests, strict=True):
            if len(request.tokens) == 1:
                _same_tip(text, request, engine)

    run(engine, first_drafts)
    given = []
    for text, request in zip(chosen, requests, strict=True):
        held(text, request)
        same("failures of the drafter", None, request.draft_error and str(request.draft_error))
        assert request.slot is not None, "it has run"
        _same_tip(text, request, engine)
        given.append(DraftRequest(request, engine.slots[request.slot], 4))
    assert engine.drafter is not None, "the model has a draft layer"
    for text, request, proposal in zip(chosen, requests, engine.drafter.propose(given), strict=True):
        assert request.drafting is not None, "it drafts"
        _, chain = draft_truth(text.ids, text.length, 4, request.drafting.window)
        same("drafts", chain, proposal.tokens)


def _same_tip(text: Text, request: Request, engine: Engine) -> None:
    """Raises FoundError unless the draft layer has every cell of a request, and its output at the last one."""
    assert request.slot is not None and request.drafting is not None, "it runs, with drafts"
    logits, _ = draft_truth(text.ids, len(request.tokens), 4, request.drafting.window)
    cells = engine.slots[request.slot].draft
    assert cells is not None, "the model has a draft layer"
    same("cells of the draft layer", len(request.sequence) - 1, cells.n)
    if cells.last_output is None:
        raise FoundError("the draft layer has no output at its last cell")
    same("logits of the draft layer", logits, cells.last_output[0])


def order() -> None:
    """Which slot every call serves: prompts in turn, prompts and windows in turn, waiting requests in order."""
    recording = Recording(model())
    engine = Engine(model(), 2, 20, chunk=4, runner=recording)
    lengths = ((8, 6), (12, 3), (4, 2), (4, 1))
    requests = [Text(tuple(prompt(n, 40 + n)), count).submit(engine) for n, count in lengths]
    ended: list[int] = []
    run(engine, lambda: ended.extend(i for i, r in enumerate(requests) if r.ended and i not in ended))
    same("calls (slot, rows)", _ORDER, recording.calls)
    same("order in which requests ended", _ENDED, ended)


_ORDER = [
    # Two prompts take turns; then a window of the first that decodes and a chunk of the other, and so on.
    [(0, 4)],
    [(1, 4)],
    [(0, 4)],
    [(1, 4)],
    [(0, 1)],
    [(1, 4)],
    # The third request takes the slot of the second, and the fourth that of the third or the first.
    [(1, 1), (0, 1)],
    [(1, 1), (0, 1)],
    [(0, 1)],
    [(1, 4)],
    [(1, 1), (0, 1)],
    [(0, 4)],
]
_ENDED = [1, 0, 2, 3]


def failures() -> None:
    """A draft that fails costs its own window, a prompt that fails its own request; the slot serves the next one."""
    good = (Text(TEXTS[3].ids, 6, drafting=Drafting(4)), Text(TEXTS[1].ids, 6, HOT, 7, Drafting(3)))
    script = {text.ids: text.truth() for text in good}
    script[good[0].ids] = [POISON if index in (2, 4) else token for index, token in enumerate(good[0].truth())]
    engine = Engine(poisoned_model(), 2, 24, chunk=7, drafter=Scripted(script, wrong=(), rest=99))
    bad = engine.submit([*TEXTS[2].ids[:6], POISON], 4)
    requests = [text.submit(engine) for text in good]
    after = Text(TEXTS[4].ids, 4, HOT, 8)
    last = after.submit(engine)
    gone = [engine.submit(list(TEXTS[3].ids), 4) for _ in range(2)]
    same("cancelled while waiting", True, engine.cancel(gone[0]))
    run(engine, lambda: gone[1].status == "decoding" and engine.cancel(gone[1]))
    same("status of the poisoned prompt", "failed", bad.status)
    same("status of cancelled requests", ["cancelled"] * 2, [request.status for request in gone])
    for text, request in zip((*good, after), (*requests, last), strict=True):
        held(text, request)
    same("reruns", True, requests[0].statistics.reruns > 0)


def scores() -> None:
    """Teacher-forced scores, by windows and by chunks, against the logits of single rows."""
    text = TEXTS[0]
    truth, sequence = decoded(text.ids, text.length), [*text.ids, *text.truth()]
    x = truth.logits.astype(np.float64)
    log = x - x.max(axis=1, keepdims=True)
    log -= np.log(np.exp(log).sum(axis=1, keepdims=True))
    nll = -log[np.arange(len(x)), sequence[1:]]
    pieces: tuple[dict[str, Any], ...] = ({"window": 5}, {"chunk": 7})
    for options in pieces:
        found = score(model(), sequence, **options)
        same("most probable tokens", x.argmax(axis=1).tolist(), found.top.tolist())
        if not np.allclose(found.nll, nll, rtol=1e-12, atol=0):
            raise FoundError(f"nll: mean {found.mean:.6f}, must be {nll.mean():.6f}")


CHECKS: dict[str, Check] = {
    each.__name__: each
    for each in (
        texts,
        one_text,
        endings,
        programs,
        counts,
        draft_layer,
        draft_programs,
        order,
        failures,
        scores,
    )
}
"""Name -> check of an engine over the tiny model."""
