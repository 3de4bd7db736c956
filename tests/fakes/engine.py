"""FakeEngine: the engine's side of both sockets, scripted, in a thread of the test.

It has an idle control, one pending operation, a journal with memo and seal that survives `restart`,
and records every command it receives with its time. It decides nothing cleverly.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from engine.protocol import (
    PROTOCOL_VERSION,
    Accepted,
    Answer,
    AttachStorage,
    Cancel,
    Command,
    EngineState,
    ErrorCode,
    Event,
    EventList,
    Extend,
    Failure,
    FlushCache,
    Force,
    Hello,
    KeepSecrets,
    KVUsage,
    ListCheckpoints,
    ListOperations,
    Mode,
    OperationChanged,
    OperationEnded,
    OperationList,
    OperationResult,
    OperationView,
    Outcome,
    Phase,
    Places,
    Progress,
    ProtocolError,
    Query,
    QueryAnswer,
    QueryStatus,
    RankResult,
    RankState,
    RankView,
    Replay,
    Request,
    Response,
    Snapshot,
    Staging,
    StateAnswer,
    StateChanged,
    Submit,
    Upload,
    Welcome,
    decode_request,
    encode_event,
    encode_response,
)
from tests.fakes.engine_storage import FakeStorage
from tests.fakes.engine_weights import FakeWeights, is_weight_update
from tests.fakes.ports import free_port

TICK_MS = 10
HEARTBEAT_S = 0.5
HARSHER = {
    Mode.IF_IDLE: Mode.DRAIN,
    Mode.WAIT: Mode.DRAIN,
    Mode.DRAIN: Mode.ABORT,
    Mode.RETRACT: Mode.ABORT,
}


@dataclass
class Received:
    """One command, as it came."""

    at: float
    identity: bytes
    request: Request

    @property
    def command(self) -> Command:
        return self.request.command


@dataclass
class Journal:
    """What survives a restart."""

    engine_id: str = field(default_factory=lambda: f"engine-{secrets.token_hex(4)}")
    finished: dict[str, OperationResult] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    effects: list[str] = field(default_factory=list)  # op ids that changed something, in order


@dataclass
class _Pending:
    submit: Submit
    identity: bytes
    request_id: str
    started: float
    deadline: float
    mode: Mode
    attempt: int = 1
    phase: Phase = Phase.WAITING_FOR_IDLE
    staged_at: float | None = None
    held_since: float | None = None


class FakeEngine:
    """Use as a context manager; `name`, `control_address` and `events_address` register it."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        dp_size: int = 2,
        authorized: set[str] | None = None,
    ) -> None:
        """`authorized`: on tcp, with CURVE, for consoles that hold one of these public keys."""
        self.authorized = authorized
        self.name = name or f"fake-{secrets.token_hex(3)}"
        self.folder = folder
        self.control_address = f"ipc://{folder}/{self.name}-c.sock"
        self.events_address = f"ipc://{folder}/{self.name}-e.sock"
        self.public_key = ""
        if authorized is not None:
            public, self._secret_key = zmq.curve_keypair()
            self.public_key = public.decode()
            self.control_address = f"tcp://127.0.0.1:{free_port()}"
            self.events_address = f"tcp://127.0.0.1:{free_port()}"
        self.dp_size = dp_size
        self.journal = Journal()
        self.weights = FakeWeights(dp_size)  # survives a restart, like the ranks' memory
        self.storage = FakeStorage(dp_size)
        self.held = 0  # requests that wait while an operation is pending
        self.received: list[Received] = []
        # scripts
        self.running = 0  # of every rank: 0 is idle
        self.is_ready = True
        self.drop_answers = False  # the effect happens, the Answer is lost
        self.drop_submits = False  # as if the frame had been lost
        self.drop_everything = False  # hears nothing
        self.refuse_submit: ErrorCode | None = None
        self.fail_ranks: set[int] = set()
        self.commit_s = 0.0
        self.heartbeat_s = HEARTBEAT_S
        self.skip_events = 0  # as many numbers are used without being sent
        self._starts = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.RLock()

    # -- life ---------------------------------------------------------------------------------
    def __enter__(self) -> FakeEngine:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> FakeEngine:
        """Bind and serve; a new epoch each time."""
        assert self._thread is None
        self._starts += 1
        self.epoch = f"{self._starts}-{secrets.token_hex(4)}"
        self.seq = 0
        self.ring: deque[Event] = deque(maxlen=1000)
        self._greeted: set[bytes] = set()
        self.pending: _Pending | None = None
        self._committing_since = 0.0
        self._told_at = 0.0
        self._stop.clear()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(5)
        return self

    def stop(self) -> None:
        """Vanish, as by kill -9: the pending operation's caller hears nothing."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(5)
            self._thread = None

    def restart(self, *, outcome: Outcome | None = Outcome.FAILED) -> FakeEngine:
        """Stop and start; a pending operation is ended by recovery with `outcome`."""
        pending = self.pending
        self.stop()
        self.storage.restarted()
        if pending is not None and outcome is not None:
            self._record(pending, outcome, "the engine restarted before the decision")
        return self.start()

    # -- what tests look at ---------------------------------------------------------------------
    def commands(self, kind: type[Command]) -> list[Received]:  # type: ignore[valid-type]
        with self._lock:
            return [got for got in self.received if isinstance(got.command, kind)]  # type: ignore[arg-type]

    def submits(self, op_id: object = None) -> list[Submit]:
        """The Submits received, of one operation if named."""
        found = [got.command for got in self.commands(Submit)]
        return [one for one in found if op_id is None or one.op_id == str(op_id)]  # type: ignore[union-attr,misc]

    @property
    def clock_s(self) -> float:
        return time.monotonic()

    def busy(self, running: int = 1) -> None:
        with self._lock:
            self.running = running

    def idle(self) -> None:
        self.busy(0)

    def hold(self, op_id: str, *, timeout_s: float = 30.0) -> None:
        """Begin an operation of a stranger, as if asked over HTTP."""
        now = self.clock_s
        submit = Submit(
            op_id=op_id,
            epoch=self.epoch,
            operation=FlushCache(),
            mode=Mode.WAIT,
            timeout_s=timeout_s,
            start_by_clock_s=now + timeout_s,
        )
        with self._lock:
            self.pending = _Pending(submit, b"", "", now, now + timeout_s, Mode.WAIT)

    # -- serving --------------------------------------------------------------------------------
    def _serve(self, ready: threading.Event) -> None:
        context = zmq.Context()
        guard = self._guard(context)
        self._router = context.socket(zmq.ROUTER)
        self._secure(self._router)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.bind(self.control_address)
        self._pub = context.socket(zmq.PUB)
        self._secure(self._pub)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.SNDHWM, 1000)
        self._pub.bind(self.events_address)
        ready.set()
        beat_at = 0.0
        shown: object = None
        try:
            while not self._stop.is_set():
                if self._router.poll(TICK_MS):
                    identity, frame = self._router.recv_multipart()
                    with self._lock:
                        self._take(identity, frame)
                with self._lock:
                    self._advance()
                    look = (
                        self.running,
                        self.pending.phase if self.pending else None,
                        self.weights.version,
                        self.weights.look(),
                        self.storage.look(),
                    )
                    if look != shown or self.clock_s - beat_at >= self.heartbeat_s:
                        shown, beat_at = look, self.clock_s
                        self._publish(StateChanged(state=self.state()))
        finally:
            if guard is not None:
                guard.stop()
            context.destroy(linger=0)

    def _guard(self, context: zmq.Context) -> ThreadAuthenticator | None:
        if self.authorized is None:
            return None
        guard = ThreadAuthenticator(context)
        guard.start()
        guard.configure_curve_callback(domain="fake", credentials_provider=self)
        return guard

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the authenticator lets a peer of this public key in."""
        return key.decode() in (self.authorized or ())

    def _secure(self, socket: zmq.Socket) -> None:
        if self.authorized is not None:
            socket.setsockopt(zmq.ZAP_DOMAIN, b"fake")
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key)

    def _take(self, identity: bytes, frame: bytes) -> None:
        try:
            request = decode_request(frame)
        except ProtocolError:
            return
        self.received.append(Received(time.monotonic(), identity, request))
        if self.drop_everything:
            return
        if self.drop_submits and isinstance(request.command, Submit):
            return
        if isinstance(request.command, Hello):
            self._greeted.add(identity)
        elif identity not in self._greeted:
            self._send(identity, request.id, self._failure(ErrorCode.BAD_MESSAGE, "Hello first"))
            return
        reply = self._reply(identity, request)
        if reply is not None:
            self._send(identity, request.id, reply)

    def _send(self, identity: bytes, request_id: str, body: object) -> None:
        if identity:
            frame = encode_response(Response(id=request_id, body=body))  # type: ignore[arg-type]
            self._router.send_multipart([identity, frame])

    def _failure(self, code: ErrorCode, message: str = "", **more: object) -> Failure:
        return Failure(code=code, message=message or str(code), retryable=False, **more)  # type: ignore[arg-type]

    def _reply(self, identity: bytes, request: Request) -> object:
        match request.command:
            case Hello():
                return Welcome(
                    protocol_version=PROTOCOL_VERSION,
                    engine_id=self.journal.engine_id,
                    epoch=self.epoch,
                    clock_s=self.clock_s,
                    dp_size=self.dp_size,
                    model="fake",
                    ready=self.is_ready,
                )
            case Submit() as submit:
                return self._submit(identity, request.id, submit)
            case Query() as query:
                return self._query(query)
            case ListOperations():
                return OperationList(
                    open=[self.view()] if self.pending else [],
                    finished=list(self.journal.finished.values())[::-1],
                )
            case Snapshot():
                return StateAnswer(state=self.state())
            case Replay(epoch=epoch, after_seq=after):
                events = [event for event in self.ring if event.seq > after]
                complete = epoch == self.epoch and (not events or events[0].seq == after + 1)
                return EventList(events=events if complete else [], complete=complete)
            case Cancel(op_id=op_id) | Extend(op_id=op_id) | Force(op_id=op_id):
                return self._steer(op_id, request.command)
        return self._beside(request.command)

    def _beside(self, command: Command) -> object:
        """What is asked beside operations."""
        match command:
            case ListCheckpoints(path=path):
                return self.weights.list_checkpoints(path)
            case KeepSecrets() if self.storage.refuse_secrets:
                return self._failure(ErrorCode.INVALID_ARGUMENT, self.storage.refuse_secrets)
            case KeepSecrets() as kept:
                return self.storage.keep(kept)
            case Upload() if self.weights.refuse_upload:
                return self._failure(ErrorCode.INVALID_ARGUMENT, "no room for it")
            case Upload() as piece:
                return self.weights.take(piece)
        raise AssertionError(command)

    def _submit(self, identity: bytes, request_id: str, submit: Submit) -> object:
        if submit.op_id in self.journal.finished:
            return Answer(result=self.journal.finished[submit.op_id])
        if submit.op_id in self.journal.sealed:
            return self._failure(ErrorCode.SEALED)
        if submit.epoch != self.epoch:
            return self._failure(ErrorCode.STALE_EPOCH)
        if self.refuse_submit is not None:
            return self._failure(self.refuse_submit)
        if self.clock_s > submit.start_by_clock_s:
            self.journal.sealed.add(submit.op_id)
            return self._failure(ErrorCode.TOO_LATE)
        if not self.weights.is_exclusive(submit.operation):
            return self._at_once(submit)
        if self.weights.fenced and not self.weights.is_repair(submit.operation):
            return self._failure(ErrorCode.RANK_NOT_READY, "rank 1 is fenced")
        why = self.weights.refusal(submit.operation) or self.storage.refusal(submit.operation)
        if why is not None:
            return self._failure(ErrorCode.INVALID_ARGUMENT, why)
        if self.pending is not None:
            return self._failure(
                ErrorCode.OPERATION_PENDING,
                "Another operation is in progress.",
                holder=self.pending.submit.op_id,
                remaining_s=max(0.0, self.pending.deadline - self.clock_s),
            )
        now = self.clock_s
        self.pending = _Pending(
            submit,
            identity,
            request_id,
            now,
            min(now + submit.timeout_s, submit.start_by_clock_s),
            submit.mode,
        )
        self._begin(self.pending)
        return None

    def _begin(self, pending: _Pending) -> None:
        """What is staged or probed first; what is refused at once; what waits."""
        operation = pending.submit.operation
        self.storage.begin()
        if is_weight_update(operation):
            pending.deadline += self.weights.stage_s
        if is_weight_update(operation) or isinstance(operation, AttachStorage):
            pending.phase = Phase.PREPARING
        elif pending.submit.mode is Mode.IF_IDLE and self.running:
            self._end(Outcome.FAILED, f"not idle: {Places(running=self.running)}")
            return
        self._progress()

    def _query(self, query: Query) -> QueryAnswer:
        op_id = query.op_id
        result = self.journal.finished.get(op_id)
        view = self.view() if self.pending and self.pending.submit.op_id == op_id else None
        if result is None and view is None and query.seal:
            self.journal.sealed.add(op_id)
        status = QueryStatus.FINISHED if result else QueryStatus.OPEN if view else QueryStatus.NEVER
        return QueryAnswer(
            op_id=op_id,
            engine_id=self.journal.engine_id,
            status=status,
            operation=view,
            result=result,
        )

    def _steer(self, op_id: str, command: Command) -> object:
        pending = self.pending
        if pending is None or pending.submit.op_id != op_id:
            return self._failure(ErrorCode.UNKNOWN_OPERATION)
        if pending.phase not in (Phase.WAITING_FOR_IDLE, Phase.PREPARING):
            return self._failure(ErrorCode.NOT_CANCELLABLE, "committing")
        if isinstance(command, Cancel):
            pending.phase = Phase.CANCELLING
            reply = Accepted(operation=self.view())
            self._end(Outcome.CANCELLED, "cancelled")
            return reply
        pending.attempt += 1
        if isinstance(command, Extend):
            pending.deadline += command.by_s
        else:
            pending.mode = HARSHER[pending.mode]
        self._progress()
        return Accepted(operation=self.view())

    def _progress(self) -> None:
        assert self.pending is not None
        self._send(self.pending.identity, self.pending.request_id, Progress(operation=self.view()))
        self._publish(OperationChanged(operation=self.view()))

    def _advance(self) -> None:
        pending = self.pending
        if pending is None:
            return
        now = self.clock_s
        if pending.phase is Phase.PREPARING and isinstance(pending.submit.operation, AttachStorage):
            self._probe(pending, now)
        elif pending.phase is Phase.PREPARING:
            self._stage(pending, now)
        elif pending.phase is Phase.COMMITTING:
            if now - self._committing_since >= self.commit_s:
                self.journal.effects.append(pending.submit.op_id)
                bad = bool(self.fail_ranks)
                self.weights.commit(pending.submit.operation, self.fail_ranks)
                self.storage.commit(pending.submit.operation, self.fail_ranks)
                self._end(
                    Outcome.PARTIAL if bad else Outcome.SUCCEEDED,
                    "some ranks failed" if bad else self.weights.said(pending.submit.operation),
                )
        elif (
            not self.running
            or pending.mode in (Mode.ABORT, Mode.RETRACT)
            or self.weights.is_at_once(pending.submit.operation)
            or self.storage.is_at_once(pending.submit.operation)
        ):
            pending.phase = Phase.COMMITTING
            self._committing_since = now
            self._progress()
        elif now >= pending.deadline:
            self._end(
                Outcome.EXPIRED, f"Timed out waiting for idle: {Places(running=self.running)}"
            )

    def _probe(self, pending: _Pending, now: float) -> None:
        """Every rank opens and probes the backend; then idle is waited for."""
        if now - pending.started < self.storage.prepare_s:
            return
        if self.storage.refuse_ranks:
            reasons = "; ".join(
                f"rank {rank}: {why}" for rank, why in sorted(self.storage.refuse_ranks.items())
            )
            self._end(Outcome.FAILED, reasons)
            return
        pending.staged_at = now
        pending.deadline = now + pending.submit.timeout_s
        pending.phase = Phase.WAITING_FOR_IDLE
        if pending.mode is Mode.IF_IDLE and self.running:
            self._end(Outcome.FAILED, f"not idle: {Places(running=self.running)}")
            return
        self._progress()

    def _stage(self, pending: _Pending, now: float) -> None:
        """Bytes go on; then the deadline begins, and idle is waited for."""
        share = self.weights.staged_share(now - pending.started)
        if share < 1.0:
            if now - self._told_at > 0.1:
                self._told_at = now
                self._progress()
            return
        if self.weights.refuse_staging:
            self._end(Outcome.FAILED, self.weights.refuse_staging)
            return
        pending.staged_at = now
        pending.held_since = now if pending.mode not in (Mode.WAIT, Mode.IF_IDLE) else None
        pending.deadline = now + pending.submit.timeout_s
        pending.phase = Phase.WAITING_FOR_IDLE
        if pending.mode is Mode.IF_IDLE and self.running:
            self._end(Outcome.FAILED, f"not idle: {Places(running=self.running)}")
            return
        self._progress()

    def _at_once(self, submit: Submit) -> object:
        """Not exclusive: carried out beside whatever waits."""
        now = self.clock_s
        pending = _Pending(submit, b"", "", now, now, submit.mode)
        ended = self.running
        self.running = 0
        self.journal.effects.append(submit.op_id)
        result = self._record(
            pending, Outcome.SUCCEEDED, f"aborted {ended * self.dp_size} requests", ended
        )
        return Answer(result=result)

    def _record(
        self, pending: _Pending, outcome: Outcome, message: str, interrupted: int = 0
    ) -> OperationResult:
        now = self.clock_s
        facts: dict = {}
        if is_weight_update(pending.submit.operation):
            staged = pending.staged_at
            facts = {
                "weights": self.weights.served,
                "weights_before": self.weights.before,
                "pause_s": None if staged is None else now - staged,
                "staged_s": None if staged is None else staged - pending.started,
            }
        facts |= self.storage.facts(pending.submit.operation)
        if isinstance(pending.submit.operation, AttachStorage) and pending.staged_at is not None:
            facts |= {
                "pause_s": now - pending.staged_at,
                "staged_s": pending.staged_at - pending.started,
            }
        result = OperationResult(
            op_id=pending.submit.op_id,
            kind=pending.submit.operation.kind,
            mode=pending.mode,
            outcome=outcome,
            message=message,
            ranks=[
                RankResult(
                    dp_rank=rank,
                    state=(
                        RankState.NOT_STARTED
                        if outcome is Outcome.FAILED
                        and self.storage.refuse_ranks
                        and rank not in self.storage.refuse_ranks
                        else RankState.FAILED
                        if rank in self.fail_ranks or outcome is Outcome.FAILED
                        else RankState.SUCCEEDED
                        if outcome in (Outcome.SUCCEEDED, Outcome.PARTIAL)
                        else RankState.NOT_STARTED
                    ),
                    message=self._said_of(rank, outcome, message),
                    places=Places(running=self.running),
                    interrupted=interrupted,
                    staging=self._staging(pending),
                    effect_s=0.02 if outcome is Outcome.SUCCEEDED and facts else None,
                )
                for rank in range(self.dp_size)
            ],
            started_clock_s=pending.started,
            finished_clock_s=self.clock_s,
            epoch=self.epoch,
            held_requests=self.held,
            interrupted=interrupted * self.dp_size,
            **facts,
        )
        self.journal.finished[pending.submit.op_id] = result
        return result

    def _said_of(self, rank: int, outcome: Outcome, message: str) -> str:
        if outcome is Outcome.SUCCEEDED:
            return "ok"
        if self.storage.refuse_ranks and rank not in self.storage.refuse_ranks:
            return "could have; nothing was changed"
        if outcome is Outcome.PARTIAL and rank not in self.fail_ranks:
            return "ok"
        return self.storage.rank_result(rank) or message

    def _end(self, outcome: Outcome, message: str) -> None:
        pending = self.pending
        assert pending is not None
        result = self._record(pending, outcome, message)
        self.pending = None
        if not self.drop_answers:
            self._send(pending.identity, pending.request_id, Answer(result=result))
        self._publish(OperationEnded(result=result))

    # -- views ----------------------------------------------------------------------------------
    def view(self) -> OperationView:
        pending = self.pending
        assert pending is not None
        return OperationView(
            op_id=pending.submit.op_id,
            kind=pending.submit.operation.kind,
            mode=pending.mode,
            phase=pending.phase,
            attempt=pending.attempt,
            timeout_s=pending.submit.timeout_s,
            started_clock_s=pending.started,
            deadline_clock_s=pending.deadline,
            remaining_s=max(0.0, pending.deadline - self.clock_s),
            held_requests=self.held,
            awaited_ranks=list(range(self.dp_size)) if self.running else [],
            ranks=[
                RankResult(
                    dp_rank=rank,
                    state=RankState.NOT_STARTED
                    if pending.phase is Phase.PREPARING
                    else RankState.WAITING
                    if self.running
                    else RankState.PARKED,
                    message=f"running={self.running}" if self.running else "",
                    places=Places(running=self.running),
                    staging=self._staging(pending),
                )
                for rank in range(self.dp_size)
            ],
            requested_by=pending.submit.requested_by,
            held_since_clock_s=pending.held_since,
            storage=self.storage.view_of(pending.submit.operation)
            if isinstance(pending.submit.operation, AttachStorage)
            else None,
        )

    def _staging(self, pending: _Pending) -> Staging | None:
        if not is_weight_update(pending.submit.operation):
            return None
        return self.weights.staging(self.clock_s - pending.started, pending.staged_at is not None)

    def state(self) -> EngineState:
        return EngineState(
            engine_id=self.journal.engine_id,
            epoch=self.epoch,
            seq=self.seq,
            clock_s=self.clock_s,
            model="fake",
            version="0",
            idle=not self.running,
            ranks=[
                RankView(
                    dp_rank=rank,
                    incarnation=1,
                    online=True,
                    proven=rank not in self.weights.fenced,
                    idle=not self.running,
                    places=Places(running=self.running),
                    weight_version=self.weights.ranks[rank].version,
                    weight_checksum=self.weights.ranks[rank].checksum,
                    condition="fenced" if rank in self.weights.fenced else "",
                    prefill_tokens_per_s=self.weights.prefill_tokens_per_s,
                    storage_backend=self._backend_of(rank),
                    host=self.storage.host(),
                    storage=self.storage.rank(rank),
                    kv=KVUsage(
                        total_pages=100,
                        free_pages=90,
                        evictable_pages=5,
                        locked_pages=5,
                        held_pages=0,
                        page_size_tokens=16,
                    ),
                    hit_rate=0.5,
                    decode_tokens_per_s=0.0,
                    running=self.running,
                    waiting=0,
                    age_s=0.0,
                )
                for rank in range(self.dp_size)
            ],
            pending_operation=self.view() if self.pending else None,
            held_requests=self.held,
            http_address="127.0.0.1:30000",
            weights=self.weights.served,
            weights_roots=self.weights.roots,
            paused=self.weights.paused,
            released=list(self.weights.released),
            needs_weights=self.weights.needs_weights,
            storage=self.storage.attached,
            policies=self.storage.policies,
            hierarchical=self.storage.hierarchical,
            storage_roots=self.storage.roots(),
            backends=self.storage.backends(),
        )

    def _backend_of(self, rank: int) -> str | None:
        found = self.storage.rank(rank)
        return None if found is None else str(found.backend)

    def _publish(self, body: StateChanged | OperationChanged | OperationEnded) -> None:
        self.seq += 1
        if isinstance(body, StateChanged):
            body = StateChanged(state=msgspec.structs.replace(body.state, seq=self.seq))
        event = Event(epoch=self.epoch, seq=self.seq, clock_s=self.clock_s, body=body)
        self.ring.append(event)
        if self.skip_events > 0:
            self.skip_events -= 1
            return
        self._pub.send(encode_event(event))
