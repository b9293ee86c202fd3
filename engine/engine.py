"""The engine: requests in, tokens out, step by step."""

import time
from collections import deque

from qsa.reference.exact.speculative import check_list

from . import sampling
from .draft import Asked, Kept, LayerDrafter, Proposal, note_failure
from .graph_runner import make_runner
from .memory import MAX_CELLS, room
from .request import MAX_ROWS, Request, checked_request, integer
from .scheduler import Turns, share_rows
from .slot import Slot
from .window import run_window


class Engine:
    """Continues texts of one model over a fixed number of slots.

    model      ``reference.exact.model.TextModel``, as ``load_model`` gives it
    slots      sequences at a time, at least 1; further requests wait
    capacity   tokens of a sequence, prompt included; page_size: cells of a page; kv_format: one of the model's
    chunk      tokens of a prompt read in one step
    groups     a divisor of slots: a window serves slots of one group, the groups take turns
    drafter    see ``draft``; by default the model's draft layer, where there is one
    runner     see ``runner`` and ``graphs``; makes the model's calls

    In the exact arithmetic greedy and exact-match texts do not depend on chunk, page size, batch, groups, drafter or
    runner; what rejection sampling draws depends on the drafts, its distribution does not. An engine belongs to one
    thread. Raises ValueError naming an option outside what is allowed, or sizes that there is no memory for.
    """

    def __init__(
        self,
        model,
        slots=1,
        capacity=32768,
        page_size=4,
        kv_format="int8",
        chunk=1024,
        groups=1,
        *,
        drafter=None,
        runner=None,
    ):
        slots, groups = integer("slots", slots, 1), integer("groups", groups, 1)
        self.chunk = integer("chunk", chunk, 1)
        capacity = integer("capacity", capacity, 1, MAX_CELLS)
        page_size = integer("page_size", page_size, 1, MAX_CELLS)
        self._turns = Turns(slots, groups)
        self.model = model
        self.runner = make_runner(model) if runner is None else runner
        self.drafter = LayerDrafter(self.runner) if drafter is None and model.draft is not None else drafter
        with room(model, capacity, page_size, kv_format, slots):
            self.slots = [Slot(model, capacity, page_size, kv_format) for _ in range(slots)]
        self.capacity = capacity
        self._waiting = deque()
        self._active = {}

    def submit(
        self,
        ids,
        max_tokens=128,
        sampling=None,
        seed=0,
        acceptance=None,
        drafting=None,
        stop=(),
    ):
        """Queue a text to be continued; returns its Request.

        ids         prompt, at least one token
        max_tokens  tokens to emit at most
        sampling    a Sampling; by default the largest logit, no penalties
        seed        of what is drawn, 0 to 2^64 - 1; a draw depends on seed and position alone
        acceptance  of drafts: ``greedy``, ``exact_match`` (the default when something is drawn) or ``rejection``
        drafting    a Drafting, or None
        stop        ids after which the text ends; the one that ends it is emitted

        Raises ValueError naming the argument that is outside what is allowed, a text beyond the slots' capacity
        included; nothing is queued then.
        """
        request = checked_request(
            self.model, ids, self.capacity, max_tokens, sampling, seed, acceptance, drafting, stop
        )
        if request.drafts and self.drafter is None:
            raise ValueError("drafting: the model has no draft layer, and no drafter is given")
        self._waiting.append(request)
        return request

    @property
    def idle(self):
        """Whether nothing is left to do."""
        return not self._waiting and not self._active

    def run(self):
        """Steps until nothing is left."""
        while not self.idle:
            self.step()

    def step(self):
        """Read one chunk of a prompt, or run one window over the decoding slots.

        Returns the requests that gained tokens, ended with this step or not. A request that fails ends as ``failed``
        with its ``error``, and frees its slot; the others' bytes are what they would have been without it. An interrupt
        (KeyboardInterrupt) goes through, and fails the requests that were being served: their slots may be half way.
        """
        self._admit()
        reading = [one for one in self._active.values() if one.status == "prompt"]
        decoding = [one for one in self._active.values() if one.status == "decoding"]
        if not reading and not decoding:
            return []
        prompt = self._turns.prompt_now(reading, decoding)
        served = [self._turns.next_prompt(reading)] if prompt else self._turns.next_window(decoding)
        try:
            return self._read(served[0]) if prompt else self._decode(served)
        except BaseException as error:
            for request in served:
                if not request.ended:
                    self._end(request, "failed", error)
            raise

    def cancel(self, request):
        """End ``request`` whatever it is doing, and free its slot. Returns whether there was something to end.

        Raises ValueError on a request of another engine, and on what is no Request.
        """
        if not isinstance(request, Request):
            raise ValueError(f"request = {request!r}: must be a Request")
        if request.ended:
            return False
        if request not in self._waiting and self._active.get(request.slot) is not request:
            raise ValueError("request: not one of this engine")
        self._end(request, "cancelled")
        return True

    def _admit(self):
        while self._waiting:
            place = self._turns.free_slot(self._active)
            if place is None:
                return
            request = self._waiting[0]
            try:
                self.slots[place].reset(request.drafting.window if request.drafting else None)
            except BaseException as error:
                # The slot is half way; the next request that takes it begins with a reset of its own.
                self._end(request, "failed", error)
                if not isinstance(error, Exception):
                    raise
                continue
            self._waiting.popleft()
            request.slot, request.status = place, "prompt"
            self._active[place] = request

    def _end(self, request, status, error=None):
        """The state stays in the slot until another request takes it."""
        request.status, request.error = status, error
        if self._active.get(request.slot) is request:
            del self._active[request.slot]
        elif request in self._waiting:
            self._waiting.remove(request)

    def _read(self, request):
        """One chunk of a prompt; the last one emits the first token."""
        begin = time.perf_counter()
        slot = self.slots[request.slot]
        ids = request.ids[request.read : request.read + self.chunk]
        start, gained = request.read, []
        try:
            output = self.runner.run([ids], [slot])
            request.read += len(ids)
            request.statistics.prompt_tokens = request.read
            if request.read == len(request.ids):
                emitted = self._first(request, output.x[-1:])
                request.status = "decoding"
                request.emit(emitted)
                gained = [request]
        except Exception as error:
            self._end(request, "failed", error)
        else:
            next_ids = request.sequence[start + 1 : request.read + 1]
            self._catch_up([Kept(request, slot, start, output.streams, next_ids)])
            if request.reason:
                self._end(request, "finished")
        request.statistics.prompt_seconds += time.perf_counter() - begin
        return gained

    def _first(self, request, x):
        """What the last row ``x`` [1, hidden] of a prompt emits."""
        (tokens,) = self.runner.draw(x, [sampling.asked_draw(request, [])], [1])
        logits = self.runner.logits(x) if tokens is None else None
        return sampling.accept(request, logits, [], [], tokens)[1]

    def _decode(self, requests):
        """One window over the slots of ``requests``."""
        begin = time.perf_counter()
        shares = share_rows([self._wanted(request) for request in requests])
        proposals = self._propose(requests, shares)
        slots = [self.slots[request.slot] for request in requests]
        ids = [[one.sequence[-1], *proposal.tokens] for one, proposal in zip(requests, proposals, strict=True)]
        draws = [sampling.asked_draw(one, proposal.tokens) for one, proposal in zip(requests, proposals, strict=True)]
        parts = run_window(self.runner, ids, slots, draws)
        gained, kept = [], []
        for request, slot, proposal, part in zip(requests, slots, proposals, parts, strict=True):
            start = len(request.sequence) - 1
            try:
                count = self._accept(request, proposal, part)
            except Exception as error:
                self._end(request, "failed", error)
                continue
            gained.append(request)
            kept.append(Kept(request, slot, start, part.streams[:count], request.sequence[start + 1 :]))
        self._catch_up(kept)
        seconds = time.perf_counter() - begin
        for request in requests:
            request.statistics.decode_seconds += seconds
            if request.reason and not request.ended:
                self._end(request, "finished")
        return gained

    def _wanted(self, request):
        """Rows that the request can use: each emits a token at most."""
        rows = request.drafting.rows if request.drafts else 1
        return min(rows, MAX_ROWS, request.max_tokens - len(request.tokens))

    def _accept(self, request, proposal, part):
        """Settle one slot's rows. Returns how many are kept."""
        if isinstance(part, Exception):
            raise part
        accepted, emitted = sampling.accept(request, part.logits, proposal.tokens, proposal.lists, part.tokens)
        count = request.emit(emitted)
        part.commit(count)
        statistics, rows = request.statistics, part.rows.stop - part.rows.start
        statistics.rounds += 1
        if part.error is not None:
            statistics.reruns += 1
            request.window_error = part.error
        statistics.drafted += min(len(proposal.tokens), rows)
        # A stop token among the drafts ends the text before the rest of them.
        statistics.accepted += min(accepted, count)
        statistics.rollbacks += count < rows
        return count

    def _propose(self, requests, shares):
        """A Proposal for every request, of ids in the vocabulary; none where the drafter fails."""
        proposals = [Proposal() for _ in requests]
        asked = [
            (place, Asked(request, self.slots[request.slot], rows - 1))
            for place, (request, rows) in enumerate(zip(requests, shares, strict=True))
            if rows > 1
        ]
        if not asked:
            return proposals
        try:
            found = self.drafter.propose([one for _, one in asked])
            for (place, one), proposal in zip(asked, found, strict=True):
                proposals[place] = self._usable(proposal, one)
        except Exception as error:
            for place, one in asked:
                note_failure(one.request, error)
                proposals[place] = Proposal()
        return proposals

    def _usable(self, proposal, asked):
        """``proposal`` up to the drafts that were asked for, and up to the first one that is no token.

        Raises ValueError on a malformed list where lists are looked at.
        """
        usable = Proposal()
        for token, listed in zip(proposal.tokens[: asked.count], proposal.lists, strict=False):
            if not 0 <= token < self.model.config.vocab_size:
                break
            if listed is not None and asked.request.acceptance == "rejection":
                check_list(listed)
            usable.add(int(token), listed)
        return usable

    def _catch_up(self, kept):
        """Tell the drafter which rows stand, for the requests that it follows."""
        kept = [one for one in kept if one.request.drafts]
        if not kept:
            return
        try:
            self.drafter.catch_up(kept)
        except Exception as error:
            for one in kept:
                note_failure(one.request, error)
