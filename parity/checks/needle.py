"""``needle``: facts hidden in filler at several depths, and a question at the end; the answer must hold the code word.

4K and 16K tokens are 16 and 64 times the golden model's budget of 256 cells, as 32K and 128K are of the real model's
2,048. Each length is read once; every question then goes on from a copy of the slot.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.golden.families import text

from ..backend import Backend
from ..compare.comparison import Comparison, verdict
from . import golden_model

if TYPE_CHECKING:
    from qsa.engine import Slot

LENGTHS = (4096, 16384)
DEPTHS = (10, 50, 90)
ANSWER = 32
"""Tokens of an answer: the longest code word has fewer."""
CHUNK = 1024

OPERATIONS = {"find": {"context": LENGTHS, "depth": DEPTHS}}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order."""
    for context in LENGTHS:
        for depth in DEPTHS:
            yield {"op": "find", "context": context, "depth": depth}


def first_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """The shorter text, at its middle."""
    yield {"op": "find", "context": LENGTHS[0], "depth": DEPTHS[1]}


@lru_cache(maxsize=1)
def _read(backend: Backend, context: int) -> "tuple[Any, Slot]":
    """(runner, slot that has read the haystack of ``context`` tokens)."""
    from qsa.engine import Slot
    from qsa.engine.graph_runner import make_runner

    model = golden_model.model(backend)
    ids = np.frombuffer(text.haystack(context, DEPTHS)[0], np.uint8).astype(np.int64)
    runner, slot = make_runner(model), Slot(model, context + 2 * CHUNK)
    for first in range(0, len(ids), CHUNK):
        runner.run([ids[first : first + CHUNK]], [slot])
    return runner, slot


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparison of one case."""
    runner, read = _read(backend, recipe["context"])
    needle = text.haystack(recipe["context"], DEPTHS)[1][recipe["depth"]]
    slot = read.fork()
    rows, answer = np.frombuffer(needle.question.encode(), np.uint8).astype(np.int64), bytearray()
    for _ in range(ANSWER):
        token = int(runner.logits(runner.run([rows], [slot]).x[-1:])[0].argmax())
        answer.append(token)
        rows = np.array([token])
    first_line = answer.decode(errors="replace").splitlines()[0] if answer.strip() else ""
    found = needle.word.encode() in bytes(answer)
    name = f"needle at {recipe['depth']} % of {recipe['context']}"
    notes = (f"question: {needle.question}", f"hidden: {needle.word}; answer: {first_line}")
    return [verdict(name, int(not found), 0, "a code word is in the answer or it is not", size=1, notes=notes)]
