"""A round as programs of the backend: drafts, the window that verifies them and its draws stay on the device.

One program moves the host's arrays, keeps the state for a rollback, drafts token after token with the model's draft
layer (each drawn and put where it is read, ``kernels/cuda/rounds``), runs the window over them, and draws or judges its
rows. The host waits once, for the tokens. What it keeps of them is told to two more programs, for which it does not
wait: one rolls the other rows back, one appends the kept rows' cells to the draft layer and keeps the layer's output
where the next round reads it.

Which rows are used and which are kept is read on the device, so one set of programs serves every outcome, and rounds of
fewer rows or slots. The bytes are those of the calls one by one: a row depends on the earlier rows of its own sequence
alone, and cells beyond a sequence's end are written again before they are read.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qsa.model import Inputs, Output, qsa
from qsa.reference.model.ple import hash_constants
from qsa.reference.sampler import DRAFTER

from ..draws.device_sampling import MIN_HISTORY
from ..slots.draft_cache import DraftCells
from ..slots.slot import draft_cells
from .graphs import captured_objects, device_arrays
from .round_layout import MAX_SLOTS, RoundLayout, RoundSlot, chosen_rows

if TYPE_CHECKING:
    from .graph_runner import GraphRunner


class RoundTokens(NamedTuple):
    """What one slot's rows gave, on the host.

    drafts    int32 [rows - 1], ids or error codes
    tokens    int32 [rows], ids or error codes: the rows' own draws; under rejection sampling what a row emits
    accepted  bool [rows], whether the row's draft stands; None unless drafts are judged
    """

    drafts: np.ndarray
    tokens: np.ndarray
    accepted: np.ndarray | None


class RoundGraph:
    """The programs of a round over fixed slots, with a largest number of rows of each: ``most`` of its ``parts``."""

    def __init__(self, runner: "GraphRunner", parts: Sequence[RoundSlot]) -> None:
        model, self.runner = runner.model, runner
        self.model, self.rounds, self.parts = model, model.backend.rounds, list(parts)
        self.slots = [part.slot for part in parts]
        self._index = {id(slot): index for index, slot in enumerate(self.slots)}
        self.states = [slot.state for slot in self.slots]
        drafting = [index for index, part in enumerate(parts) if part.drafts]
        self.layout = RoundLayout([part.most for part in parts], drafting, [part.rejection for part in parts])
        self.judges = any(part.rejection and part.most > 1 for part in parts)
        self._absent = [
            self.layout.absent(index, part.slot, part.drafts, part.rejection) for index, part in enumerate(parts)
        ]
        self._history = max(MIN_HISTORY, *(len(part.draw.history) for part in parts))
        self.cells: list[DraftCells] = [draft_cells(self.slots[index]) for index in drafting]
        self.can_roll_back = self.layout.rows > 1
        """Whether the state is kept: a single row of a single slot is never rejected, and always used."""
        self.captured = self._captured()
        self._place()
        if self.can_roll_back:
            # The tables hold addresses alone.
            self._saved = [(array, array.copy()) for state in self.states for array in device_arrays(state)]
            self._save = self.rounds.array_table(self._saved)
            self._restore = self.rounds.array_table([(saved, array) for array, saved in self._saved])
        arrays = self._arrays(self.parts)
        self.staging = runner.staging(arrays)
        # What does not change from round to round is written once.
        self.staging.fill(arrays)
        self.program = runner.program(self._record)
        self._rollback: Any = None
        self._append: Any = None
        self._generation = 0
        steps = np.zeros((self.layout.rows, 4), np.int32)
        self._kept = runner.staging({"bounds": np.zeros(2 * MAX_SLOTS, np.int64), "steps": steps})
        none = np.zeros(len(drafting), np.int32)
        self._next = runner.staging({"ids": np.zeros(len(self.layout.dense), np.int64), "last": none, "line": none})

    def _captured(self) -> list[Any]:
        tips = [part for cells in self.cells for part in (cells.state.kv, *cells.tip())]
        return [*captured_objects(self.states), *tips]

    def is_current(self) -> bool:
        """Whether the slots still have the arrays that the programs use."""
        now = self._captured()
        return len(now) == len(self.captured) and all(map(operator.is_, now, self.captured))

    def covers(self, parts: Sequence[RoundSlot]) -> bool:
        """Whether the programs serve a round over ``parts``, in whatever order."""
        at = [self._index.get(id(part.slot), -1) for part in parts]
        if min(at) < 0:
            return False
        held = [(self._absent[index], self.layout.counts[index]) for index in at]
        longest = max(len(part.draw.history) for part in parts)
        return longest <= self.staging.arrays["history"].shape[1] and all(
            part.rows <= count and (part.drafts, part.rejection) == (own.drafts, own.rejection)
            for part, (own, count) in zip(parts, held, strict=True)
        )

    def _place(self) -> None:
        """Arrays on the device that stay: slots of rows, which rows are judged, where the layer's outputs lie."""
        config, device, layout = self.model.config, self.model.to_device, self.layout
        self._row_slots = device(layout.slot_of)
        self._row_places = device(np.stack([layout.slot_of, layout.offsets], 1))
        self._lines, self._which = device(layout.lines), device(layout.which)
        self._dense_slots = device(layout.dense_slots)
        self._step_slots = [device(np.arange(len(active), dtype=np.int32)) for active in layout.steps]
        self._hashes = {
            index: self.rounds.hash_table(hash_constants(config, layer.ple_index), config.eos_token_id)
            for index, layer in enumerate(self.model.layers)
            if layer.ple
        }
        self._ids = device(np.zeros(len(layout.chain), np.int64))
        self._seen = self.runner.pinned((len(layout.chain),), np.int32)
        self._drawn = self.runner.pinned((layout.rows,), np.int32)
        self._accepted = self.runner.pinned((layout.rows,), np.int32)
        if not self.cells:
            return
        tips = [cells.tip() for cells in self.cells]
        if layout.steps:
            self._tips = [self.rounds.gather_table([tips[k][part] for k in layout.steps[0]]) for part in (0, 1)]
        self._targets = [self.rounds.scatter_table([tip[part] for tip in tips]) for part in (0, 1)]
        self._last_rows = self.rounds.rows_table(len(tips), 4 * config.hidden_size)

    def _arrays(self, parts: Sequence[RoundSlot]) -> dict[str, np.ndarray]:
        """The inputs of a round on the host: argument name -> array."""
        windows = [cells.window for cells in self.cells]
        model = self.model
        given = parts, self.states, windows, list(self._hashes), model.geometry, model.rule, self._history
        return self.layout.arrays(*given)

    def _record(self) -> tuple[Output, list]:
        self.staging.move()
        arrays, model, rounds = self.staging.arrays, self.model, self.rounds
        if self.can_roll_back:
            rounds.copies(self._save)
        listed = self._draft(arrays) if self.layout.chain else None
        ngrams = {
            index: rounds.ngram_rows(arrays["ids"], arrays[f"before.{index}"], self._row_places, table)
            for index, table in self._hashes.items()
        }
        used = rounds.RowBounds(arrays["bounds"], max(self.layout.counts))
        rows = qsa.Rows(arrays["steps"], arrays["table"], self._row_slots, self.layout.spans, None, used)
        journal: list = []
        output = model.compute(Inputs(arrays["ids"], ngrams, rows), self.states, journal)
        draws = [arrays[name] for name in ("options", "history", "lengths", "seeds", "positions")]
        sample, tokens = self.runner.sampler.sample, self._drawn[1]
        if listed is None or not self.judges:
            sample(model.logits(output.x), *draws, slots=self._row_slots, tokens=tokens)
            return output, journal
        own = self.runner.sampler.new_lists(len(rows.steps))
        drawn = sample(model.logits(output.x), *draws, slots=self._row_slots, lists=own)
        judged = arrays["seeds"], arrays["positions"], tokens, self._accepted[1]
        rounds.judge(own, drawn, arrays["drafts"], listed, self._which, *judged)
        return output, journal

    def _draft(self, arrays: dict[str, Any]) -> Any:
        """Draft token after token; returns the sampler's lists of all drafts."""
        model, draft, sampler = self.model, self.model.draft_layer, self.runner.sampler
        config, lists = model.config, sampler.new_lists(len(self.layout.chain))
        tokens = np.empty_like(self._which, shape=(len(self.layout.chain),))
        first = len(self.layout.steps[0])
        logits = np.empty_like(arrays["table"], shape=(first, config.vocab_size))
        streams = np.empty_like(arrays["table"], shape=(first, config.hc_count, config.hidden_size))
        for table, target in zip(self._tips, (logits, streams), strict=True):
            self.rounds.copies(table, target=target)
        begin, run = 0, 0
        for j, active in enumerate(self.layout.steps):
            part = slice(begin, begin + len(active))
            if j:
                before = self.layout.steps[j - 1]
                streams = chosen_rows(streams, [before.index(k) for k in active])
                ids = chosen_rows(self._ids[begin - len(before) : begin], [before.index(k) for k in active])
                taken = slice(run, run := run + len(active))
                spans = [slice(i, i + 1) for i in range(len(active))]
                rows = qsa.Rows(
                    arrays["run.steps"][taken], arrays["run.table"][taken], self._step_slots[j], spans, None
                )
                states = [self.cells[k].state for k in active]
                width = max(self.cells[k].retained_cells for k in active)
                x, streams = draft.compute(streams, ids, rows, states, width)
                logits = model.logits(x)
            sampler.sample(
                logits,
                arrays["chain.options"][part],
                arrays["history"],
                *(arrays[f"chain.{name}"][part] for name in ("lengths", "seeds", "positions")),
                slots=self._lines[part],
                purpose=DRAFTER,
                tokens=tokens[part],
                lists=type(lists)(*(array[part] for array in lists)),
            )
            self.rounds.push_drafts(
                tokens[part],
                arrays["chain.places"][part],
                self._ids[part],
                arrays["ids"],
                arrays["history"],
                arrays["drafts"],
                self._seen[1][part],
            )
            begin += len(active)
        return lists

    def run(self, parts: Sequence[RoundSlot]) -> list[RoundTokens]:
        """Run a round over ``parts``, which the programs cover; returns what every slot's rows gave once it is there.
        :meth:`finish` must follow.

        When the model raises, the states are as before, except without rollback, and the error is raised.
        """
        self._at = [self._index[id(part.slot)] for part in parts]
        self.parts = list(self._absent)
        for index, part in zip(self._at, parts, strict=True):
            self.parts[index] = part
        # What the last round's other programs still do is ordered before this one's on the device.
        self.program.wait()
        for cells, index in zip(self.cells, self.layout.drafting, strict=True):
            if self.parts[index].rows:
                cells.ensure_pages(self.slots[index].n + self.parts[index].rows)
                cells.load_tip()
        arrays = self._arrays(self.parts)
        self._steps = arrays["steps"]
        self.staging.fill(arrays)
        try:
            self.program()
            # While the device computes: what the next round needs of the host, should all rows be kept.
            self.model.prepare_inputs(self.states, 2 * max(self.layout.counts))
            starts = tuple(state.n + part.rows for state, part in zip(self.states, self.parts, strict=True))
            windows = tuple(cells.window for cells in self.cells)
            self.layout.prepare(starts, windows, self.model.geometry, self.model.rule)
            self.program.wait()
        except Exception:
            if not self.can_roll_back:
                raise
            self.runner.program(lambda: self.rounds.copies(self._restore))()
            raise
        return self._tokens()

    @property
    def spans(self) -> list[slice]:
        """The slice of the rows of every slot of the last round."""
        begins = (self.layout.spans[index].start for index in self._at)
        return [slice(begin, begin + self.parts[i].rows) for begin, i in zip(begins, self._at, strict=True)]

    def _tokens(self) -> list[RoundTokens]:
        tokens, accepted = self._drawn[0].copy(), self._accepted[0].astype(bool)
        drafts = np.empty(len(tokens), np.int32)
        drafts[self.layout.chain] = self._seen[0]
        found = []
        for index, span in zip(self._at, self.spans, strict=True):
            part = self.parts[index]
            judged = accepted[span] if part.rejection and part.rows > 1 else None
            found.append(RoundTokens(drafts[span.start : span.stop - 1], tokens[span], judged))
        return found

    def finish(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep the first rows of every slot of the round, as many as it has tokens in ``kept``: the token after each
        kept row.

        The other rows are rolled back, and the kept ones become cells of the draft layer. Returns before the device has
        done so.
        """
        if self._generation != self.program.generation:
            self._rollback, self._append = self.runner.program(self._roll_back), self.runner.program(self._append_cells)
            self._generation = self.program.generation
        layout, keep = self.layout, np.zeros(len(self.slots), np.int64)
        keep[self._at] = [len(tokens) for tokens in kept]
        if any(count < part.rows for count, part in zip(keep, self.parts, strict=True)):
            self._rollback.wait()
            steps = self._steps.copy()
            steps[layout.offsets >= keep[layout.slot_of], 0] = -1
            self._kept.fill({"bounds": layout.bounds(keep.tolist()), "steps": steps})
            self._rollback()
        ids = np.zeros(layout.rows, np.int64)
        for index, tokens in zip(self._at, kept, strict=True):
            begin, count = layout.spans[index].start, len(tokens)
            ids[begin : begin + count] = tokens
            self.states[index].advance(np.array([self.parts[index].last, *tokens[: count - 1]], np.int64))
        if self.cells:
            self._append.wait()
            own = keep[layout.drafting]
            # Nothing is written in the place of a slot that took no part.
            last, line = np.where(own > 0, [layout.dense_begins + own - 1, np.arange(len(own))], -1)
            self._next.fill({"ids": ids[layout.dense], "last": last, "line": line})
            self._append()
            for cells, count in zip(self.cells, own.tolist(), strict=True):
                if count:
                    cells.n += count
                    cells.take_tip()

    def _roll_back(self) -> None:
        self._kept.move()
        arrays = self._kept.arrays
        self.rounds.copies(self._restore)
        bounds = self.rounds.RowBounds(arrays["bounds"], max(self.layout.counts))
        self.model.recompute_kept(self.program.result[1], self.layout.spans, bounds, arrays["steps"], self.states)

    def _append_cells(self) -> None:
        """The cells of all rows: those of rows that are not kept lie beyond the sequence's end."""
        self._next.move()
        arrays, window, draft = self._next.arrays, self.staging.arrays, self.model.draft_layer
        streams = chosen_rows(self.program.result[0].streams, self.layout.dense)
        steps, table = (chosen_rows(window[name], self.layout.dense) for name in ("dense", "table"))
        rows = qsa.Rows(steps, table, self._dense_slots, self.layout.dense_spans, None)
        width = max(cells.retained_cells for cells in self.cells)
        states = [cells.state for cells in self.cells]
        x, streams = draft.compute(streams, arrays["ids"], rows, states, width)
        last = np.empty_like(x, shape=(len(states), x.shape[1]))
        self.rounds.copies(self._last_rows, arrays["last"], x, last)
        logits = self.model.logits(last)
        self.rounds.copies(self._targets[0], arrays["line"], logits)
        self.rounds.copies(self._targets[1], arrays["last"], streams)
