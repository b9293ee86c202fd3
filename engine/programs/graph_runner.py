"""A runner that replays captured graphs, for backends that have programs (``kernels/cuda/device/graphs.py``).

Windows and draft calls of at most 8 rows of a slot are programs (``graphs.py``), one for each set of slots and row
counts. So are whole rounds of drafts (``round_graph.py``). Larger calls (prompts) run as in the plain runner. The bytes
are the same either way.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qsa.kernels.switches import switches
from qsa.model import Output, TextModel

from ..draws.device_sampling import MIN_HISTORY
from ..request import BATCH_ROWS, MAX_ROWS
from ..runner import Runner, prepared_cells
from ..slots.slot import Slot
from .graphs import DraftGraph, Snapshot, WindowGraph
from .round_graph import RoundGraph
from .round_layout import RoundSlot

MAX_GRAPHS = 128
"""Largest number of graphs that are kept. Beyond it the least recently used one is dropped."""


OWN_AFTER = 24
"""Rounds of the same slots that programs of more slots or rows serve before they get programs of their own. Making
them takes 20 to 43 ms on an H200, and 8 slots' programs take a millisecond more than one slot's."""

MAX_SERVED = 1024
"""Sets of slots of which it is known how many rounds they were served by others' programs."""


class GraphRunner(Runner):
    """A :class:`Runner` whose windows and draft calls are programs of the backend. It belongs to one thread.

    ``model.backend`` has ``Program``, ``Staging``, ``pinned`` and ``program_stream``. The result of a call is valid
    until the next call of the same shape over the same slots, a journal until the next window. ``graphs``: key ->
    graph, the most recently used one last.
    """

    batches = True

    def __init__(self, model: TextModel, max_graphs: int = MAX_GRAPHS) -> None:
        super().__init__(model)
        backend = model.backend
        self.staging, self.stream = backend.Staging, backend.program_stream()
        self.pinned = backend.pinned
        self._program, self._max_graphs = backend.Program, max_graphs
        self.graphs: OrderedDict[tuple, Any] = OrderedDict()
        self._served: dict[tuple, int] = {}
        self._pending_snapshots: list[Snapshot] = []
        self._recent_logits: deque[tuple[Any, Any]] = deque(maxlen=2)
        self._last_window: tuple[list | None, WindowGraph] | None = None

    @property
    def captures_rounds(self) -> bool:
        """Whether the backend has what a round needs on the device."""
        has = hasattr(self.model.backend, "rounds") and self.sampler is not None
        return has and self.model.config.vocab_size <= self.sampler.MOST_VOCAB

    def round(self, parts: Sequence[RoundSlot]) -> RoundGraph:
        """Programs that serve a round over ``parts``.

        They take many times as long to make as a round takes. So where others serve the round, it gets programs of its
        own only after :data:`OWN_AFTER` rounds of its slots.
        """
        self.follow_switches()
        longest = max(MIN_HISTORY, *(len(part.draw.history) for part in parts))
        shape = tuple(sorted((id(part.slot.state), part.most, part.drafts, part.rejection) for part in parts))
        key = "round", shape, (longest - 1).bit_length()
        if (*key, *self._circumstances()) not in self.graphs:
            others = self._covering(parts)
            self._served[key] = self._served.pop(key, 0) + 1
            if len(self._served) > MAX_SERVED:
                del self._served[next(iter(self._served))]
            if others is not None and self._served[key] <= OWN_AFTER:
                self.graphs.move_to_end(others)
                return self.graphs[others]
        return self._graph(key, lambda: RoundGraph(self, parts))

    def _covering(self, parts: Sequence[RoundSlot]) -> tuple | None:
        """The key of the smallest programs that serve a round over ``parts``; None where there are none."""
        now = self._circumstances()
        found = [
            (graph.layout.rows, key)
            for key, graph in self.graphs.items()
            if key[0] == "round" and key[-len(now) :] == now and graph.covers(parts) and graph.is_current()
        ]
        return min(found, key=lambda each: each[0])[1] if found else None

    def _circumstances(self) -> tuple:
        """What decides, beside its key, which launches a graph has."""
        return self.model.batch_windows, switches()

    def program(self, record: Callable[[], Any]) -> Any:
        """A program of ``record`` on the runner's stream."""
        return self._program(record, self.stream, self.clock)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """A float32 array of zeros on the backend."""
        return self.model.to_device(np.zeros(shape, np.float32))

    def _graph(self, key: tuple, make: Callable[[], Any]) -> Any:
        """The graph of ``key``; ``make()`` creates it when there is none, or when its slots have other arrays now."""
        key = (*key, *self._circumstances())
        graph = self.graphs.pop(key, None)
        if graph is None or not graph.is_current():
            graph = make()
        self.graphs[key] = graph
        while len(self.graphs) > self._max_graphs:
            self.graphs.popitem(last=False)
        return graph

    def run(self, ids: Sequence[Any], slots: Sequence[Slot], journal: list | None = None) -> Output:
        """As :meth:`Runner.run`."""
        self.follow_switches()
        snapshots, self._pending_snapshots = self._pending_snapshots, []
        if sum(map(len, ids)) > _most_rows(slots):
            for snapshot in snapshots:
                snapshot.copy_arrays()
            return super().run(ids, slots, journal)
        states = [slot.state for slot in slots]
        inputs = self.model.inputs(ids, states)
        can_roll_back = bool(snapshots)
        key = "window", tuple(map(len, ids)), tuple(map(id, states)), can_roll_back
        window = self._graph(key, lambda: WindowGraph(self, inputs, slots, can_roll_back))
        result = window.run(inputs)
        # While the device computes the window: what the next one needs of the host.
        self.model.prepare_inputs(states, MAX_ROWS)
        arrays = dict(zip(map(id, states), result.snapshots, strict=True)) if can_roll_back else {}
        for snapshot in snapshots:
            snapshot.window, snapshot.arrays = window, arrays[id(snapshot.slot.state)]
        if journal is not None and can_roll_back:
            journal += [*result.journal, inputs.ids]
        self._last_window = journal, window
        self._recent_logits.append((result.output.x, result.logits))
        return result.output

    def logits(self, x: Any) -> np.ndarray:
        """As :meth:`Runner.logits`. The output rows of a recent program have their logits already."""
        for known, logits in self._recent_logits:
            if known is x:
                with self.clock.waiting():
                    return self.host(logits)
        return super().logits(x)

    def _sampled(self, x: Any, arrays: Mapping[str, np.ndarray]) -> Any:
        window = None if self._last_window is None else self._last_window[1]
        if window is None or window.program.result.output.x is not x:
            return super()._sampled(x, arrays)
        return window.draw(arrays)

    def snapshot(self, slot: Slot) -> Snapshot:
        """As :meth:`Runner.snapshot`. The run that follows copies the device arrays."""
        snapshot = Snapshot.of(slot)
        self._pending_snapshots.append(snapshot)
        return snapshot

    def restore(self, slot: Slot, snapshot: Snapshot) -> None:
        """As :meth:`Runner.restore`."""
        self._pending_snapshots = [pending for pending in self._pending_snapshots if pending is not snapshot]
        snapshot.restore()

    def replay(self, journal: list, rows: slice, slot: Slot) -> None:
        """As :meth:`Runner.replay`."""
        if self._last_window is not None and self._last_window[0] is journal:
            self._last_window[1].replay(rows, slot.state)
        else:
            super().replay(journal, rows, slot)

    def draft(
        self, streams: Any, next_ids: Any, starts: Sequence[int], counts: Sequence[int], slots: Sequence[Slot]
    ) -> Output:
        """As :meth:`Runner.draft`."""
        self.follow_switches()
        if sum(counts) > _most_rows(slots):
            return super().draft(streams, next_ids, starts, counts, slots)
        cells = prepared_cells(slots, starts, counts)
        windows = [slot_cells.window for slot_cells in cells]
        ids, rows = self.model.draft_layer.inputs(streams.shape, next_ids, starts, counts, windows)
        key = "draft", tuple(counts), tuple(id(slot_cells.state) for slot_cells in cells)
        graph = self._graph(key, lambda: DraftGraph(self, streams.shape, ids, rows, cells))
        output, logits = graph.run(streams, ids, rows)
        self._recent_logits.append((output.x, logits))
        return output


def _most_rows(slots: Sequence[Slot]) -> int:
    """Rows of a call over ``slots`` that is a program: those of a window, or of a batch window."""
    return MAX_ROWS if len(slots) == 1 else BATCH_ROWS


def make_runner(model: TextModel) -> Runner:
    """The runner for ``model``: a :class:`GraphRunner` where the backend has programs. The layers of the float
    arithmetic ask the host between launches, so they cannot be captured and use the plain :class:`Runner`."""
    captured = model.arithmetic == "exact" and hasattr(model.backend, "Program")
    return GraphRunner(model) if captured else Runner(model)
