"""One rank's requests: admit → step → process. Pure Python over a Runner; no socket, no clock.

`step` runs one forward pass at most. Each decoding request gets one token of it, the rest of the
budget goes to prompts in their order, in chunks. `outputs` collects what the frontend must hear.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence

from engine.cache.kv_cache import KVCache, Pages
from engine.cache.ticket import Stage, Ticket
from engine.cache.tiers import Tiers
from engine.ipc.messages import (
    FinishReason,
    Generate,
    LogprobEntry,
    TierTokens,
    TokenOut,
)
from engine.models.forward_batch import (
    ForwardBatch,
    NonFiniteLogitsError,
    Part,
    PartResult,
    SampleSpec,
    TokenLogprobs,
)
from engine.protocol import HostLayout, Places
from engine.runner.base import Runner
from engine.scheduler.metrics import RankMetrics
from engine.scheduler.policy import OutputEstimate, choose_victim
from engine.scheduler.req import Req
from engine.tokens.detokenize import Decoder

# Of the waiting requests, those that are looked at in a step: the first of them.
_LOOK_AHEAD = 64


class Scheduler:
    """All requests of one rank. `is_open` says whether new ones may start, `is_stopped` whether
    nothing is computed at all."""

    def __init__(
        self,
        runner: Runner,
        *,
        chunked_prefill_tokens: int = 512,
        max_running: int = 64,
        decoder: Decoder | None = None,
        poison_freed_pages: bool = False,
        host_pages: int = 0,
        host_layout: HostLayout = HostLayout.PAGE_FIRST,
        wake: Callable[[], None] = lambda: None,
        is_open: Callable[[], bool] = lambda: True,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.runner = runner
        self.kv = KVCache(
            num_pages=runner.num_pages,
            page_size=runner.page_size,
            on_free=runner.poison_pages if poison_freed_pages else None,
        )
        self.tiers: Tiers | None = None
        if host_pages:
            pool, copier = runner.host_tier(host_pages, host_layout)
            self.tiers = Tiers(self.kv, pool, copier, wake)
        self.metrics = RankMetrics()
        self.waiting: deque[Req] = deque()
        self.running: list[Req] = []
        self.outputs: list[TokenOut] = []
        self.last_prefill_tokens = 0  # of the newest step
        self.hit_tokens = TierTokens()
        self._is_blocked = False  # all that wait do so for a lower tier
        self._chunk_tokens = chunked_prefill_tokens
        self._max_running = max_running
        self._decoder = decoder
        self._is_open = is_open
        self._is_stopped = is_stopped
        self._estimate = OutputEstimate()

    # ---- inputs ------------------------------------------------------------------------------

    def add(self, message: Generate, now: float) -> None:
        """Queue a request. Its input was validated by the frontend."""
        self.waiting.append(
            Req(message, eos_ids=self.runner.eos_ids, decoder=self._decoder, now=now)
        )

    def abort(self, rid: str, message: str = "Aborted") -> bool:
        """End a request now, wherever it is; needs no forward pass. False when it is unknown."""
        for req in self.waiting:
            if req.rid == rid:
                self.waiting.remove(req)
                queued = message if req.num_output else "Abort in waiting queue"
                self._finish(req, FinishReason(type="abort", message=queued))
                return True
        for req in self.running:
            if req.rid == rid:
                self._leave(req, FinishReason(type="abort", message=message))
                return True
        return False

    def abort_running(self, message: str) -> int:
        """End all running requests; waiting ones stay. Returns how many ended."""
        running = list(self.running)
        for req in running:
            self._leave(req, FinishReason(type="abort", message=message))
        return len(running)

    def abort_all(self, message: str) -> int:
        """End everything; returns how many ended."""
        count = self.abort_running(message) + len(self.waiting)
        while self.waiting:
            self._finish(self.waiting.popleft(), FinishReason(type="abort", message=message))
        return count

    def drop_all(self) -> None:
        """Forget everything without a word: nobody listens any more."""
        for req in list(self.running):
            self._release(req)
        self.running.clear()
        self.waiting.clear()
        self.outputs.clear()

    def retract_running(self) -> int:
        """Put running requests back at the head of the queue, in their order, KV released."""
        running = list(self.running)
        for req in reversed(running):
            self._retract(req)
        return len(running)

    def flush(self, *, empty_cache: bool) -> int:
        """Drop all cached KV; returns the pages freed. Nothing may be running."""
        assert not self.running, f"flush with {len(self.running)} running requests"
        if self.tiers is not None:
            self.tiers.reset()
        freed = self.kv.reset()
        self.runner.clear_kv()
        for req in self.waiting:
            req.ticket = Ticket()
        if empty_cache:
            self.runner.empty_cache()
        self.metrics.flushed()
        return freed

    # ---- questions ---------------------------------------------------------------------------

    def places(self) -> Places:
        """What is in flight, by place."""
        chunked = sum(1 for req in self.running if not req.is_decoding)
        tiers = self.tiers
        return Places(
            running=len(self.running) - chunked,
            chunked_prefill=chunked,
            waiting=len(self.waiting),
            results=len(self.outputs),
            l1_backup=tiers.host.num_backups if tiers else 0,
            l2_load=tiers.host.num_loads if tiers else 0,
            l3_prefetch=tiers.num_prefetches if tiers else 0,
            l3_backup=tiers.num_storage_backups if tiers else 0,
        )

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        if self._is_stopped():
            return False
        return bool(self.running) or bool(self.waiting and self._is_open() and not self._is_blocked)

    def check_invariants(self) -> None:
        """Count a violation of the page account; never ends the process."""
        text = self.kv.violation(idle=not self.running and not self._is_copying)
        if not text and self.tiers is not None:
            text = self.tiers.violation()
        if text and text != self.metrics.violation:
            self.metrics.violations_total += 1
        self.metrics.violation = text

    @property
    def _is_copying(self) -> bool:
        return self.tiers is not None and self.tiers.host.is_copying

    # ---- one step ----------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Admit, run one forward pass, process its results."""
        self.last_prefill_tokens = 0
        if self.tiers is not None:
            self.tiers.poll()
        if self._is_stopped():
            return
        if self._is_open():
            self._admit(now)
        planned = self._plan()
        self.last_prefill_tokens = sum(
            len(part.input_ids) for req, part in planned if not req.is_decoding
        )
        if not planned:
            return
        results = self._forward(planned)
        generated = 0
        for (req, part), result in zip(planned, results, strict=True):
            if result is not None and req.finish is None:
                generated += self._process(req, part, result)
        if generated:
            self.metrics.generated(generated, now)
        self._estimate.stepped()

    def _admit(self, now: float) -> None:
        """In their order; one whose pages are on their way from a lower tier is passed by."""
        self._is_blocked = False
        passed_by = 0
        for req in list(itertools.islice(self.waiting, _LOOK_AHEAD)):
            if len(self.running) >= self._max_running:
                if self.tiers is not None:
                    self.tiers.look(req.ticket, *self._prefix(req), now)
                continue
            if self.tiers is not None and not self.tiers.is_ready(
                req.ticket, *self._prefix(req), now
            ):
                passed_by += 1
                continue
            if not self._try_admit(req, now):
                return
        self._is_blocked = not self.running and passed_by == len(self.waiting) > 0

    def _prefix(self, req: Req) -> tuple[Sequence[int], str, int]:
        """What of it may be found in the cache: its tokens, its namespace, how many of them.

        KV of other weights is never found: their checksum is part of the namespace.
        """
        return req.all_ids, f"{self.runner.weights.checksum}:{req.namespace}", req.reusable_tokens

    def _try_admit(self, req: Req, now: float) -> bool:
        """False: there is no room for it now."""
        pages = self.kv.begin(*self._prefix(req))
        missing = self.kv.missing(pages, len(req.all_ids))
        reserve = self._estimate.reserve_pages(self.running, self.kv.page_size)
        if self.running and missing + reserve > self.kv.num_available():
            self.kv.end(pages, ())
            return False
        if not self.kv.grow(pages, len(req.all_ids)):
            self.kv.end(pages, ())
            # An idle pool has room for any request, unless copies hold some of it.
            assert self.running or self._is_copying, f"{missing} pages do not fit an idle pool"
            return False
        self.waiting.remove(req)
        req.pages = pages
        req.num_computed = pages.num_tree * self.kv.page_size
        self.kv.used(pages)
        if req.cached_tokens is None:
            req.cached_tokens = req.num_computed
            by_tier = self._by_tier(req.ticket, pages)
            req.cached = by_tier if self.tiers is not None else None
            req.admitted_at = now
            self.metrics.admitted(req.num_prompt, req.num_computed, now)
            self._count_hits(by_tier)
        req.ticket = Ticket()
        self.running.append(req)
        return True

    def _by_tier(self, ticket: Ticket, pages: Pages) -> TierTokens:
        loaded = min(ticket.loaded_pages, pages.num_tree) if ticket.stage is Stage.READY else 0
        fetched = min(ticket.fetched_pages, loaded)
        size = self.kv.page_size
        attached = self.tiers.attached if self.tiers is not None else None
        return TierTokens(
            device=(pages.num_tree - loaded) * size,
            host=(loaded - fetched) * size,
            storage=fetched * size,
            storage_backend=attached.view.backend if attached else None,
        )

    def _count_hits(self, cached: TierTokens) -> None:
        total = self.hit_tokens
        self.hit_tokens = TierTokens(
            device=total.device + cached.device,
            host=total.host + cached.host,
            storage=total.storage + cached.storage,
        )

    def _plan(self) -> list[tuple[Req, Part]]:
        """This step's parts: every decode, then prompts in order as far as the budget goes."""
        self._make_room()
        planned = [(req, self._part(req, 1)) for req in self.running if req.is_decoding]
        budget = self._chunk_tokens
        for req in self.running:
            if budget <= 0:
                break
            if not req.is_decoding:
                count = min(budget, req.num_remaining)
                planned.append((req, self._part(req, count)))
                budget -= count
        return planned

    def _make_room(self) -> None:
        """Each decoding request needs a page now and then; retract until all that stay have it."""
        for req in list(self.running):
            if not req.is_decoding:
                continue
            assert req.pages is not None
            while req.pages is not None and not self.kv.grow(req.pages, len(req.all_ids)):
                victim = choose_victim(self.running)
                if victim is req and len(self.running) == 1 and not self._is_copying:
                    message = "this request does not fit the KV pool"
                    self._leave(req, FinishReason(type="abort", message=message, status_code=503))
                    break
                self._retract(victim)
                self._estimate.retracted()

    def _part(self, req: Req, count: int) -> Part:
        assert req.pages is not None
        start, end = req.num_computed, req.num_computed + count
        last = end == len(req.all_ids)
        message = req.message
        first_score = max(message.logprob_start, req.prompt_logprobs_until)
        # Once retracted, it prefills again what was reported before, and its output.
        wants_prompt = (
            message.return_logprob and message.logprob_start >= 0 and first_score < req.num_prompt
        )
        return Part(
            input_ids=req.all_ids[start:end],
            start=start,
            pages=req.pages.table,
            sample=self._sample_spec(req) if last and self._wants_token(req) else None,
            logprobs_from=first_score if wants_prompt else None,
            next_id=req.all_ids[end] if end < req.num_prompt else None,
            top_logprobs_num=message.top_logprobs_num,
            token_ids_logprob=message.token_ids_logprob,
        )

    def _wants_token(self, req: Req) -> bool:
        """A prefill-only request samples only where the next token's scores were asked for."""
        return not req.is_prefill_only or bool(
            req.message.return_logprob and req.message.token_ids_logprob
        )

    def _sample_spec(self, req: Req) -> SampleSpec:
        message = req.message
        return SampleSpec(
            params=req.sampling,
            prompt_ids=message.input_ids,
            output_ids=req.output_ids,
            stop_ids=req.stop_ids,
            return_logprob=message.return_logprob,
            top_logprobs_num=message.top_logprobs_num,
            token_ids_logprob=message.token_ids_logprob,
        )

    def _forward(self, planned: list[tuple[Req, Part]]) -> list[PartResult | None]:
        """Run the parts; a request with non-finite logits ends alone."""
        parts = [part for _, part in planned]
        results: list[PartResult | None] = [None] * len(parts)
        alive = list(range(len(parts)))
        while alive:
            try:
                for index, result in zip(
                    alive, self.runner.forward(ForwardBatch([parts[i] for i in alive])), strict=True
                ):
                    results[index] = result
                break
            except NonFiniteLogitsError as error:
                bad = {alive[i] for i in error.parts}
                for index in bad:
                    message = "the model produced non-finite logits for this request"
                    reason = FinishReason(type="abort", message=message, status_code=500)
                    self._leave(planned[index][0], reason)
                alive = [index for index in alive if index not in bad]
        return results

    # ---- results -----------------------------------------------------------------------------

    def _process(self, req: Req, part: Part, result: PartResult) -> int:
        """Take one part's result; returns how many tokens it generated."""
        assert req.pages is not None
        req.num_computed += len(part.input_ids)
        self._note_prompt_logprobs(req, part, result)
        if req.num_computed < len(req.all_ids):
            self.kv.share(req.pages, req.all_ids[: req.num_computed])
            return 0
        if part.start < req.num_prompt:  # the prompt is whole: others may use it
            self.kv.share(req.pages, req.all_ids[: req.num_computed])
        if req.is_prefill_only:
            if result.output is not None:
                req.untold_logprobs.append(_entry(result.output))
            self._leave(req, FinishReason(type="length"))
            return 0
        assert result.next_token is not None
        version = self.runner.weights.version
        if req.num_untold and req.weight_version != version:
            self._emit(req)  # tokens of the weights before
        req.weight_version = version
        finish = req.take(result.next_token)
        if result.output is not None:
            req.untold_logprobs.append(_entry(result.output))
        if finish is not None:
            self._leave(req, finish)
        elif req.is_due:
            self._emit(req)
        return 1

    def _note_prompt_logprobs(self, req: Req, part: Part, result: PartResult) -> None:
        if part.logprobs_from is None:
            return
        if req.prompt_logprobs_until == 0 and req.message.logprob_start == 0:
            req.prompt_logprobs.append(LogprobEntry(token_id=req.all_ids[0], logprob=None))
        req.prompt_logprobs += [_entry(item) for item in result.prompt]
        until = min(req.num_computed + 1, req.num_prompt)
        req.prompt_logprobs_until = max(until, req.prompt_logprobs_until)

    def _emit(self, req: Req, finish: FinishReason | None = None) -> None:
        """Tell all that was not told yet."""
        start, token_ids = req.num_told, req.untold_ids
        self.outputs.append(
            TokenOut(
                rid=req.rid,
                start=start,
                token_ids=token_ids,
                logprobs=req.untold_logprobs,
                prompt_logprobs=req.prompt_logprobs,
                cached_tokens=req.cached_tokens or 0,
                cached=req.cached,
                retractions=req.retractions,
                weight_version=req.weight_version if token_ids else self.runner.weights.version,
                finish=finish,
            )
        )
        req.told()

    def _leave(self, req: Req, reason: FinishReason) -> None:
        """A running request ends."""
        self._release(req)
        self.running.remove(req)
        self._finish(req, reason)

    def _finish(self, req: Req, reason: FinishReason) -> None:
        req.finish = reason
        if reason.type == "abort":
            self.metrics.aborted_total += 1
        self.metrics.finished_total += 1
        self._emit(req, finish=reason)

    def _release(self, req: Req) -> None:
        """Give its pages up; what is computed stays cached."""
        assert req.pages is not None
        self.kv.end(req.pages, req.all_ids[: req.num_computed])
        req.pages = None

    def _retract(self, req: Req) -> None:
        """Back to the head of the queue; it will prefill prompt and output again."""
        self._release(req)
        self.running.remove(req)
        req.num_computed = 0
        req.ticket = Ticket()
        req.retractions += 1
        self.metrics.retractions_total += 1
        self.waiting.appendleft(req)


def _entry(item: TokenLogprobs) -> LogprobEntry:
    return LogprobEntry(
        token_id=item.token_id, logprob=item.logprob, top=item.top, chosen=item.chosen_ids
    )
