"""``spec``: windows and drafts change no text.

Windows of 1, 2, 4 and 8 rows give equal text, greedy and drawn; that of one row is held to the golden of the
computation, so that a backend which is wrong in every window alike is wrong. Drafts and rollbacks must have happened.
A drafter that is always right or always wrong changes only the speed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.golden.families import text
from qsa.kernels.ops import WINDOW_ROWS

from ..backend import Backend
from ..compare.comparison import Comparison, equal, verdict
from . import golden_model
from .seven import held_to_golden

if TYPE_CHECKING:
    from qsa.engine.draft import Proposal
    from qsa.model.generate import Text

COMPUTATIONS = ("math-sampled", "code-greedy")
ROWS = (1, 2, 4, WINDOW_ROWS)
DRAFTERS = ("right", "wrong", "mixed")
TOKENS = 128
FLOORS = (0, 50, 95)
"""Draft floors (``--spec-min-p``) in percent."""

OPERATIONS = {
    "windows": {"computation": tuple(text.COMPUTATIONS), "floor": FLOORS, "tokens": range(16, 1025)},
    "drafter": {"computation": tuple(text.COMPUTATIONS), "drafter": DRAFTERS, "tokens": range(16, 1025)},
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order; there is none in the float arithmetic."""
    if arithmetic != "exact":
        return
    for computation in COMPUTATIONS:
        for floor in FLOORS if computation == COMPUTATIONS[0] else FLOORS[:1]:
            yield {"op": "windows", "computation": computation, "floor": floor, "tokens": TOKENS}
        for drafter in DRAFTERS:
            yield {"op": "drafter", "computation": computation, "drafter": drafter, "tokens": TOKENS}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    given = text.make_inputs({"computation": recipe["computation"]})
    (alone,), _ = golden_model.texts(backend, [given], 1, recipe["tokens"])
    golden = held_to_golden(recipe["computation"], alone, recipe["tokens"])
    if recipe["op"] == "drafter":
        return [golden, *_drafter(backend, recipe, given, alone)]
    comparisons = [golden]
    for spec in ROWS[1:]:
        (found,), (request,) = golden_model.texts(backend, [given], spec, recipe["tokens"], min_p=recipe["floor"] / 100)
        name, counted = f"windows of {spec} rows", request.statistics
        happened = _happened(counted.drafted, counted.accepted, counted.rollbacks, name=name)
        comparisons += [*_same(name, alone, found), happened]
    return comparisons


def _same(name: str, expected: "Text", found: "Text") -> Iterator[Comparison]:
    """Equality of two texts, and of the logits behind them."""
    reason = "a window's rows are the rows decoded one by one"
    yield equal(f"{name}: tokens", expected.tokens, found.tokens, ("token",), reason)
    yield equal(f"{name}: logits behind them", expected.logits, found.logits, ("id",), reason)


def _happened(
    drafted: int,
    accepted: int,
    rollbacks: int,
    need_accepted: bool = True,
    need_rollbacks: bool = True,
    name: str = "windows",
) -> Comparison:
    """A verdict that fails where nothing was drafted, or nothing accepted or rolled back that had to be."""
    missing = [
        name
        for name, count, needed in (
            ("drafts", drafted, True),
            ("accepted drafts", accepted, need_accepted),
            ("rollbacks", rollbacks, need_rollbacks),
        )
        if needed and not count
    ]
    notes = [f"none of: {', '.join(missing)}"] if missing else []
    figures: dict[str, float] = {"drafted": drafted, "accepted": accepted, "rollbacks": rollbacks}
    reason = "a check of windows in which nothing was drafted, accepted or taken back proves nothing"
    return verdict(f"{name}: drafts really happened", len(missing), 0, reason, size=3, notes=notes, figures=figures)


class Scripted:
    """A drafter that knows the text. ``right`` proposes it, ``wrong`` proposes other tokens, ``mixed`` another token at
    every third position.

    tokens      int [n], the text; prompt: tokens before it
    vocabulary  number of ids
    """

    def __init__(self, tokens: np.ndarray, prompt: int, kind: str, vocabulary: int) -> None:
        self.tokens, self.prompt, self.kind, self.vocabulary = tokens.tolist(), prompt, kind, vocabulary

    def on_commit(self, committed: Any) -> None:
        """Does nothing: the drafter has no state."""

    def propose(self, requests: list[Any]) -> "list[Proposal]":
        """The next tokens of every request, right or wrong as the kind has it."""
        from qsa.engine.draft import Proposal

        proposals = []
        for each in requests:
            done = len(each.request.sequence) - self.prompt
            proposal = Proposal()
            for position in range(done, min(done + each.max_drafts, len(self.tokens))):
                token = self.tokens[position]
                if self.kind == "wrong" or (self.kind == "mixed" and position % 3 == 2):
                    token = (token + 1) % self.vocabulary
                proposal.add(token)
            proposals.append(proposal)
        return proposals


def _drafter(backend: Backend, recipe: dict[str, Any], given: dict[str, Any], alone: "Text") -> list[Comparison]:
    """The text with a scripted drafter against ``alone``, the text without drafts."""
    from qsa.engine import Drafting, Engine

    model, count = golden_model.model(backend), recipe["tokens"]
    kind, prompt = recipe["drafter"], len(given["ids"])
    drafter = Scripted(alone.tokens, prompt, kind, model.config.vocab_size)
    engine = Engine(model, capacity=prompt + count, drafter=drafter)
    request = engine.submit(given["ids"], count, given["options"], given["seed"], drafting=Drafting(spec=WINDOW_ROWS))
    engine.run()
    found, counted = golden_model.text_of(engine, request), request.statistics
    happened = _happened(
        counted.drafted,
        counted.accepted,
        counted.rollbacks,
        need_accepted=kind != "wrong",
        need_rollbacks=kind != "right",
        name=f"drafter {kind}",
    )
    return [*_same(f"drafter {kind}", alone, found), happened]
