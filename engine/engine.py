"""The engine: it takes requests and emits their tokens, step by step.

One file: a single class, whose parts by themselves (scheduler, runners, slots, requests, drafts) have files of their
own; what is left is the order in which a step calls them.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from qsa.model import TextModel
from qsa.reference.exact.speculative import check_list
from qsa.reference.index import check_index_format
from qsa.reference.sampler import Sampling

from .draft import CommittedRows, Drafter, DraftRequest, LayerDrafter, Proposal, record_failure
from .draws import sampling
from .programs.graph_runner import make_runner
from .programs.rounds import run_round
from .request import BATCH_ROWS, MAX_ROWS, Drafting, Request, check_model, checked_request, integer
from .runner import Runner
from .scheduler import Scheduler, allocate_rows
from .slots.memory import MAX_CELLS, memory_check
from .slots.slot import Slot
from .window import WindowResult, run_window


class Engine:
    """Continues texts of one model over a fixed number of slots.

    model      a :class:`~qsa.model.TextModel`, as ``load_model`` returns it
    slots      number of sequences that run at a time, at least 1; further requests wait
    capacity   tokens of a sequence, prompt included
    page_size  cells of a page; kv_format: a K/V format of the model
    index_format  format of the indexer's keys: ``fp32``, or ``int16`` (design section 4), half as large
    chunk      prompt tokens read in one step
    groups     a divisor of ``slots``: a window serves slots of one group, and windows rotate over the groups
    drafter    a :class:`~qsa.engine.draft.Drafter`; by default the model's draft layer, if it has one
    runner     makes the model's calls; by default that of ``make_runner``

    In the exact arithmetic greedy and exact-match texts do not depend on chunk, page size, batch, groups, drafter or
    runner. Under rejection sampling the drawn tokens depend on the drafts, their distribution does not. An engine
    belongs to one thread. Raises ValueError that names an option outside its range, or sizes that do not fit into
    memory.
    """

    def __init__(
        self,
        model: TextModel,
        slots: int = 1,
        capacity: int = 32768,
        page_size: int = 4,
        kv_format: str = "int8",
        chunk: int = 1024,
        groups: int = 1,
        *,
        drafter: Drafter | None = None,
        runner: Runner | None = None,
        index_format: str = "fp32",
    ) -> None:
        self.model = check_model(model)
        slots, groups = integer("slots", slots, 1), integer("groups", groups, 1)
        self.chunk = integer("chunk", chunk, 1)
        capacity = integer("capacity", capacity, 1, MAX_CELLS)
        page_size = integer("page_size", page_size, 1, MAX_CELLS)
        self._scheduler = Scheduler(slots, groups)
        self.runner = make_runner(model) if runner is None else runner
        self.drafter = LayerDrafter(self.runner) if drafter is None and model.draft is not None else drafter
        check_index_format("index_format", index_format)
        sizes = capacity, page_size, kv_format
        with memory_check(model, *sizes, slots, index_format):
            self.slots = [Slot(model, *sizes, index_format) for _ in range(slots)]
        self.capacity = capacity
        self._waiting: deque[Request] = deque()
        self._active: dict[int, Request] = {}

    def submit(
        self,
        ids: Any,
        max_tokens: int = 128,
        sampling: Sampling | None = None,
        seed: int = 0,
        acceptance: str | None = None,
        drafting: Drafting | None = None,
        stop: Iterable[int] = (),
        prefix: Slot | None = None,
    ) -> Request:
        """Queue a text to be continued; returns its :class:`Request`.

        ids         prompt, at least one token id
        max_tokens  largest number of tokens to emit
        sampling    a Sampling; by default the largest logit without penalties
        seed        seed of the draws, 0 to 2^64 - 1; a draw depends on seed and position alone
        acceptance  rule that accepts drafts: ``greedy`` (default of greedy sampling), ``exact_match`` (default of other
                    sampling) or ``rejection``
        drafting    a Drafting, or None to draft nothing
        stop        token ids after which the text ends; the one that ends it is emitted
        prefix      a Slot of the engine's model and sizes that has read the first of ``ids``, but not all: they are not
                    read again. It is copied when the text gets its slot, and must stay as it is until then

        Raises ValueError that names the argument outside its range, also for a text beyond the slots' capacity. Nothing
        is queued then.
        """
        request = checked_request(
            self.model, ids, self.capacity, max_tokens, sampling, seed, acceptance, drafting, stop
        )
        if request.drafts and self.drafter is None:
            raise ValueError("drafting: the model has no draft layer, and no drafter is given")
        if prefix is not None:
            request.prefix = self._checked_prefix(prefix, request)
        self._waiting.append(request)
        return request

    def _checked_prefix(self, prefix: Slot, request: Request) -> Slot:
        """``prefix``; raises ValueError where ``request`` cannot go on from it."""
        if not isinstance(prefix, Slot) or not self.slots[0].fits(prefix):
            raise ValueError("prefix: must be a Slot of the engine's model, capacity, page size, K/V and index format")
        if not 0 < prefix.n < len(request.ids):
            raise ValueError(f"prefix: {prefix.n} tokens read: must be 1 to {len(request.ids) - 1}, fewer than ids")
        if request.drafts:
            raise ValueError("drafting: a prefix has no cells of the drafter: the whole prompt must be read")
        return prefix

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._waiting and not self._active

    def run(self) -> None:
        """Run steps until the engine is idle."""
        while not self.idle:
            self.step()

    def step(self) -> list[Request]:
        """Read one chunk of a prompt, or run one window over decoding slots.

        Returns the requests that gained tokens, those that ended in this step included. A request that fails gets the
        status ``failed`` and its ``error``, and frees its slot; the bytes of the others do not change. An interrupt
        (KeyboardInterrupt) is raised to the caller and fails the requests that the step was serving, since the states
        in their slots may be advanced only in part.
        """
        self._admit()
        prefilling = [request for request in self._active.values() if request.status == "prompt"]
        decoding = [request for request in self._active.values() if request.status == "decoding"]
        if not prefilling and not decoding:
            return []
        prefill = self._scheduler.schedule_prefill(prefilling, decoding)
        served = [self._scheduler.next_prompt(prefilling)] if prefill else self._scheduler.next_window(decoding)
        try:
            return self._prefill_chunk(served[0]) if prefill else self._decode_window(served)
        except BaseException as error:
            for request in served:
                if not request.ended:
                    self._finish(request, "failed", error)
            raise

    def cancel(self, request: Request) -> bool:
        """End ``request`` at once and free its slot. Returns False when it had ended already.

        Raises ValueError on a request of another engine, and on anything that is no Request.
        """
        if not isinstance(request, Request):
            raise ValueError(f"request = {request!r}: must be a Request")
        if request.ended:
            return False
        if request not in self._waiting and self._running(request) is not request:
            raise ValueError("request: not one of this engine")
        self._finish(request, "cancelled")
        return True

    def _running(self, request: Request) -> Request | None:
        """The request that runs in the slot of ``request``, if any."""
        return None if request.slot is None else self._active.get(request.slot)

    def _slot(self, request: Request) -> Slot:
        assert request.slot is not None, "an admitted request has a slot"
        return self.slots[request.slot]

    def _admit(self) -> None:
        """Give free slots to waiting requests, in the order of their submission."""
        while self._waiting:
            index = self._scheduler.free_slot(self._active)
            if index is None:
                return
            request = self._waiting[0]
            try:
                self.slots[index].reset(request.drafting.window if request.drafting else None)
                if request.prefix is not None:
                    self.slots[index].copy_from(request.prefix)
                    request.prefilled, request.prefix = request.prefix.n, None
            except BaseException as error:
                # The slot may be reset only in part. The next request that takes it resets it again.
                self._finish(request, "failed", error)
                if not isinstance(error, Exception):
                    raise
                continue
            self._waiting.popleft()
            request.slot, request.status = index, "prompt"
            self._active[index] = request

    def _finish(self, request: Request, status: str, error: BaseException | None = None) -> None:
        """End ``request`` with ``status``. Its state stays in the slot until another request takes the slot."""
        request.status, request.error = status, error
        if request.slot is not None and self._running(request) is request:
            del self._active[request.slot]
        elif request in self._waiting:
            self._waiting.remove(request)

    def _prefill_chunk(self, request: Request) -> list[Request]:
        """Read one chunk of a prompt; the last chunk emits the first token. Returns the requests that gained tokens."""
        begin = time.perf_counter()
        slot = self._slot(request)
        ids = request.ids[request.prefilled : request.prefilled + self.chunk]
        start, gained = request.prefilled, []
        try:
            output = self.runner.run([ids], [slot])
            request.prefilled += len(ids)
            request.statistics.prompt_tokens = request.prefilled
            if request.prefilled == len(request.ids):
                emitted = self._first_token(request, output.x[-1:])
                request.status = "decoding"
                request.emit(emitted)
                gained = [request]
        except Exception as error:
            self._finish(request, "failed", error)
        else:
            next_ids = request.sequence[start + 1 : request.prefilled + 1]
            self._notify_drafter([CommittedRows(request, slot, start, output.streams, next_ids)])
            if request.reason:
                self._finish(request, "finished")
        request.statistics.prompt_seconds += time.perf_counter() - begin
        return gained

    def _first_token(self, request: Request, x: Any) -> list[int]:
        """The token that the last row ``x`` [1, hidden] of a prompt emits, in a list."""
        (tokens,) = self.runner.draw(x, [sampling.device_draw(request, [])], [1])
        logits = self.runner.logits(x) if tokens is None else None
        return sampling.accept(request, logits, [], [], tokens)[1]

    def _decode_window(self, requests: list[Request]) -> list[Request]:
        """Run one window over the slots of ``requests``. Returns the requests that gained tokens."""
        begin, clock = time.perf_counter(), replace(self.runner.clock)
        most = BATCH_ROWS if self.model.arithmetic == "exact" else MAX_ROWS
        rows = allocate_rows([self._requested_rows(request) for request in requests], most)
        slots = [self._slot(request) for request in requests]
        captured, failure = run_round(self.runner, self.drafter, requests, slots, rows)
        results: Sequence[WindowResult | Exception]
        if captured is not None:
            proposals, results = captured.proposals, captured.results
        else:
            proposals = self._propose(requests, rows)
            results = self._run_window(requests, slots, proposals, failure)
        gained, committed = [], []
        for request, slot, proposal, result in zip(requests, slots, proposals, results, strict=True):
            start = len(request.sequence) - 1
            try:
                if isinstance(result, Exception):
                    raise result
                count = self._accept(request, proposal, result)
            except Exception as error:
                self._finish(request, "failed", error)
                continue
            gained.append(request)
            next_ids = request.sequence[start + 1 :]
            committed.append(CommittedRows(request, slot, start, result.streams[:count], next_ids))
        if captured is None:
            self._notify_drafter(committed)
        else:
            captured.finish()
        seconds = time.perf_counter() - begin
        host = seconds - (self.runner.clock.waited - clock.waited)
        for request in requests:
            request.statistics.decode_seconds += seconds
            request.statistics.host_seconds += host
            request.statistics.device_seconds += self.runner.clock.device - clock.device
            if request.reason and not request.ended:
                self._finish(request, "finished")
        return gained

    def _run_window(
        self,
        requests: Sequence[Request],
        slots: Sequence[Slot],
        proposals: Sequence[Proposal],
        failure: Exception | None,
    ) -> list[WindowResult | Exception]:
        """The window of the requests' last tokens and their drafts; ``failure``: error of a captured round in whose
        place it is run."""
        drafts = [proposal.tokens for proposal in proposals]
        ids = [[request.sequence[-1], *tokens] for request, tokens in zip(requests, drafts, strict=True)]
        parameters = [sampling.device_draw(request, tokens) for request, tokens in zip(requests, drafts, strict=True)]
        results = run_window(self.runner, ids, slots, parameters)
        for result in results:
            if isinstance(result, WindowResult):
                result.error = result.error or failure
        return results

    def _requested_rows(self, request: Request) -> int:
        """Number of rows that the request can use: every row emits at most one token."""
        rows = request.drafting.rows if request.drafting is not None else 1
        return min(rows, MAX_ROWS, request.max_tokens - len(request.tokens))

    def _accept(self, request: Request, proposal: Proposal, result: WindowResult) -> int:
        """Accept or reject one slot's drafts and emit its tokens. Returns the number of rows that are kept."""
        accepted, emitted = sampling.accept(
            request, result.logits, proposal.tokens, proposal.distributions, result.tokens, result.judged
        )
        count = request.emit(emitted)
        result.commit(count)
        statistics, rows = request.statistics, result.rows.stop - result.rows.start
        statistics.rounds += 1
        if result.error is not None:
            statistics.reruns += 1
            request.window_error = result.error
        statistics.drafted += min(len(proposal.tokens), rows)
        # A stop token among the drafts ends the text before the drafts after it.
        statistics.accepted += min(accepted, count)
        statistics.rollbacks += count < rows
        return count

    def _propose(self, requests: list[Request], rows: Sequence[int]) -> list[Proposal]:
        """A checked Proposal for every request, to fill its ``rows``; an empty one when the drafter fails."""
        proposals = [Proposal() for _ in requests]
        draft_requests = [
            (index, DraftRequest(request, self._slot(request), count - 1))
            for index, (request, count) in enumerate(zip(requests, rows, strict=True))
            if count > 1
        ]
        if not draft_requests or self.drafter is None:
            return proposals
        try:
            proposed = self.drafter.propose([draft_request for _, draft_request in draft_requests])
            for (index, draft_request), proposal in zip(draft_requests, proposed, strict=True):
                proposals[index] = self._checked_proposal(proposal, draft_request)
        except Exception as error:
            for index, draft_request in draft_requests:
                record_failure(draft_request.request, error)
                proposals[index] = Proposal()
        return proposals

    def _checked_proposal(self, proposal: Proposal, draft_request: DraftRequest) -> Proposal:
        """``proposal`` cut to the requested number of drafts, and before the first one outside the vocabulary.

        Raises ValueError on a malformed distribution under rejection sampling, which reads it.
        """
        checked = Proposal()
        tokens = proposal.tokens[: draft_request.max_drafts]
        for token, distribution in zip(tokens, proposal.distributions, strict=False):
            if not 0 <= token < self.model.config.vocab_size:
                break
            if distribution is not None and draft_request.request.acceptance == "rejection":
                check_list(distribution)
            checked.add(int(token), distribution)
        return checked

    def _notify_drafter(self, committed: list[CommittedRows]) -> None:
        """Pass committed rows to the drafter, for the requests that use drafts."""
        drafted = [rows for rows in committed if rows.request.drafts]
        if not drafted or self.drafter is None:
            return
        try:
            self.drafter.on_commit(drafted)
        except Exception as error:
            for rows in drafted:
                record_failure(rows.request, error)
