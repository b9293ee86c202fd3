"""``seven``: the proposals' seven fixed computations on the golden model, held to goldens made token by token.

Text, and the logits of the row behind it, are the same bytes whatever the backend, the switches, the rows of a window
and the batch. A variant of a long text may compare its first tokens (``tokens``) and the logits behind those. In the
float arithmetic texts may part at any near tie: there the split switch must leave the prompt's own token alone, and how
many of the seven stay equal is reported.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qsa.golden.canonical import block_digests, digest
from qsa.golden.families import text
from qsa.kernels.ops import WINDOW_ROWS
from qsa.kernels.switches import VARIABLES, override

from ..backend import Backend
from ..compare.comparison import Comparison, verdict
from . import golden_model

if TYPE_CHECKING:
    from qsa.model.generate import Text

KERNELS = tuple(name for name in VARIABLES if name != "arithmetic")
"""The switches that choose kernels."""

ROWS = range(1, WINDOW_ROWS + 1)
WHOLE = 0
"""``tokens`` of a case that compares all of them, and the logits behind them."""

ANSWERS = tuple(name for name in text.COMPUTATIONS if not name.startswith("prompt"))
GROUPS = {"all": tuple(text.COMPUTATIONS), "answers": ANSWERS}
"""``computation`` of a case that runs several: in one batch, each in a slot of its own, or for ``split`` in turn."""

FIRST = "the switch leaves the prompt path alone, and the prompt's last row gives the first token"

OPERATIONS = {
    "text": {
        "computation": (*text.COMPUTATIONS, *GROUPS),
        "spec": ROWS,
        "switch": ("none", *KERNELS),
        "tokens": range(1025),
    },
    "split": {"computation": (*text.COMPUTATIONS, *GROUPS), "tokens": range(1025)},
}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order."""
    if arithmetic == "float":
        yield {"op": "split", "computation": "all", "tokens": WHOLE}
        return
    for name in text.COMPUTATIONS:
        yield _text(name, 4 if name in ANSWERS else 1, "none", WHOLE)
    # Drafting after the long prompts would let the draft layer, which attends densely, read them: minutes on two cores.
    yield _text("all", 1, "none", text.PART)
    yield _text("answers", 2, "none", text.PART)
    for spec in ROWS:
        for name in ANSWERS:
            yield _text(name, spec, "none", text.PART)
    for switch in KERNELS:
        yield _text("answers", 2, switch, text.PART)
        for name in ANSWERS:
            yield _text(name, 4, switch, text.PART)


def first_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """An answer of each prompt whole, and the shortest long prompt; in the float arithmetic part of an answer."""
    if arithmetic == "float":
        yield {"op": "split", "computation": "math-greedy", "tokens": text.PART}
        return
    yield _text("math-greedy", 4, "none", WHOLE)
    yield _text("code-greedy", 4, "none", WHOLE)
    yield _text("prompt-2k", 1, "none", WHOLE)


def more_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """Every computation whole, at every window size, under every switch, and in a batch: more than half an hour on two
    cores."""
    if arithmetic == "float":
        return
    for switch in ("none", *KERNELS):
        yield _text("all", 2, switch, WHOLE)
        for spec in ROWS if switch == "none" else (4,):
            for name in text.COMPUTATIONS:
                if (name in ANSWERS, spec, switch) not in ((True, 4, "none"), (False, 1, "none")):
                    yield _text(name, spec, switch, WHOLE)


def _text(name: str, spec: int, switch: str, tokens: int) -> dict[str, Any]:
    return {"op": "text", "computation": name, "spec": spec, "switch": switch, "tokens": tokens}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    if recipe["op"] == "split":
        return _split(backend, recipe)
    names = GROUPS.get(recipe["computation"], (recipe["computation"],))
    wanted = [text.make_inputs({"computation": name}) for name in names]
    switches = {} if recipe["switch"] == "none" else {recipe["switch"]: True}
    with override(**switches):
        found, requests = golden_model.texts(backend, wanted, recipe["spec"], recipe["tokens"] or None)
    comparisons = []
    for name, produced, request in zip(names, found, requests, strict=True):
        figures = {"tokens per round": request.statistics.tokens_per_round}
        if request.statistics.drafted:
            figures["acceptance"] = request.statistics.acceptance
        held = held_to_golden(name, produced, recipe["tokens"])
        comparisons.append(dataclasses.replace(held, figures=figures))
    return comparisons


def held_to_golden(name: str, found: "Text", tokens: int) -> Comparison:
    """A text and the logits behind it against the record of the computation ``name``: all of it, or the first
    ``tokens``, each by its own hash; a missing token is wrong."""
    given = {"ids": text.make_inputs({"computation": name})["ids"]}
    record = golden_model.record("text", {"computation": name}, given)
    golden, outputs, whole = record.name, record.outputs, record.outputs["tokens"].shape[0]
    size = min(tokens, whole) if tokens else whole
    expected, got = outputs["tokens"].blocks[:size], block_digests(found.tokens)
    count = max(len(expected), len(got))
    wrong = [index for index in range(count) if expected[index : index + 1] != got[index : index + 1]]
    lines = [f"first wrong token: {wrong[0]}"] if wrong else []
    behind = outputs["logits"] if size == whole else outputs["part"] if size == text.PART else None
    if size == whole and not wrong and digest(found.tokens) != outputs["tokens"].hash:
        lines.append("tokens: another hash")
    if behind is not None and digest(found.logits) != behind.hash:
        lines.append(f"logits behind the text: hash {behind.hash} became {digest(found.logits)}")
    reason = "a text has one right wording, and the logits behind it depend on every cell and state"
    return verdict(f"golden {golden}", len(lines), 0, reason, size=count + 1, bad=len(wrong), notes=lines)


def _split(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The float arithmetic with the split switch on against off, computation by computation; of all of them also how
    many stay equal."""
    names = GROUPS.get(recipe["computation"], (recipe["computation"],))
    found = [_parted(backend, name, recipe["tokens"] or None) for name in names]
    if len(found) > 1:
        equal, wrong = sum(each.figures["equal"] for each in found), sum(not each.passed for each in found)
        note = f"{equal:.0f} of {len(found)} texts stay equal with the switch on"
        figures = {"equal": equal}
        found.append(verdict("first tokens", wrong, 0, FIRST, size=len(found), notes=(note,), figures=figures))
    return found


def _parted(backend: Backend, name: str, tokens: int | None) -> Comparison:
    """Where the text of one computation first differs with the split switch on; its first token must not."""
    given = [text.make_inputs({"computation": name})]
    (off,), _ = golden_model.texts(backend, given, 4, tokens)
    with override(split_attn=True):
        (on,), _ = golden_model.texts(backend, given, 4, tokens)
    differ = (on.tokens != off.tokens).nonzero()[0]
    first = int(differ[0]) if differ.size else len(on.tokens)
    note = f"equal: all {first} tokens" if not differ.size else f"texts part at token {first} of {len(on.tokens)}"
    figures = {"equal": float(not differ.size), "equal tokens": first}
    size = len(on.tokens)
    return verdict(f"first token of {name}", int(first == 0), 0, FIRST, size=size, notes=(note,), figures=figures)
