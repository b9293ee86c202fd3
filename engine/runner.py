"""The runner: makes the engine's calls of the model.

``graph_runner.GraphRunner`` has the same methods and replays captured graphs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qsa.kernels.switches import switches
from qsa.model import Output, TextModel

from .draws.device_sampling import DrawParameters, draw_arrays, supported
from .slots.draft_cache import DraftCells
from .slots.slot import Slot, draft_cells
from .statistics import Clock


class Runner:
    """Calls of one ``model`` (:class:`~qsa.model.TextModel`) over slots. Between calls it keeps the
    time that they took, ``clock``, alone."""

    batches = False
    """Whether several slots are selected for and attended to in one call where the switch does not say."""

    def __init__(self, model: TextModel) -> None:
        self.model, self.clock = model, Clock()
        self.host = getattr(model.backend, "to_host", lambda x: x)
        """Copies a backend array to a NumPy array; returns NumPy arrays as they are."""
        self.sampler: Any = getattr(model.backend, "row_sampler", None)
        """The backend's sampler (``kernels/cuda/sampler.py``), or None when tokens are drawn on the host."""

    def run(self, ids: Sequence[Any], slots: Sequence[Slot], journal: list | None = None) -> Output:
        """Continue every slot by its entry of ``ids``, as :meth:`TextModel.run`. The output is on the backend."""
        self.follow_switches()
        with self.clock.calling():
            return self.model.run(ids, [slot.state for slot in slots], journal)

    def follow_switches(self) -> None:
        """Apply the current switches to the model."""
        chosen = switches().batch_qsa_attn
        self.model.batch_windows = self.batches if chosen is None else chosen

    def logits(self, x: Any) -> np.ndarray:
        """Logits float32 [n, vocab] on the host of output rows ``x`` [n, hidden] of the model or its draft layer."""
        with self.clock.calling():
            return self.host(self.model.logits(x))

    def draw(self, x: Any, draws: Sequence[DrawParameters | None], counts: Sequence[int]) -> list[np.ndarray | None]:
        """Draw tokens on the device, without copying logits to the host.

        x       output rows [n, hidden] of a run
        draws   draw parameters of every slot, or None for a slot whose tokens are not wanted; counts: rows of each

        Returns for every slot int32 [count] on the host, ids or error codes of ``reference.exact.sampler``. It is None
        where no draw was requested or the device does not support it; those are drawn from :meth:`logits`.
        """
        draws = supported(self.sampler, draws)
        tokens: Any = False
        if any(draw is not None for draw in draws):
            tokens = self._sampled(x, draw_arrays(draws, counts))
        if tokens is False:
            return [None] * len(draws)
        drawn, start = [], 0
        for draw, count in zip(draws, counts, strict=True):
            drawn.append(None if draw is None else tokens[start : start + count])
            start += count
        return drawn

    def _sampled(self, x: Any, arrays: Mapping[str, np.ndarray]) -> Any:
        """Tokens int32 [rows] on the host of rows ``x``, from inputs ``arrays`` on the host; False when refused."""
        placed = {name: self.model.to_device(array) for name, array in arrays.items()}
        with self.clock.calling():
            tokens = self.sampler.sample(self.model.logits(x), **placed)
            return False if tokens is False else self.host(tokens)

    def snapshot(self, slot: Slot) -> Any:
        """A snapshot of the slot's state, with which :meth:`restore` rolls back all later rows."""
        return slot.state.snapshot()

    def restore(self, slot: Slot, snapshot: Any) -> None:
        """Roll back every row since ``snapshot``."""
        slot.state.restore(snapshot)

    def replay(self, journal: list, rows: slice, slot: Slot) -> None:
        """Advance a restored slot by ``rows``, the first of its rows in the run that filled ``journal``, as
        :meth:`TextModel.replay`."""
        with self.clock.calling():
            self.model.replay(journal, rows, slot.state)

    def draft(
        self, streams: Any, next_ids: Any, starts: Sequence[int], counts: Sequence[int], slots: Sequence[Slot]
    ) -> Output:
        """Run the draft layer over cells of several slots. The arguments are those of :meth:`Draft.forward`.

        Returns an :class:`~qsa.model.Output` on the backend; its logits propose the token after each of ``next_ids``.
        """
        self.follow_switches()
        prepared = prepared_cells(slots, starts, counts)
        states, windows = [cells.state for cells in prepared], [cells.window for cells in prepared]
        with self.clock.calling():
            return Output(*self.model.draft_layer.forward(streams, next_ids, starts, counts, states, windows))


def prepared_cells(slots: Sequence[Slot], starts: Sequence[int], counts: Sequence[int]) -> list[DraftCells]:
    """The draft layer's cells of ``slots``, with pages for ``counts`` rows from the positions ``starts`` on."""
    prepared = [draft_cells(slot) for slot in slots]
    for cells, start, count in zip(prepared, starts, counts, strict=True):
        cells.ensure_pages(start + count)
    return prepared
