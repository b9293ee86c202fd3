"""Checks of single parts of the engine, by name: arrays and numbers against stated ones."""

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.engine import Drafting, Request
from qsa.engine.draws import device_sampling as device
from qsa.engine.draws import sampling
from qsa.engine.scheduler import Scheduler, allocate_rows
from qsa.engine.tokenizer import Bytes, Ids, TextStream
from qsa.reference.exact import sampler, speculative
from qsa.reference.sampler import DRAFTER, Sampling

from ..patching import Check, FoundError
from .model import VOCAB
from .texts import same

DRAWN = Sampling(temperature=1.3, top_k=12, repeat=1.2, frequency=0.3, last_n=5)


def scheduler() -> None:
    """Slots of ten requests in one group and of six in two, against the windows and prompts that round robin gives."""
    shares = [((3, 8), [3, 5]), ((8, 8, 8), [3, 3, 2]), ((1, 8, 2), [1, 5, 2]), ((2,), [2]), ((8,) * 8, [1] * 8)]
    same("rows of a window", [each for _, each in shares], [allocate_rows(requested) for requested, _ in shares])
    ten = _requests(range(10))
    own = Scheduler(10, 1)
    windows = [[request.slot for request in own.next_window(ten)] for _ in range(5)]
    # Eight at a time, going on behind the last one served: in five windows every slot four times.
    same("windows over ten slots", [[(8 * turn + i) % 10 for i in range(8)] for turn in range(5)], windows)
    six, own = _requests((0, 1, 2, 3, 5)), Scheduler(6, 2)
    groups = [sorted(int(request.slot or 0) for request in own.next_window(six)) for _ in range(3)]
    same("windows over two groups", [[0, 1, 2], [3, 5], [0, 1, 2]], groups)
    same("prompts", [0, 1, 2, 3, 5, 0], [own.next_prompt(six).slot for _ in range(6)])
    same("prompt or window", [True, False, True, False], [own.schedule_prefill(six[:1], six[1:]) for _ in range(4)])
    same("no prompt", [False, True], [own.schedule_prefill([], six), own.schedule_prefill(six, [])])
    same(
        "free slots", [0, 3, 1, 2, None], [own.free_slot(taken) for taken in ((), (0,), (0, 3), (0, 1, 3, 4), range(6))]
    )


def _requests(slots: Sequence[int] | range) -> list[Any]:
    return [SimpleNamespace(slot=slot) for slot in slots]


@cache
def _windows() -> list[tuple[Request, np.ndarray, list[int], list[Any], dict[str, tuple[int, list[int]]]]]:
    """(request, logits, drafts, their distributions, what each rule gives) of windows of 2 to 6 rows."""
    found, rng = [], np.random.default_rng(11)
    for number in range(24):
        rows = 2 + number % 5
        logits = rng.normal(0, 1.5, (rows, VOCAB)).astype(np.float32)
        history = rng.integers(0, VOCAB, 9).tolist()
        seed, position = number * 2**40 + 1, len(history) - 1
        drafts: list[int] = []
        lists: list[Any] = []
        for row in range(rows - 1):
            own = logits[row] + rng.normal(0, 0.7, VOCAB).astype(np.float32)
            ids, masses = sampler.distribution(own, [*history, *drafts], DRAWN)
            u = int(rng.integers(0, 2**24))
            # Of every third window the drafts come without a distribution; every fourth has likely ones.
            likely = int(sampler.sample(logits[row], [*history, *drafts], DRAWN, seed, position + row))
            drafts.append(likely if number % 4 == 0 else int(ids[sampler.draw(masses, u)]))
            lists.append(None if number % 3 == 0 else (ids, masses))
        request = Request(history, 99, DRAWN, seed, drafting=Drafting(8))
        expected = {
            "rejection": speculative.rejection(logits, drafts, lists, history, DRAWN, seed, position),
            "exact_match": speculative.exact_match(logits, drafts, history, DRAWN, seed, position),
        }
        found.append((request, logits, drafts, lists, expected))
    return found


def acceptance() -> None:
    """What a window accepts and emits under either rule that draws, against the reference's decisions."""
    several = 0
    for number, (request, logits, drafts, lists, expected) in enumerate(_windows()):
        for rule, (accepted, emitted) in expected.items():
            request.acceptance = rule
            got = sampling.accept(request, logits, drafts, lists)
            same(f"{rule}, window {number}", (accepted, emitted), got)
            several += rule == "rejection" and 0 < accepted < len(drafts)
            # A window that ran again without its drafts emits what its one row says.
            same(f"{rule}, window {number} again", emitted[:1], sampling.accept(request, logits[:1], drafts, lists)[1])
    if several < 3:
        raise FoundError("too few windows are accepted in part: the check is too weak")


@cache
def _proposals() -> list[tuple[int, np.ndarray, np.ndarray, float]]:
    """(token, ids, masses, probability of the most probable one) of a draft of every window, drawn by its stream."""
    found = []
    for request, logits, drafts, _, _ in _windows():
        history = [*request.sequence, *drafts]
        ids, masses = sampler.distribution(logits[-1], history, DRAWN)
        u = sampler.uniform(request.seed, len(history) - 1, DRAFTER)[0]
        found.append((int(ids[sampler.draw(masses, u)]), ids, masses, _softmax(logits[-1], history)))
    return found


def _softmax(logits: np.ndarray, history: list[int]) -> float:
    """Probability of the token that is most probable after the penalties."""
    best = int(sampler.penalised(logits, history, DRAWN).argmax())
    share = np.exp(logits.astype(np.float64) - logits.max())
    return float(share[best] / share.sum())


def proposals() -> None:
    """Drafts and their distributions, and where their probability is held to the floor."""
    for (request, logits, drafts, _, _), (token, ids, masses, probability) in zip(
        _windows(), _proposals(), strict=True
    ):
        request.acceptance = "rejection"
        got, distribution, _ = sampling.propose(request, logits[-1], drafts)
        same("draft that is drawn", token, got)
        assert distribution is not None, "it was drawn"
        same("its distribution", (ids.tolist(), masses.tolist()), tuple(part.tolist() for part in distribution))
        request.acceptance = "exact_match"
        for floor in (0.999 * probability, 1.001 * probability):
            request.drafting = Drafting(8, min_p=min(floor, 1.0))
            enough = sampling.propose(request, logits[-1], drafts)[2]
            same("probability reaches the floor", floor < probability, enough)


_LISTS: tuple[tuple[str, list[float], list[int], Sampling, list[int]], ...] = (
    ("top-k among equals", [5, 4, 4, 4, 1], [], Sampling(top_k=3), [0, 1, 2]),
    ("top-p that half of two equals reaches", [1, 1, -np.inf], [], Sampling(top_p=0.5), [0]),
    ("top-p just above it", [1, 1, -np.inf], [], Sampling(top_p=0.5 + 2**-20), [0, 1]),
    ("top-p of 1", [3, 1, -3], [], Sampling(top_p=1.0), [0, 1, 2]),
    ("min-p of 1 among equals", [2, 2, 1], [], Sampling(min_p=1.0), [0, 1]),
    ("min-p below a third", [1.1, 0, -3], [], Sampling(min_p=0.33), [0, 1]),
    ("min-p above a third", [1.1, 0, -3], [], Sampling(min_p=0.34), [0]),
    ("at least two", [4, 2, 1], [], Sampling(top_p=0.1, min_keep=2), [0, 1]),
    ("two candidates at most", [4, 2, 1], [], Sampling(max_candidates=2), [0, 1]),
    ("the whole vocabulary", [0.0] * 70, [], Sampling(max_candidates=0), list(range(70))),
    ("repeat of a positive logit", [2, 1.5], [0], Sampling(top_k=1, repeat=2.0), [1]),
    ("repeat of a negative logit", [-1, -1.5], [0], Sampling(top_k=1, repeat=2.0), [1]),
    ("frequency counts twice", [2, 1], [0, 0], Sampling(top_k=1, frequency=0.6), [1]),
    ("presence counts once", [2, 1], [0, 0], Sampling(top_k=1, presence=0.6), [0]),
    ("the last token alone", [1, 2], [0, 1], Sampling(top_k=1, presence=5.0, last_n=1), [0]),
    ("the last two", [1, 2, 0], [0, 1], Sampling(top_k=1, presence=5.0, last_n=2), [2]),
    ("the whole history", [1, 2, 0], [0, 1], Sampling(top_k=1, presence=5.0, last_n=-1), [2]),
    ("no history", [1, 2, 0], [1], Sampling(top_k=1, presence=5.0, last_n=0), [1]),
)
"""What, logits, history, options, the tokens that are left."""


def options() -> None:
    """Where top-k, top-p, min-p and the penalties cut, and the masses at a temperature."""
    for what, row, history, chosen, expected in _LISTS:
        same(what, expected, _list(row, history, chosen)[0].tolist())
    masses = _list([3, 1], [], Sampling(temperature=2.0))[1].astype(np.float64)
    if abs(masses[0] / masses[1] / np.exp(1) - 1) > 1e-5:
        raise FoundError(f"temperature 2: the masses are as {masses[0] / masses[1]:.4f} to 1, must be as e to 1")


def _list(row: list[float], history: list[int], chosen: Sampling) -> tuple[np.ndarray, np.ndarray]:
    logits = np.array([row], np.float32)
    # A prompt of one token more, whose id counts for nothing.
    request = Request(history or [len(row) - 1], 9, chosen)
    lists = sampling._new_lists(logits, chosen)
    draw = sampling.draw_parameters(request, [])
    sampling._draw_rows(logits, draw if history else draw._replace(history=[], length=0), lists=lists)
    return lists.of(0)


def draws() -> None:
    """The inputs of a sampler on the device, row by row."""
    given = [
        device.DrawParameters(DRAWN, [5, 6, 7, 8], 2, 2**63 + 1, 10),
        None,
        device.DrawParameters(Sampling(temperature=0.5), [1], 1, 4, 3),
    ]
    arrays = device.draw_arrays(given, [3, 4, 1])
    same("positions", [10, 11, 12], arrays["positions"][:3].tolist())
    same("last position", 3, int(arrays["positions"][-1]))
    same("rows that nobody wants and are drawn", 0, int((arrays["positions"][3:7] >= 0).sum()))
    same("lengths", [2, 3, 4, 0, 0, 0, 0, 1], arrays["lengths"].tolist())
    same("seeds", [2**63 + 1] * 3 + [4], arrays["seeds"][[0, 1, 2, 7]].tolist())
    same("slots", [0, 0, 0, 1, 1, 1, 1, 2], arrays["slots"].tolist())
    same("history", [5, 6, 7, 8], arrays["history"][0, :4].tolist())
    expected = sampler.option_rows([DRAWN] * 3 + [Sampling(temperature=0.5)], 4)
    same("options", expected.tolist(), arrays["options"][[0, 1, 2, 7]].tolist())


class _Words:
    """A tokenizer of bytes that reads runs of byte tokens together, and drops the first space of a text."""

    byte_tokens = frozenset(range(0xC3, 0x100))

    @staticmethod
    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace").removeprefix(" ")


def decoders() -> None:
    """Texts in pieces, joined, against the whole text; an end in the middle of a character too."""
    text = "größe €5 — ende"
    for data in (text.encode(), text.encode()[:-8], "€".encode()[:2], b"\xff\xfeab"):
        for decoder in (Bytes().decoder(), TextStream(_Words())):  # type: ignore[arg-type]
            pieces = [decoder([token]) for token in data] + [decoder(None)]
            same("text in pieces", data.decode("utf-8", "replace"), "".join(pieces))
    words = TextStream(_Words())  # type: ignore[arg-type]
    same("words in pieces", "a b c", "".join([words(list(b"a")), words(list(b" b")), words(list(b" c")), words(None)]))
    same("ids", "7 11 ", Ids().decoder()([7, 11]))
    if Bytes().decoder()("é".encode()[:1]) or TextStream(_Words())("é".encode()[:1]):  # type: ignore[arg-type]
        raise FoundError("half a character gives text")


CHECKS: dict[str, Check] = {
    each.__name__: each for each in (scheduler, acceptance, proposals, options, draws, decoders)
}
"""Name -> check of a part of the engine."""
