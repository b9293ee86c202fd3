"""``seven``: the proposals' seven fixed computations on the golden model, held to goldens made token by token.

Text, and the logits of the row behind it, are the same bytes whatever the backend, the switches, the rows of a window
and the batch. A variant of a long text may compare its first tokens alone (``tokens``). In the float arithmetic texts
may part at any near tie: there the split switch must leave the prompt's own token alone, and how many of the seven stay
equal is reported.
"""

import dataclasses

from qsa.golden import case, text
from qsa.golden.canonical import block_digests
from qsa.golden.families import produce
from qsa.golden.recipe import name_of
from qsa.golden.record import GoldenError
from qsa.golden.store import Store
from qsa.kernels.switches import VARIABLES, override

from . import golden_model
from .compare import verdict

KERNELS = tuple(name for name in VARIABLES if name != "arithmetic")
"""The switches that choose kernels."""

ROWS = range(1, 9)
WHOLE = 0
"""``tokens`` of a case that compares all of them, and the logits behind them."""

ALL = "all"
"""``computation`` of a case that runs all seven in one batch, each in a slot of its own."""

OPERATIONS = {
    "text": {
        "computation": (*text.COMPUTATIONS, ALL),
        "spec": ROWS,
        "switch": ("none", *KERNELS),
        "tokens": range(1025),
    },
    "split": {"computation": tuple(text.COMPUTATIONS)},
}

PART = 128
"""Tokens of a variant that must not take long: windows have been cut, rolled back and filled some sixty times."""

ANSWERS = tuple(name for name in text.COMPUTATIONS if not name.startswith("prompt"))
PROMPTS = tuple(name for name in text.COMPUTATIONS if name.startswith("prompt"))


def cases(arithmetic):
    """(case string, recipe) of every case, in order."""
    if arithmetic == "float":
        for name in text.COMPUTATIONS:
            recipe = {"op": "split", "computation": name}
            yield case.format("seven", recipe), recipe
        return
    for name in text.COMPUTATIONS:
        yield _case(name, 4 if name in ANSWERS else 1, "none", WHOLE)
    yield _case(ALL, 2, "none", PART)
    for spec in ROWS:
        for name in ANSWERS:
            yield _case(name, spec, "none", PART)
    for switch in KERNELS:
        for name in (*ANSWERS, "prompt-2k"):
            yield _case(name, 4, switch, PART)


def more_cases(arithmetic):
    """Every computation whole, at every window size, under every switch, and in a batch: half an hour on two cores."""
    if arithmetic == "float":
        return
    for switch in ("none", *KERNELS):
        yield _case(ALL, 2, switch, WHOLE)
        for spec in ROWS if switch == "none" else (4,):
            for name in text.COMPUTATIONS:
                if (name in ANSWERS, spec, switch) not in ((True, 4, "none"), (False, 1, "none")):
                    yield _case(name, spec, switch, WHOLE)


def _case(name, spec, switch, tokens):
    recipe = {"op": "text", "computation": name, "spec": spec, "switch": switch, "tokens": tokens}
    return case.format("seven", recipe), recipe


def check(backend, recipe):
    """The comparisons of one case."""
    if recipe["op"] == "split":
        return _split(backend, recipe["computation"])
    names = tuple(text.COMPUTATIONS) if recipe["computation"] == ALL else (recipe["computation"],)
    wanted = [text.make_inputs({"computation": name}) for name in names]
    switches = {} if recipe["switch"] == "none" else {recipe["switch"]: True}
    with override(**switches):
        found, requests = golden_model.texts(backend, wanted, recipe["spec"], recipe["tokens"] or None)
    comparisons = []
    for name, one, request in zip(names, found, requests, strict=True):
        figures = {"tokens per round": request.statistics.tokens_per_round}
        if request.statistics.drafted:
            figures["acceptance"] = request.statistics.acceptance
        held = _whole(name, one) if recipe["tokens"] == WHOLE else _start(name, one)
        comparisons.append(dataclasses.replace(held, figures=figures))
    return comparisons


def _record(name):
    return name_of("text", {"computation": name})


def _whole(name, found):
    """Hashes of the text and of the logits behind it."""
    lines = Store().check(_record(name), lambda family, recipe: produce(family, recipe, {family: lambda **_: found}))
    return verdict(f"golden {_record(name)}", len(lines), 0, "a hash has one right value", size=2, notes=lines)


def _start(name, found):
    """The first tokens, each by its own hash in the record."""
    record = Store().load(_record(name))
    if record["inputs"]["weights"] != _hash_of_weights():
        raise GoldenError(f"{_record(name)}: made from other weights: `qsa golden regen {_record(name)}`, then accept")
    expected, got = record["outputs"]["tokens"]["blocks"], block_digests(found.tokens)
    wrong = [place for place, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b]
    notes = [f"first wrong token: {wrong[0]}"] if wrong else []
    reason = "a text has one right beginning"
    return verdict(f"tokens of {_record(name)}", len(wrong), 0, reason, size=len(got), bad=len(wrong), notes=notes)


def _hash_of_weights():
    from qsa.golden.canonical import digest

    return digest(text.weights_hash())


def _split(backend, name):
    """The float arithmetic with the split switch on against off."""
    given = [text.make_inputs({"computation": name})]
    (off,), _ = golden_model.texts(backend, given, 4)
    with override(split_attn=True):
        (on,), _ = golden_model.texts(backend, given, 4)
    differ = (on.tokens != off.tokens).nonzero()[0]
    first = int(differ[0]) if differ.size else len(on.tokens)
    note = f"equal: all {first} tokens" if not differ.size else f"texts part at token {first} of {len(on.tokens)}"
    reason = "the switch leaves the prompt path alone, and the prompt's last row gives the first token"
    figures = {"equal": float(not differ.size), "equal tokens": first}
    return [verdict(f"first token of {name}", int(first == 0), 0, reason, notes=(note,), figures=figures)]
