"""The model's calls as captured graphs: a runner for backends that have programs (``kernels/cuda/device/graphs.py``).

A window of at most 8 rows over given slots, and a call of the draft layer over given slots, are programs: carried out
at first, captured at the second time, replayed from then on. Ids, n-grams, rotations and step records lie in fixed
buffers that are filled before every call; scores and selection are launched for the whole capacity and read from the
step records how far they go. So do snapshots and journals, from which rows are taken back: also by programs.
Calls of more rows (prompts) are made as the plain runner makes them. The bytes are the same either way.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np

from qsa.kernels.switches import switches
from qsa.model import qsa
from qsa.model.text_model import Inputs, Output

from .device_sampling import WindowDraws
from .request import MAX_ROWS
from .runner import Runner

MOST = 128
"""Calls of different shapes or slots that are kept; beyond, the one that has not been made for longest is given up."""


@dataclass
class Snapshot:
    """What a slot's state was on the host: ``n`` and ``tokens`` of every PLE; and where its arrays are kept.

    ``arrays`` belong to ``window``, None until a run has been made.
    """

    slot: object
    n: int
    tokens: list
    window: object = None
    arrays: list | None = None

    @classmethod
    def of(cls, slot):
        """The snapshot of ``slot`` before a run."""
        return cls(slot, slot.state.n, [one.tokens.copy() for one in _ples(slot.state)])

    def put_back(self):
        """The host's part of the state as it was."""
        self.slot.state.n = self.n
        for one, tokens in zip(_ples(self.slot.state), self.tokens, strict=True):
            one.tokens[:] = tokens


def _ples(state):
    return [one for one in state.ple if one is not None]


def _device_arrays(state):
    """The arrays of ``state.overwritten()`` that lie on the device: all but PLE's tokens."""
    tokens = {id(one.tokens) for one in _ples(state)}
    return [array for array in state.overwritten() if id(array) not in tokens]


def _held(state):
    """What a program over a model's state has the addresses of."""
    for one, history in zip(state.attention, state.ple, strict=True):
        yield from (one.kv, one.index) if isinstance(one, qsa.State) else (one.memory, one.past)
        if history is not None:
            yield history.past


class Window:
    """A window's program, of given ``counts`` of rows of given ``slots``; ``reversible``: with snapshots and a
    journal."""

    def __init__(self, runner, inputs, slots, reversible):
        self.model, self.reversible = runner.model, reversible
        self.states = [slot.state for slot in slots]
        self.held = [one for state in self.states for one in _held(state)]
        self.staging = runner.staging(self._arrays(inputs))
        self.spans, self.ids = inputs.rows.spans, None
        self.program = runner.program(self._record)
        self._runner, self._back, self._generation, self._draws = runner, {}, 0, {}

    @staticmethod
    def _arrays(inputs):
        rows, ngrams = inputs.rows, {f"ngrams.{layer}": rows for layer, rows in inputs.ngrams.items()}
        return {"ids": inputs.ids, "steps": rows.steps, "table": rows.table, "slots": rows.slots, **ngrams}

    def _record(self):
        self.staging.move()
        arrays, model = self.staging.arrays, self.model
        snapshots = [[array.copy() for array in _device_arrays(one)] for one in self.states if self.reversible]
        journal = [] if self.reversible else None
        ngrams = {int(name.split(".")[1]): rows for name, rows in arrays.items() if name.startswith("ngrams.")}
        rows = qsa.Rows(arrays["steps"], arrays["table"], arrays["slots"], self.spans, None)
        output = model.compute(Inputs(arrays["ids"], ngrams, rows), self.states, journal)
        return output, model.logits(output.x), journal, snapshots

    def fits(self):
        """Whether the states still have the arrays that the program has."""
        now = [one for state in self.states for one in _held(state)]
        return len(now) == len(self.held) and all(a is b for a, b in zip(now, self.held, strict=True))

    def run(self, inputs):
        """Run the window on ``inputs`` of its shape; returns (Output, logits, journal, snapshots)."""
        self.program.wait()
        self.staging.fill(self._arrays(inputs))
        self.ids = inputs.ids
        result = self.program()
        for mine, state in zip(self.spans, self.states, strict=True):
            state.advance(inputs.ids[mine])
        return result

    def draw(self, arrays):
        """Tokens int32 [rows] on the device that the last run's rows draw with the inputs ``arrays``, by a program."""
        shape, generation = arrays["history"].shape, self.program.generation
        draws = self._draws.get(shape)
        if draws is None or draws.generation != generation:
            draws = self._draws[shape] = WindowDraws(self._runner, self.program.result[1], arrays, generation)
        return draws.run(arrays)

    def take_back(self, state, snapshot):
        """Give the arrays of ``state`` the values of ``snapshot``, by a program."""

        def record():
            for array, earlier in zip(_device_arrays(state), snapshot, strict=True):
                array[...] = earlier

        self._once(("back", id(state)), record)

    def replay(self, rows, state):
        """Advance ``state`` by ``rows``, the first of its own, from the journal, by a program."""
        journal = self.program.result[2]

        def record():
            self.model.recompute(journal, rows, self.staging.arrays["steps"][rows], state)

        self._once((rows.start, rows.stop), record)
        state.advance(self.ids[rows])

    def _once(self, key, record):
        """Call the program of ``key``; those made for the arrays of an earlier result are of no use."""
        if self._generation != self.program.generation:
            self._back, self._generation = {}, self.program.generation
        if self._runner.stream is None:
            record()
            return
        if key not in self._back:
            self._back[key] = self._runner.program(record)
        self._back[key]()


class DraftCall:
    """A program of the draft layer: ``counts`` rows of given slots' cells."""

    def __init__(self, runner, shape, ids, rows, cells):
        self.model, self.states = runner.model, [one.state for one in cells]
        self.held, self.spans = [one.kv for one in self.states], rows.spans
        self.widest = max(one.most for one in cells)
        self.staging = runner.staging(self._arrays(ids, rows))
        self.streams = runner.empty(shape)
        self.program = runner.program(self._record)

    @staticmethod
    def _arrays(ids, rows):
        return {"ids": ids, "steps": rows.steps, "table": rows.table, "slots": rows.slots}

    def _record(self):
        self.staging.move()
        arrays = self.staging.arrays
        rows = qsa.Rows(arrays["steps"], arrays["table"], arrays["slots"], self.spans, None)
        output = Output(*self.model.draft.compute(self.streams, arrays["ids"], rows, self.states, self.widest))
        return output, self.model.logits(output.x)

    def fits(self):
        """Whether the cells still lie where the program has them."""
        return all(one.kv is kv for one, kv in zip(self.states, self.held, strict=True))

    def run(self, streams, ids, rows):
        """Run the layer; returns (Output, logits)."""
        self.program.wait()
        self.staging.fill(self._arrays(ids, rows))
        self.streams[...] = streams
        return self.program()


class GraphRunner(Runner):
    """A :class:`Runner` whose windows and draft calls are programs of the backend's. It belongs to one thread.

    ``model.backend`` has ``Program``, ``Staging`` and ``program_stream``. What a call returns holds until the next call
    of the same shape over the same slots; a journal until the next window. ``calls``: key -> :class:`Window` or
    :class:`DraftCall`, the last one made at the end.
    """

    def __init__(self, model, most=MOST):
        super().__init__(model)
        backend = model.backend
        self.staging, self.stream = backend.Staging, backend.program_stream()
        self._program, self._most = backend.Program, most
        self.calls, self._pending = OrderedDict(), []
        self._recent = deque(maxlen=2)
        self._last = None

    def program(self, record):
        """A program of ``record`` on the runner's stream."""
        return self._program(record, self.stream)

    def empty(self, shape):
        """A float32 array of the backend's."""
        return self.model.to_device(np.zeros(shape, np.float32))

    def _call(self, key, make):
        """The call of ``key``, made by ``make()`` when there is none or its slots have other arrays."""
        key = (*key, self.model.batch_windows, switches())
        call = self.calls.pop(key, None)
        if call is None or not call.fits():
            call = make()
        self.calls[key] = call
        while len(self.calls) > self._most:
            self.calls.popitem(last=False)
        return call

    def _pairs(self, result):
        self._recent.append((result[0].x, result[1]))
        return result[0]

    def run(self, ids, slots, journal=None):
        """As :meth:`Runner.run`."""
        self.follow_switches()
        pending, self._pending = self._pending, []
        if sum(map(len, ids)) > MAX_ROWS:
            for snapshot in pending:
                snapshot.arrays = [array.copy() for array in _device_arrays(snapshot.slot.state)]
            return super().run(ids, slots, journal)
        states = [slot.state for slot in slots]
        inputs = self.model.inputs(ids, states)
        key = "window", tuple(map(len, ids)), tuple(map(id, states)), bool(pending)
        window = self._call(key, lambda: Window(self, inputs, slots, bool(pending)))
        result = window.run(inputs)
        by_state = dict(zip(map(id, states), result[3], strict=True)) if pending else {}
        for snapshot in pending:
            snapshot.window, snapshot.arrays = window, by_state[id(snapshot.slot.state)]
        if journal is not None and pending:
            journal += [*result[2], inputs.ids]
        self._last = journal, window
        return self._pairs(result)

    def logits(self, x):
        """As :meth:`Runner.logits`; those of a program's own rows have been computed with them."""
        for known, logits in self._recent:
            if known is x:
                return self.host(logits)
        return super().logits(x)

    def _sampled(self, x, arrays):
        window = None if self._last is None else self._last[1]
        if window is None or window.program.result[0].x is not x:
            return super()._sampled(x, arrays)
        return window.draw(arrays)

    def snapshot(self, slot):
        """As :meth:`Runner.snapshot`; the arrays are kept by the run that follows."""
        self._pending.append(Snapshot.of(slot))
        return self._pending[-1]

    def restore(self, slot, snapshot):
        """As :meth:`Runner.restore`. Without arrays nothing was run."""
        self._pending = [one for one in self._pending if one is not snapshot]
        if snapshot.window is not None:
            snapshot.window.take_back(slot.state, snapshot.arrays)
        elif snapshot.arrays is not None:
            for array, earlier in zip(_device_arrays(slot.state), snapshot.arrays, strict=True):
                array[...] = earlier
        snapshot.put_back()

    def replay(self, journal, rows, slot):
        """As :meth:`Runner.replay`."""
        if self._last is not None and self._last[0] is journal:
            self._last[1].replay(rows, slot.state)
        else:
            super().replay(journal, rows, slot)

    def draft(self, streams, next_ids, starts, counts, slots):
        """As :meth:`Runner.draft`."""
        self.follow_switches()
        if sum(counts) > MAX_ROWS:
            return super().draft(streams, next_ids, starts, counts, slots)
        cells = [slot.draft for slot in slots]
        for one, start, count in zip(cells, starts, counts, strict=True):
            one.make_room(start + count)
        windows = [one.window for one in cells]
        ids, rows = self.model.draft.inputs(streams.shape, next_ids, starts, counts, windows)
        key = "draft", tuple(counts), tuple(id(one.state) for one in cells)
        call = self._call(key, lambda: DraftCall(self, streams.shape, ids, rows, cells))
        return self._pairs(call.run(streams, ids, rows))


def make_runner(model):
    """The runner for ``model``: with captured graphs where its backend has programs. The float arithmetic's layers are
    no program: they ask the host in between."""
    captured = model.arithmetic == "exact" and hasattr(model.backend, "Program")
    return GraphRunner(model) if captured else Runner(model)
