"""Wrong engines: small changes of scheduling, drafts, rollback, sampling, slots and states, and what must find each.

Every check runs tiny texts on the exact NumPy backend, or a part of the engine by itself, against results that were
made by the unchanged code and by ``reference/exact`` (``engine_model.py``). The table takes seconds.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qsa.engine import (
    device_sampling,
    draft,
    draft_cache,
    engine,
    graph_runner,
    graphs,
    identity,
    kv_state,
    memory,
    request,
    runner,
    sampling,
    scheduler,
    serialization,
    slot,
    tokenizer,
    window,
)
from qsa.kernels.cpu import speculative
from qsa.model import ple, state, text_model
from qsa.reference.exact import sampler

from . import engine_checks, engine_part_checks
from .patching import Change, CodeMutant, Row, edit, one_of_each_kind, patch, run

score = importlib.import_module("qsa.engine.score")
# As a name of its package it is the function.

CHECKS = engine_checks.CHECKS | engine_part_checks.CHECKS

MUTANTS: list[CodeMutant] = []
"""Every engine mutant, by kind."""


def _add(kind: str, owner: Any, function: str, *found: tuple[Any, ...]) -> None:
    """Enter mutants of one function: (name, words of the source, what stands there instead, checks)."""
    for name, old, new, *checks in found:
        change = edit(owner, function, (old, new))
        MUTANTS.append(CodeMutant(name, kind, _forgetful(change), tuple(checks)))


def _forgetful(change: Change) -> Change:
    """``change``, with what the engine keeps made anew before and after: option rows and identities of models."""

    def forget() -> None:
        device_sampling.option_row.cache_clear()
        identity._identities.clear()

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        with change():
            forget()
            yield
        forget()

    return changed


_add(
    "scheduler", scheduler.Scheduler, "next_window",
    ("a slot is skipped in every window", "members[:MAX_ROWS]", "members[1:MAX_ROWS] or members", "scheduler"),
    ("slots behind the eighth never run", "(_slot(chosen[-1]) + 1) % self.slots", "0", "scheduler"),
    ("the first group is served always", "(self._next_group + 1) % self.groups", "0", "scheduler"),
    ("a request stands in a window twice", "members[:MAX_ROWS]", "(members * 2)[:2]", "scheduler", "one_text"),
)  # fmt: skip
_add(
    "scheduler", scheduler, "allocate_rows",
    ("rows that are left go to one slot", "if left and allocated", "while left and allocated", "scheduler"),
    ("a window has one row too many", "left = rows - sum", "left = rows + 1 - sum", "scheduler"),
)  # fmt: skip
_add(
    "scheduler", scheduler.Scheduler, "schedule_prefill",
    ("windows wait for every prompt", "return not self._prefill_next", "return True", "scheduler", "order"),
)
_add(
    "scheduler", scheduler.Scheduler, "next_prompt",
    ("one prompt is read to its end first", "(_slot(request) + 1) % self.slots", "0", "scheduler", "order"),
)
_add(
    "scheduler", scheduler.Scheduler, "free_slot",
    ("a slot that is taken is given away", "if slot not in occupied", "if True", "scheduler", "texts"),
    ("groups are filled one after the other", "(group_load[slot // self.group_size], slot)", "slot", "scheduler"),
)  # fmt: skip
_add(
    "requests", engine.Engine, "_admit",
    ("the last request comes first", "self._waiting[0]", "self._waiting.rotate(1) or self._waiting[0]", "order"),
    ("a slot is not reset for its next request",
     "self.slots[index].reset(request.drafting.window if request.drafting else None)", "pass", "texts", "failures"),
)  # fmt: skip
_add(
    "requests", engine.Engine, "_prefill_chunk",
    ("the first token follows the first row of a chunk", "output.x[-1:]", "output.x[:1]", "texts"),
    ("a short last chunk counts as whole", "+= len(ids)", "+= self.chunk", "texts"),
    ("a chunk begins a token early", "request.ids[request.prefilled :", "request.ids[max(0, request.prefilled - 1) :",
     "texts", "one_text"),
    ("the draft layer gets this token, not the next", "sequence[start + 1 : request.prefilled + 1]",
     "sequence[start : request.prefilled]", "draft_layer"),
)  # fmt: skip
_add(
    "requests", engine.Engine, "_finish",
    ("a cancelled request that waits stays in the queue", "self._waiting.remove(request)", "pass", "failures"),
    ("an ended request keeps its slot", "del self._active[request.slot]", "pass", "texts", "failures"),
)  # fmt: skip
_add(
    "requests", request.Request, "emit",
    ("stop ids are ignored", "if token in self.stop", "if False", "texts"),
    ("a window goes on behind the end of its text", "return count\n", "pass\n", "texts"),
    ("a token more than asked for", "== self.max_tokens", "> self.max_tokens", "texts", "admission"),
    ("the stop id ends the text of another reason", '"stop" if', '"length" if', "texts"),
)  # fmt: skip
_add(
    "requests", request, "checked_request",
    ("capacity off by one: a text too long", "> capacity", "> capacity + 1", "admission"),
    ("capacity off by one: a text that fits is refused", "> capacity", ">= capacity", "admission", "texts"),
    ("stop ids outside the vocabulary are taken", "0, vocab - 1)", "0, vocab)", "admission"),
)  # fmt: skip
_add(
    "requests", engine.Engine, "_requested_rows",
    ("rows beyond the end of the text", "request.max_tokens - len(request.tokens)", "MAX_ROWS", "counts"),
)
_add(
    "acceptance", speculative, "emitted",
    ("one draft too many is accepted", "count = next((t", "count = next((t + 1", "one_text", "acceptance"),
    ("one draft too few is accepted", ", n)\n", ", max(0, n - 1))\n", "counts"),
)  # fmt: skip
_add(
    "acceptance", speculative, "match",
    ("every draft matches", "np.asarray(tokens) == np.asarray(drafts)", "np.asarray(drafts) >= 0", "one_text", "acceptance"),
    ("no draft matches", "== np.asarray(drafts)", "== -9", "counts", "acceptance"),
    ("a draft is held to the row before", "np.asarray(tokens) ==", "np.roll(tokens, 1) ==", "counts", "acceptance"),
)  # fmt: skip
_add(
    "acceptance", sampling, "_rejection",
    ("uniform numbers of the position before", "draw.position + np.arange", "draw.position - 1 + np.arange", "acceptance"),
    ("a seed of its own for rejection", "lists, draw.seed", "lists, draw.seed ^ 1", "acceptance"),
)  # fmt: skip


def _accepts_all(own: Any, drafts: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray]:
    accepted, tokens = speculative.judge(own, drafts, *rest)
    drafted = np.asarray(drafts) >= 0
    return accepted | drafted, np.where(drafted, drafts, tokens)


MUTANTS.append(
    CodeMutant("rejection sampling accepts always", "acceptance", patch(sampling, judge=_accepts_all), ("acceptance",))
)
_add(
    "acceptance", sampling, "_drafter_lists",
    ("drafts count as certain", "lists.counts[:] = counts", "lists.counts[:] = 0", "acceptance"),
    ("masses of the draft before", "lists.masses[row, : counts[row]] = distribution[1]",
     "lists.masses[row, : counts[row]] = distribution[1][::-1]", "acceptance"),
)  # fmt: skip
_add(
    "acceptance", sampling, "accept",
    ("a window that ran again draws for itself", "if len(drafts) >= rows", "if False", "acceptance"),
    ("more tokens than rows", "return accepted, ids[:rows]", "return accepted, ids", "acceptance"),
)
_add(
    "rollback", window.WindowResult, "commit",
    ("rejected rows are kept", "if keep < count", "if False", "texts", "one_text"),
    ("a row too many is kept", "self.rows.start + keep)", "self.rows.start + keep + 1)", "texts", "one_text"),
    ("the rows of the first slot are replayed", "slice(self.rows.start, self.rows.start + keep)", "slice(0, keep)", "texts"),
    ("rolled back, and kept rows are lost", "self.runner.replay(", "(lambda *_: None)(", "texts", "one_text"),
    ("kept rows are run on top of the rejected ones", "self.runner.restore(self.slot, self.snapshot)", "pass",
     "texts", "one_text"),
)  # fmt: skip
_add(
    "rollback", state.State, "snapshot",
    ("a snapshot shares its arrays", "array.copy()", "array", "texts", "one_text"),
)
_add(
    "rollback", state.State, "overwritten",
    ("the indexer's tail is not rolled back", "yield attention.index.tail", "pass", "texts"),
    ("the convolution's inputs are not rolled back", "yield from (attention.memory, attention.past)",
     "yield attention.memory", "texts", "one_text"),
)  # fmt: skip
_add(
    "rollback", window, "run_window",
    ("slots get one another's rows", "zip(slots, spans, streams, snapshots, drawn",
     "zip(slots, spans[::-1], streams, snapshots, drawn", "texts"),
    ("a failed window is not rolled back", "            runner.restore(slot, snapshot)", "            pass", "failures"),
)  # fmt: skip
_add(
    "rollback", window, "_rerun",
    ("the draft that failed runs again", "ids = [ids[0][:1]]", "pass", "failures"),
)
_add(
    "rollback", text_model.TextModel, "replay",
    ("replayed tokens are not remembered", "state.advance(journal[-1][rows])", "state.n += count", "texts", "one_text"),
)
_add(
    "draws", sampling, "draw_parameters",
    ("a draw at the position behind", "len(request.sequence) - 1", "len(request.sequence)", "texts", "acceptance"),
    ("one seed for all", "len(recent), request.seed", "len(recent), 0", "texts", "acceptance"),
    ("penalties do not see the drafts", "[*recent, *drafts]", "[*recent, *recent[-1:] * len(drafts)]", "texts", "acceptance"),
    ("penalties of the prompt alone", "_recent(request.sequence,", "_recent(request.ids,", "texts"),
)  # fmt: skip
_add(
    "draws", sampling, "_recent",
    ("penalties count a token less", "- options.last_n)", "- options.last_n + 1)", "options", "texts"),
    ("the whole history is none", "history if options.last_n < 0", "[] if options.last_n < 0", "options"),
)  # fmt: skip
_add(
    "draws", sampling, "_draw_rows",
    ("the drafter's stream for every draw", "purpose=purpose", "purpose=4", "texts", "acceptance"),
    ("the model's stream for drafts", "purpose=purpose", "purpose=PICK", "proposals"),
    ("all rows of a window draw alike", "positions = draw.position + rows", "positions = draw.position + 0 * rows",
     "texts", "acceptance"),
    ("rows of a window share a history", "draw.length + rows", "draw.length + 0 * rows", "texts", "acceptance"),
)  # fmt: skip
_add(
    "draws", sampling, "propose",
    ("the draft floor is never met", "probability(logits, token) >= floor", "probability(logits, token) > 1", "proposals"),
    ("the draft floor is ignored", "probability(logits, token) >= floor", "True", "proposals"),
    ("a draft at the position of the first", "len(drafts), DRAFTER", "0, DRAFTER", "proposals"),
)  # fmt: skip
_add(
    "options", sampler, "constants",
    ("top-k keeps one more", "min(limit, INT32_MAX)", "min(limit and limit + 1, INT32_MAX)", "options"),
    ("top-k is ignored", "(options.top_k, options.max_candidates)", "(options.max_candidates,)", "options", "texts"),
    ("no cap on the list", "(options.top_k, options.max_candidates)", "(options.top_k,)", "options"),
    ("top-p must be passed, not reached", "int(float(options.top_p) * whole)",
     "min(whole, int(float(options.top_p) * whole) + 1)", "options"),
    ("min-p must be passed, not reached", "np.float32(log2(np.float32(options.min_p)))",
     "np.nextafter(np.float32(log2(np.float32(options.min_p))), np.float32(9))", "options"),
    ("min-p of the square", "np.float32(log2(", "np.float32(2 * log2(", "options"),
    ("min_keep off by one", "min(options.min_keep, INT32_MAX)", "max(1, options.min_keep - 1)", "options"),
    ("frequency and presence exchanged", '("repeat", "frequency", "presence")]', '("repeat", "presence", "frequency")]',
     "options"),
    ("the temperature multiplies", "/ np.float64(options.temperature)", "* np.float64(options.temperature)",
     "options", "texts"),
)  # fmt: skip
_add(
    "drafts", draft.LayerDrafter, "_append",
    ("the layer's output at the first row is kept", "np.cumsum(counts) - 1", "np.cumsum(counts) - counts", "draft_layer"),
    ("all slots keep the streams of one", "output.streams[index : index + 1]", "output.streams[last[0] : last[0] + 1]",
     "draft_layer"),
    ("the count of cells stays behind", "rows.cells.n = rows.start + len(rows.next_ids)", "rows.cells.n = rows.start",
     "draft_layer"),
)  # fmt: skip
_add(
    "drafts", draft.LayerDrafter, "_step",
    ("every chain goes on with one slot's streams", "output.streams[index : index + 1]", "output.streams[:1]", "draft_layer"),
    ("a draft takes the cell of the one before", "len(chain.proposal.tokens) - 1", "len(chain.proposal.tokens) - 2",
     "draft_layer"),
    ("chains go on with the first draft", "chain.proposal.tokens[-1]", "chain.proposal.tokens[0]", "draft_layer"),
)  # fmt: skip
_add(
    "drafts", draft.LayerDrafter, "_reachable",
    ("a cell of the window is left out", "- rows.cells.window - rows.start", "- rows.cells.window + 3 - rows.start",
     "draft_layer"),
)  # fmt: skip
_add(
    "drafts", engine.Engine, "_decode_window",
    ("rejected rows are told to the drafter", "result.streams[:count], next_ids",
     "result.streams[-count:], next_ids", "draft_layer"),
    ("committed rows begin a cell late", "start = len(request.sequence) - 1", "start = len(request.sequence)",
     "counts", "draft_layer"),
    ("a window begins with the token before the last", "[request.sequence[-1], *tokens]",
     "[request.sequence[-2], *tokens]", "texts", "one_text"),
)  # fmt: skip
_add(
    "drafts", draft_cache.DraftCells, "reset",
    ("drafts of an earlier text are kept", "self.last_output: tuple[np.ndarray, Any] | None = None",
     "self.last_output = getattr(self, 'last_output', (0, 0))", "ring"),
    ("a failure of an earlier text is kept", "self.n, self.incomplete = 0, False", "self.n = 0", "ring"),
    ("a request's window is ignored", "min(window, self.max_window)", "self.max_window", "ring", "draft_layer"),
    ("the ring stays where it was", "self.table[: self.ring_pages] = np.arange(self.ring_pages)", "pass", "ring"),
)  # fmt: skip
_add(
    "drafts", draft_cache.DraftCells, "ensure_pages",
    ("two pages of the ring are one", "new % self.ring_pages", "new % (self.ring_pages - 66)", "ring"),
    ("a page is made resident late", "(end - 1) // self.page_size", "end // self.page_size - 1", "ring"),
)  # fmt: skip
_add(
    "slots", slot.Slot, "reset",
    ("recurrent memories of an earlier text are kept", "self.state.restore(self._initial_state)", "self.state.n = 0",
     "slots", "texts"),
    ("the dead key of an earlier text is kept", "layer_state.index.dead[...] = 0", "pass", "slots"),
)  # fmt: skip
_add(
    "slots", slot.Slot, "fork",
    ("a fork shares its memory", "other.state.restore(self.state.snapshot())", "other.state = self.state", "slots"),
    ("a fork has no indexer keys", "target.index.dead[...], target.index.pooled[...] = source.index.dead, source.index.pooled",
     "pass", "slots"),
    ("a fork has no K and V", "copy_pool(target.kv, source.kv)", "pass", "slots"),
)  # fmt: skip
_add(
    "slots", slot.Slot, "restore",
    ("a restored slot has no indexer keys", "state.index.pooled[: len(pooled)] = self.device(pooled)", "pass", "slots"),
    ("a restored slot has no recurrent memories", "array[...] = stored if", "stored if", "slots"),
    ("a restored slot is a cell short", "self.state.n = n", "self.state.n = n - 1", "slots"),
    ("a restored slot's dead key is the old one", "state.index.dead[...] =", "_ =", "slots"),
)  # fmt: skip
_add(
    "slots", slot.Slot, "_check_arrays",
    ("a saved slot of more cells than fit", "0 <= n <= self.capacity", "0 <= n", "slots"),
)
_add(
    "slots", kv_state, "write_cells",
    ("cells are restored one place behind", "_offsets(stored, first, first + len", "_offsets(stored, first + 1, first + 1 + len",
     "slots"),
)  # fmt: skip
_add(
    "slots", kv_state, "read_cells",
    ("cells are read one place behind", "_offsets(kv, first, end)", "_offsets(kv, first + 1, end + 1)", "slots"),
)
_add(
    "slots", serialization, "unpack",
    ("a changed file is restored", 'raise ValueError("saved: not what was saved: its digest is another one")', "pass",
     "slots"),
    ("the origin of a file is not looked at", "_check_origin(found, origin)", "pass", "slots"),
)  # fmt: skip
_add(
    "slots", serialization, "_check_origin",
    ("a file of other weights is restored", "zip(fields, values,", "zip(fields[:-1], values,", "slots"),
)
_add(
    "slots", identity, "weights_digest",
    ("the identity has the beginnings of the weights", "piece.reshape(-1)", "piece[:1].reshape(-1)", "identities"),
)
_add(
    "slots", identity, "configuration_digest",
    ("the identity leaves the selection rule out", " {model.rule}", "", "slots"),
)
_add(
    "slots", memory, "memory_check",
    ("the memory check is ignored", "needed * slots > available", "False", "memory_limit"),
    ("memory for one slot of several", "needed * slots > available", "needed > available", "memory_limit"),
)
_add(
    "slots", memory, "slot_bytes",
    ("memory of a page for each cell", "-(-capacity // page_size)", "capacity", "memory_limit"),
)
_add(
    "n-grams", ple.State, "remember",
    ("the history keeps its oldest tokens", "[len(ids) :]", "[: len(self.tokens)]", "texts", "one_text"),
    ("the history is cut to the new tokens", "np.concatenate([self.tokens, ids])[len(ids) :]",
     "np.resize(ids[-len(self.tokens) :], len(self.tokens))", "texts", "one_text"),
)  # fmt: skip
_add(
    "n-grams", ple, "_rows_of_one",
    ("n-grams go on behind the end of a text", "cut = cut or before[-back] == eos", "cut = False", "endings"),
    ("n-grams in the other order", "else before[-back])", "else before[back - 1])", "texts", "one_text"),
)  # fmt: skip
_add(
    "runners", runner.Runner, "run",
    ("slots exchange their states", "[slot.state for slot in slots]", "[slot.state for slot in slots][::-1]", "texts"),
)
_add(
    "runners", runner.Runner, "draw",
    ("tokens of the slot before", "start += count", "start += 0", "programs"),
)
_add(
    "runners", device_sampling, "draw_arrays",
    ("padding rows are drawn like real ones", "np.full(len(counts), -len(slots), np.int64)",
     "np.full(len(counts), -1, np.int64)", "draws"),
    ("all rows have the first row's history", "lengths[slots] + offsets", "lengths[slots]", "draws", "programs"),
    ("rows have the seeds of their place", "seeds[slots]", "seeds[np.sort(slots)[::-1]]", "draws", "programs"),
)  # fmt: skip
_add(
    "runners", graph_runner.GraphRunner, "_graph",
    ("one graph for every window", "key = (*key, self.model.batch_windows, switches())", "key = key[:1]", "programs"),
)
_add(
    "runners", graphs.WindowGraph, "run",
    ("a graph runs on the ids of its first call", "self.staging.fill(self._arrays(inputs))",
     "self.program.generation or self.staging.fill(self._arrays(inputs))", "programs"),
)  # fmt: skip
_add(
    "runners", graphs.Snapshot, "restore",
    ("a graph's rollback forgets the n-grams", "ple_state.tokens[:] = tokens", "pass", "programs"),
)
_add(
    "runners", graphs.WindowGraph, "replay",
    ("a graph's rollback replays the rows of its first slot", "self._run_rollback((rows.start, rows.stop), record)",
     "rows_ = rows; rows = slice(0, rows.stop - rows.start); self._run_rollback((rows_.start, rows_.stop), record)",
     "programs"),
)  # fmt: skip
_add(
    "runners", graphs.DraftGraph, "run",
    ("a graph drafts from the streams of its first call", "self.streams[...] = streams",
     "self.program.generation or self.streams.__setitem__(..., streams)", "draft_programs"),
)  # fmt: skip
_add(
    "scores", score, "_rows",
    ("windows overlap by a row", "ids[start : min(", "ids[max(0, start - 1) : -1 + min(", "scores"),
)
_add(
    "scores", score, "score",
    ("scores of this token, not the next", "ids[start + 1 : start + 1 + len(logs)]", "ids[start : start + len(logs)]", "scores"),
)
_add(
    "scores", score, "log_probabilities",
    ("logits that are no probabilities", "x - np.log(np.exp(x).sum(axis=1, keepdims=True))", "x", "scores"),
)
_add(
    "decoders", tokenizer.Bytes, "decoder",
    ("the last bytes of a text are lost", 'decode(b"", final=True) if', '"" if', "decoders"),
    ("bytes that are no UTF-8 are dropped", 'errors="replace"', 'errors="ignore"', "decoders"),
)
_add(
    "decoders", tokenizer.TextStream, "__call__",
    ("the last piece of a text is lost", "piece = whole.removeprefix(self.written) if", 'piece = "" if', "decoders"),
)
_add(
    "decoders", tokenizer.TextStream, "_next",
    ("half a character is given", 'text.endswith("\\ufffd") or', "", "decoders"),
    ("ids are decoded without those before", "self.context, self.given = self.given, len(self.ids)",
     "self.context = self.given = len(self.ids)", "decoders"),
)  # fmt: skip


def rows(sample: bool = False, on_result: Callable[[Row], object] = lambda row: None) -> list[Row]:
    """The :class:`~.patching.Row` of every engine mutant, behind that of the unchanged code; with ``sample`` of one of
    each kind. ``on_result`` is called with each. Raises ValueError when the words of a mutant are gone from the
    source."""
    return run(one_of_each_kind(MUTANTS) if sample else MUTANTS, CHECKS, on_result)
