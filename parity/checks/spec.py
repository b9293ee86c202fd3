"""``spec``: windows and drafts change no text. Windows of 1, 2, 4 and 8 rows give equal text, greedy and drawn; drafts
and rollbacks must really have happened; a drafter that is always right or always wrong changes only the speed.
"""

from qsa.engine import Drafting, Engine
from qsa.engine.draft import Proposal
from qsa.golden import case
from qsa.golden.families import text

from ..compare.comparison import equal, verdict
from . import golden_model

COMPUTATIONS = ("math-sampled", "code-greedy")
ROWS = (1, 2, 4, 8)
DRAFTERS = ("right", "wrong", "mixed")
TOKENS = 128
FLOORS = (0, 50, 95)
"""Draft floors (``--spec-min-p``) in percent."""

OPERATIONS = {
    "windows": {"computation": tuple(text.COMPUTATIONS), "floor": FLOORS, "tokens": range(16, 1025)},
    "drafter": {"computation": tuple(text.COMPUTATIONS), "drafter": DRAFTERS, "tokens": range(16, 1025)},
}


def cases(arithmetic):
    """(case string, recipe) of every case, in order: the texts are those of the exact arithmetic."""
    if arithmetic != "exact":
        return
    for computation in COMPUTATIONS:
        for floor in FLOORS if computation == COMPUTATIONS[0] else FLOORS[:1]:
            recipe = {"op": "windows", "computation": computation, "floor": floor, "tokens": TOKENS}
            yield case.format("spec", recipe), recipe
        for drafter in DRAFTERS:
            recipe = {"op": "drafter", "computation": computation, "drafter": drafter, "tokens": TOKENS}
            yield case.format("spec", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    given = text.make_inputs({"computation": recipe["computation"]})
    (alone,), _ = golden_model.texts(backend, [given], 1, recipe["tokens"])
    if recipe["op"] == "drafter":
        return _drafter(backend, recipe, given, alone)
    comparisons = []
    for spec in ROWS[1:]:
        (found,), (request,) = golden_model.texts(backend, [given], spec, recipe["tokens"], min_p=recipe["floor"] / 100)
        name, counted = f"windows of {spec} rows", request.statistics
        happened = _happened(counted.drafted, counted.accepted, counted.rollbacks, name=name)
        comparisons += [*_same(name, alone, found), happened]
    return comparisons


def _same(name, expected, found):
    reason = "a window's rows are the rows decoded one by one"
    yield equal(f"{name}: tokens", expected.tokens, found.tokens, ("token",), reason)
    yield equal(f"{name}: logits behind them", expected.logits, found.logits, ("id",), reason)


def _happened(drafted, accepted, rollbacks, need_accepted=True, need_rollbacks=True, name="windows"):
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
    figures = {"drafted": drafted, "accepted": accepted, "rollbacks": rollbacks}
    reason = "a check of windows in which nothing was drafted, accepted or taken back proves nothing"
    return verdict(f"{name}: drafts really happened", len(missing), 0, reason, size=3, notes=notes, figures=figures)


class Scripted:
    """A drafter that knows the text: ``right`` says it, ``wrong`` says another token first, ``mixed`` errs at every
    third place."""

    def __init__(self, tokens, prompt, kind, vocabulary):
        self.tokens, self.prompt, self.kind, self.vocabulary = tokens.tolist(), prompt, kind, vocabulary

    def on_commit(self, committed):
        """This drafter keeps no state."""

    def propose(self, requests):
        """The next tokens of the text, with the errors of the kind of drafter."""
        proposals = []
        for request, _, max_drafts in requests:
            done = len(request.sequence) - self.prompt
            proposal = Proposal()
            for index in range(done, min(done + max_drafts, len(self.tokens))):
                token = self.tokens[index]
                if self.kind == "wrong" or (self.kind == "mixed" and index % 3 == 2):
                    token = (token + 1) % self.vocabulary
                proposal.add(token)
            proposals.append(proposal)
        return proposals


def _drafter(backend, recipe, given, alone):
    model, count = golden_model.model(backend), recipe["tokens"]
    kind, prompt = recipe["drafter"], len(given["ids"])
    drafter = Scripted(alone.tokens, prompt, kind, model.config.vocab_size)
    engine = Engine(model, capacity=prompt + count, drafter=drafter)
    request = engine.submit(given["ids"], count, given["options"], given["seed"], drafting=Drafting(spec=8))
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
