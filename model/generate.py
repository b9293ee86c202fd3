"""Text of a model token by token: the plainest loop, to which every window, draft, batch and schedule is held.

The prompt's last row gives the first token; each token is then a row of its own that gives the next. Nothing is
drafted, and an end of text ends nothing.
"""

from typing import NamedTuple

import numpy as np

from qsa.reference.exact.sampler import sample
from qsa.reference.sampler import GREEDY

CHUNK = 1024
"""Rows of a prompt run at a time: no byte depends on it."""


class Text(NamedTuple):
    """``tokens`` int32 [count], and ``logits`` float32 [vocab], the row of the last of them, which says what would come
    next: it hangs on every cell and every state."""

    tokens: np.ndarray
    logits: np.ndarray


def generate(model, ids, count, options=GREEDY, seed=0):
    """:class:`Text` of ``count`` tokens after ``ids`` [n] from ``model``, an ``ExactModel`` on any backend.

    options, seed  of ``reference.exact.sampler.sample``; a token's position is that of the row it is drawn from

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
