"""The model's calls as the engine makes them.

A runner that replays captured graphs takes this one's place by having the same methods.
"""

import numpy as np

from qsa.kernels.switches import switches
from qsa.model.text_model import Output

from .device_sampling import draw_arrays, taken


class Runner:
    """Calls of one ``model`` (``reference.exact.model.TextModel``) over slots. Nothing is kept between calls."""

    def __init__(self, model):
        self.model = model
        self.host = getattr(model.backend, "to_host", lambda x: x)
        """A backend array as a NumPy array; NumPy's own stay."""
        self.sampler = getattr(model.backend, "row_sampler", None)
        """The backend's sampler (``kernels/cuda/sampler.py``), or None: tokens are drawn on the host."""

    def run(self, ids, slots, journal=None):
        """Continue every slot by its entry of ``ids``; as ``TextModel.run``. Returns its Output, backend arrays."""
        self.follow_switches()
        return self.model.run(ids, [slot.state for slot in slots], journal)

    def follow_switches(self):
        """Have the model compute as the switches say now."""
        self.model.batch_windows = switches().batch_qsa_attn

    def logits(self, x):
        """Logits float32 [n, vocab] on the host of mixed rows ``x`` [n, hidden] of the model or of its draft layer."""
        return self.host(self.model.logits(x))

    def draw(self, x, draws, counts):
        """Tokens on the host that the rows ``x`` of a run draw on the device, without their logits coming along.

        draws   a :class:`~qsa.engine.draws.Draw` or None for every slot; counts: rows of each

        Returns for every slot int32 [count], ids or error codes of ``reference.exact.sampler``; or None, where nothing
        was asked or the device does not draw it: those are drawn from :meth:`logits`.
        """
        draws = taken(self.sampler, draws)
        tokens = False
        if any(one is not None for one in draws):
            tokens = self._sampled(x, draw_arrays(draws, counts))
        if tokens is False:
            return [None] * len(draws)
        parts = np.split(self.host(tokens), np.cumsum(counts)[:-1])
        return [None if one is None else part for one, part in zip(draws, parts, strict=True)]

    def _sampled(self, x, arrays):
        """Tokens int32 [rows] on the device of rows ``x``, inputs ``arrays`` on the host; False where refused."""
        placed = {name: self.model.to_device(array) for name, array in arrays.items()}
        return self.sampler.sample(self.model.logits(x), **placed)

    def snapshot(self, slot):
        """What :meth:`restore` needs to take back the rows that follow."""
        return slot.state.snapshot()

    def restore(self, slot, snapshot):
        """Take back every row since ``snapshot``."""
        slot.state.restore(snapshot)

    def replay(self, journal, rows, slot):
        """Advance a restored slot by the first of its rows in the run that filled ``journal``; as
        ``TextModel.replay``."""
        self.model.replay(journal, rows, slot.state)

    def draft(self, streams, next_ids, starts, counts, slots):
        """Run the draft layer over cells of several slots; arguments as ``mtp.Draft.forward``.

        Returns an :class:`~qsa.reference.exact.model.Output` whose logits propose the token after next_ids.
        """
        self.follow_switches()
        cells = [slot.draft for slot in slots]
        for one, start, count in zip(cells, starts, counts, strict=True):
            one.make_room(start + count)
        states, windows = [one.state for one in cells], [one.window for one in cells]
        return Output(*self.model.draft.forward(streams, next_ids, starts, counts, states, windows))
