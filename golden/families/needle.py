"""Goldens of needles: the answers to questions about facts hidden in 4,096 tokens of filler.

The reference reads the filler once, about a minute on one core, and answers every question from a copy of what it read.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..recipe import Recipe, check
from ..record import Produced
from . import text

DEPTHS = (10, 50, 90)
"""Where the needles lie, in percent of the filler."""

ANSWER = 32
"""Tokens of an answer: the longest code word has fewer."""

CHUNK = 256
"""Rows that the reference reads at a time. No byte depends on it."""

CONTEXTS = (4096,)
ALLOWED = {"context": CONTEXTS}

Answer = tuple[np.ndarray, np.ndarray]
"""(tokens int32 [ANSWER], logits float32 [ANSWER, vocab]: the rows that give them)."""

Compute = Callable[[np.ndarray, dict[int, np.ndarray]], dict[int, Answer]]
"""(filler int64 [n], depth -> question int64 [m]) -> depth -> its :data:`Answer`."""


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """``ids`` int64 [context], the filler with its needles, and ``questions``: depth -> int64 [m]. Raises CaseError on
    a recipe outside :data:`ALLOWED`."""
    check("needle", recipe, ALLOWED)
    filler, needles = text.haystack(recipe["context"], DEPTHS)
    questions = {depth: text.ids_of(needles[depth].question.encode()) for depth in DEPTHS}
    return {"ids": text.ids_of(filler), "questions": questions}


def produce(recipe: Recipe, compute: Compute | None = None) -> Produced:
    """Inputs ``ids``, ``weights`` and every ``question-D``; outputs ``answer-D`` int32 [ANSWER] and ``logits-D``
    float32 [ANSWER, vocab] for every depth D.

    compute  None: the reference
    """
    given = make_inputs(recipe)
    answers = (compute or _read)(given["ids"], given["questions"])
    outputs: dict[str, np.ndarray] = {}
    for depth, (tokens, logits) in answers.items():
        outputs |= {f"answer-{depth}": tokens, f"logits-{depth}": logits}
    questions = {f"question-{depth}": ids for depth, ids in given["questions"].items()}
    return Produced({"ids": given["ids"], "weights": text.weights_hash()} | questions, outputs, {})


def _read(ids: np.ndarray, questions: dict[int, np.ndarray]) -> dict[int, Answer]:
    model = text.reference()
    room = max(len(question) for question in questions.values()) + ANSWER
    read = model.init_state(len(ids) + room)
    for first in range(0, len(ids), CHUNK):
        model.run([ids[first : first + CHUNK]], [read])
    found = {}
    for depth, question in questions.items():
        state, rows, tokens, logits = copy.deepcopy(read), question, [], []
        for _ in range(ANSWER):
            logits.append(model.logits(model.run([rows], [state]).x[-1:])[0])
            tokens.append(int(logits[-1].argmax()))
            rows = np.array(tokens[-1:])
        found[depth] = np.array(tokens, np.int32), np.stack(logits)
    return found


def grid() -> Iterator[dict[str, Any]]:
    """A recipe for each length."""
    for context in CONTEXTS:
        yield {"context": context}
