"""Calls of the model over given slots as programs of the backend (``kernels/cuda/device/graphs.py``).

A program runs its launches the first time, captures them in a graph the second time, and replays the graph afterwards.
A graph replays fixed addresses, so ids, n-grams, rotations and step records lie in fixed buffers (staging) that are
filled before every call. Scores and selection are launched for the whole capacity, and the step records limit what
they read. Snapshots and journals are results of the program; rolling rows back is a program too.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qsa.model import Inputs, Output, State, ple, qsa

from ..draws.device_sampling import DrawGraph
from ..slots.draft_cache import DraftCells
from ..slots.slot import Slot

if TYPE_CHECKING:
    from .graph_runner import GraphRunner


@dataclass
class Snapshot:
    """A snapshot of a slot's state before a run.

    n       number of tokens; tokens: the token history of every PLE. These parts of the state are on the host
    window  the program whose result holds ``arrays``; None when the run was no program
    arrays  copies of the state's device arrays; None until the run
    """

    slot: Slot
    n: int
    tokens: list[np.ndarray]
    window: "WindowGraph | None" = None
    arrays: Any = None

    @classmethod
    def of(cls, slot: Slot) -> "Snapshot":
        """The snapshot of ``slot`` as it is now, without its device arrays."""
        return cls(slot, slot.state.n, [ple_state.tokens.copy() for ple_state in _ple_states(slot.state)])

    def copy_arrays(self) -> None:
        """Copy the state's device arrays, outside any program."""
        self.arrays = [array.copy() for array in device_arrays(self.slot.state)]

    def restore(self) -> None:
        """Restore the slot's state. Without ``arrays`` nothing was run, and only the host's part is restored."""
        state = self.slot.state
        if self.window is not None:
            self.window.restore_device(state, self.arrays)
        elif self.arrays is not None:
            for array, earlier in zip(device_arrays(state), self.arrays, strict=True):
                array[...] = earlier
        state.n = self.n
        for ple_state, tokens in zip(_ple_states(state), self.tokens, strict=True):
            ple_state.tokens[:] = tokens


def _ple_states(state: State) -> list[ple.State]:
    return [ple_state for ple_state in state.ple if ple_state is not None]


def device_arrays(state: State) -> list[Any]:
    """The arrays of ``state.overwritten()`` that are on the device: all except PLE's tokens."""
    tokens = {id(ple_state.tokens) for ple_state in _ple_states(state)}
    return [array for array in state.overwritten() if id(array) not in tokens]


def captured_objects(states: Sequence[State]) -> list[Any]:
    """The containers and arrays of the models' states whose addresses a program uses."""
    found: list[Any] = []
    for state in states:
        for attention in state.attention:
            if type(attention) is qsa.State:
                found += (attention.kv, attention.index)
            else:
                found += (attention.memory, attention.past)
        found += [ple_state.past for ple_state in state.ple if ple_state is not None]
    return found


class WindowRun(NamedTuple):
    """The results of a window's program: the model's ``output``, ``logits`` [rows, vocab], the ``journal`` of its
    layers, and for every slot the arrays of its ``snapshots``. The last two are empty without rollback."""

    output: Output
    logits: Any
    journal: list
    snapshots: list[list[Any]]


class WindowGraph:
    """The program of a window with fixed slots and a fixed number of rows of each.

    ``can_roll_back``: whether the program also takes snapshots and fills a journal.
    """

    def __init__(self, runner: "GraphRunner", inputs: Inputs, slots: Sequence[Slot], can_roll_back: bool) -> None:
        self.model, self.can_roll_back = runner.model, can_roll_back
        self.states = [slot.state for slot in slots]
        self.captured = captured_objects(self.states)
        self.staging = runner.staging(self._arrays(inputs))
        self.spans = inputs.rows.spans
        self.ids = inputs.ids
        self.program = runner.program(self._record)
        self._runner = runner
        self._rollbacks: dict[tuple, Any] = {}
        self._rollback_generation = 0
        self._draw_graphs: dict[tuple, DrawGraph] = {}

    @staticmethod
    def _arrays(inputs: Inputs) -> dict[str, np.ndarray]:
        rows, ngrams = inputs.rows, {f"ngrams.{layer}": rows for layer, rows in inputs.ngrams.items()}
        return {"ids": inputs.ids, "steps": rows.steps, "table": rows.table, "slots": rows.slots, **ngrams}

    def _record(self) -> WindowRun:
        self.staging.move()
        arrays, model = self.staging.arrays, self.model
        snapshots = [[array.copy() for array in device_arrays(state)] for state in self.states if self.can_roll_back]
        journal: list = []
        ngrams = {int(name.split(".")[1]): rows for name, rows in arrays.items() if name.startswith("ngrams.")}
        rows = qsa.Rows(arrays["steps"], arrays["table"], arrays["slots"], self.spans, None)
        inputs = Inputs(arrays["ids"], ngrams, rows)
        output = model.compute(inputs, self.states, journal if self.can_roll_back else None)
        return WindowRun(output, model.logits(output.x), journal, snapshots)

    def is_current(self) -> bool:
        """Whether the slots' states still have the arrays that the program uses."""
        now = captured_objects(self.states)
        return len(now) == len(self.captured) and all(map(operator.is_, now, self.captured))

    def run(self, inputs: Inputs) -> WindowRun:
        """Run the window on ``inputs`` of the program's shapes; advances the states."""
        self.program.wait()
        self.staging.fill(self._arrays(inputs))
        self.ids = inputs.ids
        result = self.program()
        for span, state in zip(self.spans, self.states, strict=True):
            state.advance(inputs.ids[span])
        return result

    def draw(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Tokens int32 [rows] on the host, drawn from the last run's rows with the sampler's inputs ``arrays``; False
        when the sampler refuses."""
        shape, generation = arrays["history"].shape, self.program.generation
        draw_graph = self._draw_graphs.get(shape)
        if draw_graph is None or draw_graph.generation != generation:
            draw_graph = DrawGraph(self._runner, self.program.result.logits, arrays, generation)
            self._draw_graphs[shape] = draw_graph
        return draw_graph.run(arrays)

    def restore_device(self, state: State, arrays: Sequence[Any]) -> None:
        """Copy the snapshot's ``arrays`` into the device arrays of ``state``, by a program."""

        def record() -> None:
            for array, earlier in zip(device_arrays(state), arrays, strict=True):
                array[...] = earlier

        self._run_rollback(("back", id(state)), record)

    def replay(self, rows: slice, state: State) -> None:
        """Advance ``state`` by ``rows``, the first of its own, from the journal, by a program."""
        journal = self.program.result.journal

        def record() -> None:
            self.model.recompute(journal, rows, self.staging.arrays["steps"][rows], state)

        self._run_rollback((rows.start, rows.stop), record)
        state.advance(self.ids[rows])

    def _run_rollback(self, key: tuple, record: Callable[[], None]) -> None:
        """Run the rollback program of ``key``. Those made for the arrays of an earlier result are dropped."""
        if self._rollback_generation != self.program.generation:
            self._rollbacks, self._rollback_generation = {}, self.program.generation
        if self._runner.stream is None:
            record()
            return
        if key not in self._rollbacks:
            self._rollbacks[key] = self._runner.program(record)
        self._rollbacks[key]()


class DraftGraph:
    """The program of a call of the draft layer over fixed slots' cells, with a fixed number of rows of each."""

    def __init__(
        self, runner: "GraphRunner", shape: tuple[int, ...], ids: np.ndarray, rows: qsa.Rows, cells: list[DraftCells]
    ) -> None:
        self.model, self.states = runner.model, [slot_cells.state for slot_cells in cells]
        self.captured, self.spans = [state.kv for state in self.states], rows.spans
        self.dense_width = max(slot_cells.retained_cells for slot_cells in cells)
        self.staging = runner.staging(self._arrays(ids, rows))
        self.streams = runner.zeros(shape)
        self.program = runner.program(self._record)

    @staticmethod
    def _arrays(ids: np.ndarray, rows: qsa.Rows) -> dict[str, np.ndarray]:
        return {"ids": ids, "steps": rows.steps, "table": rows.table, "slots": rows.slots}

    def _record(self) -> tuple[Output, Any]:
        self.staging.move()
        arrays = self.staging.arrays
        rows = qsa.Rows(arrays["steps"], arrays["table"], arrays["slots"], self.spans, None)
        draft = self.model.draft_layer
        output = Output(*draft.compute(self.streams, arrays["ids"], rows, self.states, self.dense_width))
        return output, self.model.logits(output.x)

    def is_current(self) -> bool:
        """Whether the cells still have the K/V that the program uses."""
        return all(state.kv is kv for state, kv in zip(self.states, self.captured, strict=True))

    def run(self, streams: Any, ids: np.ndarray, rows: qsa.Rows) -> tuple[Output, Any]:
        """Run the layer; returns its output and logits [rows, vocab] on the device."""
        self.program.wait()
        self.staging.fill(self._arrays(ids, rows))
        self.streams[...] = streams
        return self.program()
