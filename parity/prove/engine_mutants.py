"""Wrong engines: small changes of scheduling, rollback, slots, drafts and sampling, and what must find each.

Every check runs tiny texts on the exact NumPy backend, or a part of the engine by itself, against results that were
made by the unchanged code and by ``reference/exact`` (``engine_runs/model.py``). The table takes seconds.
"""

from collections.abc import Callable
from dataclasses import replace

from qsa.engine import engine, request, runner, scheduler, window
from qsa.engine.draws import device_sampling
from qsa.engine.programs import graph_runner, graphs
from qsa.engine.slots import identity, kv_state, memory, serialization, slot
from qsa.model import ple, state, text_model

from .engine_runs import draw_mutants, parts, slots, texts
from .patching import Row, edits, forgetful, run

CHECKS = texts.CHECKS | slots.CHECKS | parts.CHECKS

# fmt: off
MUTANTS = [
    *edits("scheduler", scheduler.Scheduler, "next_window",
        ("a slot is skipped in every window", "members[:MAX_ROWS]", "members[1:MAX_ROWS] or members", "scheduler"),
        ("slots behind the eighth never run", "(_slot(chosen[-1]) + 1) % self.slots", "0", "scheduler"),
        ("the first group is served always", "(self._next_group + 1) % self.groups", "0", "scheduler"),
        ("a request stands in a window twice", "members[:MAX_ROWS]", "(members * 2)[:2]", "scheduler", "one_text"),
    ),
    *edits("scheduler", scheduler, "allocate_rows",
        ("rows that are left go to one slot", "if left and allocated", "while left and allocated", "scheduler"),
        ("a window has one row too many", "left = rows - sum", "left = rows + 1 - sum", "scheduler"),
    ),
    *edits("scheduler", scheduler.Scheduler, "schedule_prefill",
        ("windows wait for every prompt", "return not self._prefill_next", "return True", "scheduler", "order"),
    ),
    *edits("scheduler", scheduler.Scheduler, "next_prompt",
        ("one prompt is read to its end first", "(_slot(request) + 1) % self.slots", "0", "scheduler", "order"),
    ),
    *edits("scheduler", scheduler.Scheduler, "free_slot",
        ("a slot that is taken is given away", "if slot not in occupied", "if True", "scheduler", "texts"),
        ("groups are filled one after the other", "(group_load[slot // self.group_size], slot)", "slot", "scheduler"),
    ),
    *edits("requests", engine.Engine, "_admit",
        ("the last request comes first", "self._waiting[0]", "self._waiting.rotate(1) or self._waiting[0]", "order"),
        ("a slot is not reset for its next request",
         "self.slots[index].reset(request.drafting.window if request.drafting else None)", "pass", "texts", "failures"),
    ),
    *edits("requests", engine.Engine, "_prefill_chunk",
        ("the first token follows the first row of a chunk", "output.x[-1:]", "output.x[:1]", "texts"),
        ("a short last chunk counts as whole", "+= len(ids)", "+= self.chunk", "texts"),
        ("a chunk begins a token early", "request.ids[request.prefilled :",
         "request.ids[max(0, request.prefilled - 1) :", "texts", "one_text"),
        ("the draft layer gets this token, not the next", "sequence[start + 1 : request.prefilled + 1]",
         "sequence[start : request.prefilled]", "draft_layer"),
    ),
    *edits("requests", engine.Engine, "_finish",
        ("a cancelled request that waits stays in the queue", "self._waiting.remove(request)", "pass", "failures"),
        ("an ended request keeps its slot", "del self._active[request.slot]", "pass", "texts", "failures"),
    ),
    *edits("requests", request.Request, "emit",
        ("stop ids are ignored", "if token in self.stop", "if False", "texts"),
        ("a window goes on behind the end of its text", "return count\n", "pass\n", "texts"),
        ("a token more than asked for", "== self.max_tokens", "> self.max_tokens", "texts", "admission"),
        ("the stop id ends the text of another reason", '"stop" if', '"length" if', "texts"),
    ),
    *edits("requests", request, "checked_request",
        ("capacity off by one: a text too long", "> capacity", "> capacity + 1", "admission"),
        ("capacity off by one: a text that fits is refused", "> capacity", ">= capacity", "admission", "texts"),
        ("stop ids outside the vocabulary are taken", "0, vocab - 1)", "0, vocab)", "admission"),
    ),
    *edits("requests", engine.Engine, "_requested_rows",
        ("rows beyond the end of the text", "request.max_tokens - len(request.tokens)", "MAX_ROWS", "counts"),
    ),
    *edits("rollback", window.WindowResult, "commit",
        ("rejected rows are kept", "if keep < count", "if False", "texts", "one_text"),
        ("a row too many is kept", "self.rows.start + keep)", "self.rows.start + keep + 1)", "texts", "one_text"),
        ("the rows of the first slot are replayed", "slice(self.rows.start, self.rows.start + keep)", "slice(0, keep)",
         "texts"),
        ("rolled back, and kept rows are lost", "self.runner.replay(", "(lambda *_: None)(", "texts", "one_text"),
        ("kept rows are run on top of the rejected ones", "self.runner.restore(self.slot, self.snapshot)", "pass",
         "texts", "one_text"),
    ),
    *edits("rollback", state.State, "snapshot",
        ("a snapshot shares its arrays", "array.copy()", "array", "texts", "one_text"),
    ),
    *edits("rollback", state.State, "overwritten",
        ("the indexer's tail is not rolled back", "yield attention.index.tail", "pass", "texts"),
        ("the convolution's inputs are not rolled back", "yield from (attention.memory, attention.past)",
         "yield attention.memory", "texts", "one_text"),
    ),
    *edits("rollback", window, "run_window",
        ("slots get one another's rows", "zip(slots, spans, streams, snapshots, drawn",
         "zip(slots, spans[::-1], streams, snapshots, drawn", "texts"),
        ("a failed window is not rolled back", "            runner.restore(slot, snapshot)", "            pass",
         "failures"),
    ),
    *edits("rollback", window, "_rerun",
        ("the draft that failed runs again", "ids = [ids[0][:1]]", "pass", "failures"),
    ),
    *edits("rollback", text_model.TextModel, "replay",
        ("replayed tokens are not remembered", "state.advance(journal[-1][rows])", "state.n += count", "texts",
         "one_text"),
    ),
    *edits("slots", slot.Slot, "reset",
        ("recurrent memories of an earlier text are kept", "self.state.restore(self._initial_state)",
         "self.state.n = 0", "slots", "texts"),
        ("the dead key of an earlier text is kept", "layer_state.index.dead[...] = 0", "pass", "slots"),
    ),
    *edits("slots", slot.Slot, "copy_from",
        ("a fork shares its memory", "self.state.restore(other.state.snapshot())", "self.state = other.state", "slots"),
        ("a fork has no indexer keys",
         "target.index.dead[...], target.index.pooled[...] = source.index.dead, source.index.pooled", "pass", "slots"),
        ("a fork has no K and V", "copy_pool(target.kv, source.kv)", "pass", "slots"),
    ),
    *edits("slots", slot.Slot, "restore",
        ("a restored slot has no indexer keys", "state.index.pooled[: len(pooled)] = self.device(pooled)", "pass",
         "slots"),
        ("a restored slot has no recurrent memories", "array[...] = stored if", "stored if", "slots"),
        ("a restored slot is a cell short", "self.state.n = n", "self.state.n = n - 1", "slots"),
        ("a restored slot's dead key is the old one", "state.index.dead[...] =", "_ =", "slots"),
    ),
    *edits("slots", slot.Slot, "_check_arrays",
        ("a saved slot of more cells than fit", "0 <= n <= self.capacity", "0 <= n", "slots"),
    ),
    *edits("slots", kv_state, "write_cells",
        ("cells are restored one place behind", "_offsets(stored, first, first + len",
         "_offsets(stored, first + 1, first + 1 + len", "slots"),
    ),
    *edits("slots", kv_state, "read_cells",
        ("cells are read one place behind", "_offsets(kv, first, end)", "_offsets(kv, first + 1, end + 1)", "slots"),
    ),
    *edits("slots", serialization, "unpack",
        ("a changed file is restored", 'raise ValueError("saved: not what was saved: its digest is another one")',
         "pass", "slots"),
        ("the origin of a file is not looked at", "_check_origin(found, origin)", "pass", "slots"),
    ),
    *edits("slots", serialization, "_check_origin",
        ("a file of other weights is restored", "zip(fields, values,", "zip(fields[:-1], values,", "slots"),
    ),
    *edits("slots", identity, "weights_digest",
        ("the identity has the beginnings of the weights", "piece.reshape(-1)", "piece[:1].reshape(-1)", "identities"),
    ),
    *edits("slots", identity, "configuration_digest",
        ("the identity leaves the selection rule out", " {model.rule}", "", "slots"),
    ),
    *edits("slots", memory, "memory_check",
        ("the memory check is ignored", "needed * slots > available", "False", "memory_limit"),
        ("memory for one slot of several", "needed * slots > available", "needed > available", "memory_limit"),
    ),
    *edits("slots", memory, "slot_bytes",
        ("memory of a page for each cell", "-(-capacity // page_size)", "capacity", "memory_limit"),
    ),
    *edits("n-grams", ple.State, "remember",
        ("the history keeps its oldest tokens", "[len(ids) :]", "[: len(self.tokens)]", "texts", "one_text"),
        ("the history is cut to the new tokens", "np.concatenate([self.tokens, ids])[len(ids) :]",
         "np.resize(ids[-len(self.tokens) :], len(self.tokens))", "texts", "one_text"),
    ),
    *edits("n-grams", ple, "_rows_of_one",
        ("n-grams go on behind the end of a text", "cut = cut or before[-back] == eos", "cut = False", "endings"),
        ("n-grams in the other order", "else before[-back])", "else before[back - 1])", "texts", "one_text"),
    ),
    *edits("runners", runner.Runner, "run",
        ("slots exchange their states", "[slot.state for slot in slots]", "[slot.state for slot in slots][::-1]",
         "texts"),
    ),
    *edits("runners", runner.Runner, "draw",
        ("tokens of the slot before", "start += count", "start += 0", "programs"),
    ),
    *edits("runners", device_sampling, "draw_arrays",
        ("padding rows are drawn like real ones", "np.full(len(counts), -len(slots), np.int64)",
         "np.full(len(counts), -1, np.int64)", "draws"),
        ("all rows have the first row's history", "lengths[slots] + offsets", "lengths[slots]", "draws", "programs"),
        ("rows have the seeds of their place", "seeds[slots]", "seeds[np.sort(slots)[::-1]]", "draws", "programs"),
    ),
    *edits("runners", graph_runner.GraphRunner, "_graph",
        ("one graph for every window", "key = (*key, *self._circumstances())", "key = key[:1]",
         "programs"),
    ),
    *edits("runners", graphs.WindowGraph, "run",
        ("a graph runs on the ids of its first call", "self.staging.fill(self._arrays(inputs))",
         "self.program.generation or self.staging.fill(self._arrays(inputs))", "programs"),
    ),
    *edits("runners", graphs.Snapshot, "restore",
        ("a graph's rollback forgets the n-grams", "ple_state.tokens[:] = tokens", "pass", "programs"),
    ),
    *edits("runners", graphs.WindowGraph, "replay",
        ("a graph's rollback replays the rows of its first slot", "self._run_rollback((rows.start, rows.stop), record)",
         "rows_ = rows; rows = slice(0, rows.stop - rows.start); self._run_rollback((rows_.start, rows_.stop), record)",
         "programs"),
    ),
    *edits("runners", graphs.DraftGraph, "run",
        ("a graph drafts from the streams of its first call", "self.streams[...] = streams",
         "self.program.generation or self.streams.__setitem__(..., streams)", "draft_programs"),
    ),
    *draw_mutants.MUTANTS,
]
# fmt: on
"""Every engine mutant, by kind."""


def _forget() -> None:
    """Drop what the engine keeps: option rows and identities of models."""
    device_sampling.option_row.cache_clear()
    identity._identities.clear()


def count(sample: bool = False) -> int:
    """The number of :func:`rows`."""
    return 1 + (len({mutant.kind for mutant in MUTANTS}) if sample else len(MUTANTS))


def rows(sample: bool = False, on_result: Callable[[Row], object] = lambda row: None) -> list[Row]:
    """The :class:`~.patching.Row` of every engine mutant, behind that of the unchanged code; with ``sample`` of one of
    each kind. ``on_result`` is called with each. A mutant whose words are gone from the source is not caught."""
    mutants = [replace(mutant, change=forgetful(mutant.change, _forget)) for mutant in MUTANTS]
    return run(mutants, CHECKS, sample, on_result)
