"""Token-by-token generation: the simplest loop, whose texts every window, draft, batch and schedule must reproduce.

The last row of the prompt gives the first token. Each token is then a row of its own, which gives the next token.
Nothing is drafted, and an end-of-text token does not end the loop.
"""

from typing import Any, NamedTuple

import numpy as np

from qsa.reference.exact.sampler import sample
from qsa.reference.sampler import GREEDY, Sampling

from .text_model import TextModel

CHUNK = 1024
"""Prompt rows of one run. No byte depends on it."""


class Text(NamedTuple):
    """A generated text.

    tokens  int32 [count]
    logits  float32 [vocab], the row of the last token, which predicts the next one; it depends on every cell and state
    """

    tokens: np.ndarray
    logits: np.ndarray


def generate(model: TextModel, ids: Any, count: int, options: Sampling = GREEDY, seed: int = 0) -> Text:
    """Continue ``ids`` [n] by ``count`` tokens with ``model``, an ``ExactModel`` on any backend.

    options, seed  of ``reference.exact.sampler.sample``; a token is drawn at the position of the row that predicts it

    Raises ValueError on bad ids or a count below 1.
    """
    if count < 1:
        raise ValueError(f"count = {count}: must be at least 1")
    ids = model.check_ids(ids)
    state = model.init_state(len(ids) + count)
    for first in range(0, len(ids), CHUNK):
        output = model.run([ids[first : first + CHUNK]], [state])
    history = ids.tolist()
    for _ in range(count):
        history.append(sample(model.logits(output.x[-1:])[0], history, options, seed, state.n - 1))
        output = model.run([np.array(history[-1:])], [state])
    return Text(np.array(history[len(ids) :], np.int32), model.logits(output.x[-1:])[0])
