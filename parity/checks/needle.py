"""``needle``: facts hidden in filler at several depths, and a question at the end; the answer must hold the code word.

4K and 16K tokens are 16 and 64 times the golden model's budget of 256 cells, as 32K and 128K are of the real model's
2,048. Each length is read once; every question then goes on from a copy of the slot. In the exact arithmetic the
answers in 4K tokens are goldens, with the logits of every row.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qsa.golden.canonical import digest
from qsa.golden.families import needle, text

from ..backend import Backend
from ..compare.comparison import Comparison, verdict
from . import golden_model

if TYPE_CHECKING:
    from qsa.engine import Slot

LENGTHS = (4096, 16384)
CHUNK = 1024

OPERATIONS = {"find": {"context": LENGTHS, "depth": needle.DEPTHS}}


def cases(arithmetic: str, backend: Backend | None = None) -> Iterator[dict[str, Any]]:
    """The recipes of every case, in order."""
    for context in LENGTHS:
        for depth in needle.DEPTHS:
            yield {"op": "find", "context": context, "depth": depth}


def first_cases(arithmetic: str) -> Iterator[dict[str, Any]]:
    """The shorter text, at its middle."""
    yield {"op": "find", "context": LENGTHS[0], "depth": needle.DEPTHS[1]}


def _read(backend: Backend, ids: np.ndarray, page_size: int = 4, kv_format: str = "int8") -> "tuple[Any, Slot]":
    """(runner, slot that has read the haystack ``ids`` [n])."""
    from qsa.engine import Slot
    from qsa.engine.programs.graph_runner import make_runner

    model = golden_model.model(backend)
    runner, slot = make_runner(model), Slot(model, len(ids) + 2 * CHUNK, page_size, kv_format)
    for first in range(0, len(ids), CHUNK):
        runner.run([ids[first : first + CHUNK]], [slot])
    return runner, slot


@lru_cache(maxsize=1)
def _haystack(backend: Backend, context: int, page_size: int = 4, kv_format: str = "int8") -> "tuple[Any, Slot]":
    """:func:`_read` of the haystack of ``context`` tokens."""
    return _read(backend, text.ids_of(text.haystack(context, needle.DEPTHS)[0]), page_size, kv_format)


def _answer(runner: Any, read: "Slot", question: np.ndarray) -> needle.Answer:
    """The answer to ``question`` [m] of a copy of the slot ``read``."""
    slot, rows, tokens, logits = read.fork(), question, [], []
    for _ in range(needle.ANSWER):
        logits.append(runner.logits(runner.run([rows], [slot]).x[-1:])[0])
        tokens.append(int(logits[-1].argmax()))
        rows = np.array(tokens[-1:])
    return np.array(tokens, np.int32), np.stack(logits)


def answers(backend: Backend, ids: np.ndarray, questions: dict[int, np.ndarray]) -> dict[int, needle.Answer]:
    """The answers as ``golden.families.needle`` has them."""
    runner, read = _read(backend, ids)
    return {depth: _answer(runner, read, question) for depth, question in questions.items()}


def check(backend: Backend, recipe: dict[str, Any]) -> list[Comparison]:
    """The comparisons of one case."""
    context, depth = recipe["context"], recipe["depth"]
    held, (tokens, logits) = find(backend, context, depth)
    if backend.arithmetic == "exact" and context in needle.CONTEXTS:
        return [held, _golden(context, depth, tokens, logits)]
    return [held]


def find(
    backend: Backend, context: int, depth: int, page_size: int = 4, kv_format: str = "int8"
) -> tuple[Comparison, needle.Answer]:
    """Whether the answer holds the code word at ``depth`` percent of ``context`` tokens, and the answer."""
    hidden = text.haystack(context, needle.DEPTHS)[1][depth]
    read = _haystack(backend, context, page_size, kv_format)
    tokens, logits = _answer(*read, text.ids_of(hidden.question.encode()))
    answer = bytes(tokens.tolist())
    first_line = answer.decode(errors="replace").splitlines()[0] if answer.strip() else ""
    name = f"needle at {depth} % of {context}"
    notes = (f"question: {hidden.question}", f"hidden: {hidden.word}; answer: {first_line}")
    missing = int(hidden.word.encode() not in answer)
    held = verdict(name, missing, 0, "a code word is in the answer or it is not", size=1, notes=notes)
    return held, (tokens, logits)


def _golden(context: int, depth: int, tokens: np.ndarray, logits: np.ndarray) -> Comparison:
    """An answer, and the logits of its rows, against the record."""
    given = needle.make_inputs({"context": context})
    questions = {f"question-{depth}": ids for depth, ids in given["questions"].items()}
    record = golden_model.record("needle", {"context": context}, {"ids": given["ids"], **questions})
    pairs = (("answer", tokens), ("logits", logits))
    changed = [(name, record.outputs[f"{name}-{depth}"].hash, digest(array)) for name, array in pairs]
    lines = [f"{name}: hash {stored} became {got}" for name, stored, got in changed if stored != got]
    reason = "an answer has one right wording, and its logits depend on every cell"
    return verdict(f"golden {record.name}, {depth} %", len(lines), 0, reason, size=len(tokens) + 1, notes=lines)
