"""Requests between HTTP and the ranks: one FIFO, held while an operation wants it, finished once.

Knows no HTTP and no socket: `send` hands a message to a rank. All calls come from one event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.frontend.dp_router import DPRouter, page_chain
from engine.frontend.latency import Latencies
from engine.frontend.token_queue import TokenQueue
from engine.ipc.messages import (
    AbortRequest,
    FinishReason,
    Generate,
    LogprobEntry,
    TokenOut,
)
from engine.ipc.sampling import SamplingParams

_EXPECTED_OUTPUT_CAP_TOKENS = 512


class QueueFullError(Exception):
    """Too many requests wait already."""


class DuplicateRequestError(Exception):
    """A live request has this id."""


@dataclass(slots=True, frozen=True)
class NewRequest:
    """A validated request, before a rank is chosen."""

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    return_logprob: bool = False
    logprob_start: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = field(default_factory=list)
    extra_key: str | None = None
    routed_dp_rank: int | None = None
    is_streamed: bool = True

    def scores_of(self, sampling: SamplingParams) -> int:
        """Log probabilities that this asks for with these settings, at most."""
        if not self.return_logprob:
            return 0
        prompt = len(self.input_ids) - self.logprob_start if self.logprob_start >= 0 else 0
        each = 1 + self.top_logprobs_num + len(self.token_ids_logprob)
        # Without a token to come, those of token_ids_logprob are still scored as the next one.
        output = max(sampling.max_new_tokens, 1 if self.token_ids_logprob else 0)
        return (prompt + output) * each


@dataclass(slots=True)
class Active:
    """A live request. `queue` gets its tokens; the last item has `finish`.

    `wire_id` is its id on the rank, never used twice: a client may use its own id again at once,
    while tokens of the request before are still under way.
    """

    new: NewRequest
    wire_id: str
    chain: list[int]
    tokens: int
    received_at: float
    queue: TokenQueue = field(default_factory=TokenQueue)
    rank: int | None = None
    inc: int = 0
    num_output: int = 0
    first_token_at: float | None = None


class RequestManager:
    """Owns every live request; `routable` lists the ranks that may be sent one now."""

    def __init__(
        self,
        *,
        router: DPRouter,
        page_size: int,
        max_held: int,
        max_per_rank: int,
        routable: Callable[[], dict[int, int]],
        is_holding: Callable[[], bool],
        send: Callable[[int, Generate | AbortRequest], None],
        epoch: int,
    ) -> None:
        self._router = router
        self._page_size = page_size
        self._max_held = max_held
        self._max_per_rank = max_per_rank
        self._routable = routable
        self._is_holding = is_holding
        self._send = send
        self._epoch = epoch
        self._active: dict[str, Active] = {}
        self._on_wire: dict[str, Active] = {}
        self._held: OrderedDict[str, Active] = OrderedDict()
        self.latencies = Latencies()
        self.num_received_total = 0
        self.num_aborted_total = 0

    # ---- from HTTP ---------------------------------------------------------------------------

    def submit(self, new: NewRequest) -> Active:
        """Take a request. Raises QueueFullError, DuplicateRequestError."""
        if new.rid in self._active:
            raise DuplicateRequestError(new.rid)
        if len(self._held) >= self._max_held:
            raise QueueFullError
        expected = min(new.sampling.max_new_tokens, _EXPECTED_OUTPUT_CAP_TOKENS)
        self.num_received_total += 1
        active = Active(
            new=new,
            wire_id=str(self.num_received_total),
            chain=page_chain(new.input_ids, self._page_size, new.extra_key or ""),
            tokens=len(new.input_ids) + expected,
            received_at=time.monotonic(),
        )
        self._active[new.rid] = self._held[new.rid] = active
        self._on_wire[active.wire_id] = active
        self.pump()
        return active

    def has_room(self, count: int) -> bool:
        """True when so many more requests would be taken."""
        return len(self._held) + count <= self._max_held or not self._held

    def leave(self, active: Active) -> None:
        """Nobody reads this request any more: end it without a word. Harmless after its end."""
        rid = active.new.rid
        if self._active.get(rid) is not active:
            return
        self._forget(active)
        self.num_aborted_total += 1
        if self._held.pop(rid, None) is None:
            self._tell_rank(active, "client disconnected")
            self._done(active)
        self.pump()

    def abort(self, rid: str, message: str = "Aborted") -> bool:
        """End a live request with reason abort; its client hears of it. False when unknown."""
        active = self._active.get(rid)
        if active is None:
            return False
        if rid in self._held:
            reason = FinishReason(type="abort", message="Abort in waiting queue")
            self._finish(active, reason)
        else:
            self._tell_rank(active, message)
        self.num_aborted_total += 1
        return True

    def abort_all(self, message: str = "Aborted") -> int:
        """End every live request; returns how many."""
        return sum(self.abort(rid, message) for rid in list(self._active))

    # ---- from the ranks ----------------------------------------------------------------------

    def on_tokens(self, rank: int, inc: int, items: list[TokenOut]) -> None:
        """A step's output; what is not of a live request of this rank is nobody's."""
        ended = False
        for item in items:
            active = self._on_wire.get(item.rid)
            if active is None or (active.rank, active.inc) != (rank, inc):
                continue
            assert item.start == active.num_output, f"{item.start} != {active.num_output}"
            active.num_output += len(item.token_ids)
            if active.first_token_at is None and item.token_ids:
                active.first_token_at = time.monotonic()
            if item.finish is not None:
                self._forget(active)
                self._done(active)
                self._note_latency(active)
                ended = True
            active.queue.put(item)
        if ended:
            self.pump()

    def _note_latency(self, active: Active) -> None:
        first = active.first_token_at
        self.latencies.ended(
            first_s=None if first is None else first - active.received_at,
            whole_s=time.monotonic() - active.received_at,
            tokens=active.num_output,
        )

    def on_processes(self, alive: dict[int, int]) -> None:
        """Requests of a process that is gone end here."""
        for active in list(self._active.values()):
            if active.rank is not None and alive.get(active.rank) != active.inc:
                self._router.forget(active.rank)
                message = f"rank {active.rank} was lost; send the request again"
                self._finish(active, FinishReason(type="abort", message=message, status_code=503))

    def flushed(self, rank: int) -> None:
        """A rank's cache is empty now."""
        self._router.forget(rank)

    # ---- routing -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Send held requests on, in order, as far as ranks take them."""
        if self._is_holding() or not self._held:
            return
        routable = self._routable()
        for rid, active in list(self._held.items()):
            open_ranks = [
                rank for rank in routable if self._router.num_requests(rank) < self._max_per_rank
            ]
            if not open_ranks:
                return
            wanted = active.new.routed_dp_rank
            choices = open_ranks if wanted is None else [r for r in open_ranks if r == wanted]
            rank = self._router.choose(active.chain, choices)
            if rank is not None:
                del self._held[rid]
                self._route(active, rank, routable[rank])

    def _route(self, active: Active, rank: int, inc: int) -> None:
        active.rank, active.inc = rank, inc
        self._router.sent(active.chain, rank, active.tokens)
        new = active.new
        self._send(
            rank,
            Generate(
                epoch=self._epoch,
                inc=inc,
                rid=active.wire_id,
                input_ids=new.input_ids,
                sampling=new.sampling,
                return_logprob=new.return_logprob,
                logprob_start=new.logprob_start,
                top_logprobs_num=new.top_logprobs_num,
                token_ids_logprob=new.token_ids_logprob,
                extra_key=new.extra_key,
                is_streamed=new.is_streamed,
                waited_s=time.monotonic() - active.received_at,
            ),
        )

    def is_active(self, rid: str) -> bool:
        """A live request has this id."""
        return rid in self._active

    @property
    def num_held(self) -> int:
        """Requests that wait at the frontend."""
        return len(self._held)

    @property
    def num_active(self) -> int:
        """Live requests."""
        return len(self._active)

    def load_tokens(self, rank: int) -> int:
        """Tokens in flight on a rank."""
        return self._router.load_tokens(rank)

    def _tell_rank(self, active: Active, message: str) -> None:
        assert active.rank is not None
        self._send(
            active.rank,
            AbortRequest(epoch=self._epoch, inc=active.inc, rid=active.wire_id, message=message),
        )

    def _finish(self, active: Active, reason: FinishReason) -> None:
        """End a request from here, once."""
        self._forget(active)
        if self._held.pop(active.new.rid, None) is None:
            self._done(active)
        no_logprobs: list[LogprobEntry] = []
        active.queue.put(
            TokenOut(
                rid=active.wire_id,
                start=active.num_output,
                token_ids=[],
                logprobs=no_logprobs,
                finish=reason,
            )
        )

    def _forget(self, active: Active) -> None:
        del self._active[active.new.rid]
        del self._on_wire[active.wire_id]

    def _done(self, active: Active) -> None:
        assert active.rank is not None
        self._router.ended(active.rank, active.tokens)
