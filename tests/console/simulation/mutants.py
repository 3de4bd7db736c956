"""The product with one guard removed, by name: what the simulation must notice.

Each is a context in which functions of the product are replaced. Most wrap the real one, so that
everything but the guard stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any  # the arguments of whatever is wrapped
from unittest.mock import patch

from django.db import connection, transaction

from console import dispatch
from console.choices import OPEN_STATES, AuditStage, JobState
from console.clock import db_now
from console.models import Job, Outbox
from console.params import params_from
from console.services import job_claims, job_control, job_run, job_sweep, jobs, transitions
from console.tasks import carry, lease, reconcile
from engine.frontend import control_server
from engine.frontend.coordinator import Coordinator
from engine.frontend.journal_records import Finished, JournalIndex, Sealed, Started
from engine.frontend.operations import Operations
from engine.protocol import ErrorCode, Query, QueryAnswer, QueryStatus, Welcome
from tests.console.simulation.engine import START, MemoryJournal

Mutant = Callable[[], ExitStack]
MUTANTS: dict[str, Mutant] = {}


def mutant(build: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    """Register under the function's name."""

    def entered() -> ExitStack:
        stack = ExitStack()
        build(stack)
        return stack

    MUTANTS[build.__name__] = entered
    return build


def _put(stack: ExitStack, owner: object, name: str, new: object) -> None:
    stack.enter_context(patch.object(owner, name, new))


def _wrapped(stack: ExitStack, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `owner.name` by `change(real, …)`."""
    _put(stack, owner, name, partial(change, getattr(owner, name)))


@mutant
def claims_for_anybody(stack: ExitStack) -> None:
    """Whoever asked is not looked at again."""
    _put(stack, job_claims, "_still_allowed", lambda job, now: True)
    _put(stack, job_run, "asker_require", lambda job: None)


def _from_any_state(real: Callable[..., Any], **arguments: Any) -> Any:
    """job_move as an UPDATE that asks for no state."""
    source = next(iter(arguments["frm"]))
    Job.objects.filter(pk=arguments["job_id"], state__in=OPEN_STATES).update(state=source)
    return real(**arguments | {"attempt": None, "where": None})


# ---- the console: claims, leases, attempts ---------------------------------------------------


@mutant
def claim_without_condition(stack: ExitStack) -> None:
    """A worker takes a job whatever its state."""
    _wrapped(stack, job_claims, "job_move", _claims_any)


def _claims_any(real: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["to"] == JobState.CLAIMED:
        return _from_any_state(real, **arguments)
    return real(**arguments)


@mutant
def dispatch_without_claim(stack: ExitStack) -> None:
    """Neither attempt nor lease is looked at when a job is about to be sent."""
    _wrapped(stack, job_run, "job_move", _dispatches_any)
    _put(stack, lease.Lease, "is_lost", property(lambda self: False))


def _dispatches_any(real: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["to"] == JobState.DISPATCHED:
        return _from_any_state(real, **arguments)
    return real(**arguments)


@mutant
def finish_from_any_state(stack: ExitStack) -> None:
    """The end is written over whatever is there."""
    _wrapped(stack, job_run, "job_move", _finishes_any)


def _finishes_any(real: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["to"] in (JobState.DISPATCHED, JobState.RECONCILING):
        return real(**arguments)
    source = next(iter(arguments["frm"]))
    Job.objects.filter(pk=arguments["job_id"]).update(state=source)
    return real(**arguments | {"attempt": None, "where": None})


@mutant
def unlimited_claims(stack: ExitStack) -> None:
    """A job may be claimed after the moment by which it must be sent (what ends a poison job)."""
    _wrapped(stack, job_claims, "job_move", _claims_late)
    _put(stack, reconcile.Reconciler, "expire_overdue", lambda self: None)
    _put(stack, carry, "job_expire", lambda **_: None)


def _claims_late(real: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["to"] == JobState.CLAIMED:
        arguments["where"] = lambda job: not job.blocked
    return real(**arguments)


# ---- the console: sending --------------------------------------------------------------------


@mutant
def sends_before_commit(stack: ExitStack) -> None:
    """The command goes out, then the database is told."""
    real_greet, real_wait = carry._Carrier._greet, carry._Carrier._stranger_waits

    def greet(self: Any, conversation: Any, *, patient: bool = True) -> Any:
        self.greeting = real_greet(self, conversation, patient=patient)
        return self.greeting

    def wait(self: Any, conversation: Any) -> bool:
        if real_wait(self, conversation):
            return True
        command = carry.submit_of(self.job, self.params, self.greeting, db_now())
        conversation.send(command, timeout_s=carry.SEND_S)
        return False

    _put(stack, carry._Carrier, "_greet", greet)
    _put(stack, carry._Carrier, "_stranger_waits", wait)
    _sends_before_claim(stack)


def _sends_before_claim(stack: ExitStack) -> None:
    """Where both are one transaction."""
    real_first, real_claim = carry._first_greeting, carry.job_claim_dispatched
    greeted: dict[Welcome, tuple[Any, Any]] = {}

    def first(conversation: Any) -> Any:
        greeting = real_first(conversation)
        if greeting is not None:
            greeted[greeting.welcome] = conversation, greeting
        return greeting

    def claim(*, job_id: Any, owner: str, welcome: Welcome) -> Any:
        conversation, greeting = greeted[welcome]
        job = Job.objects.select_related("engine").get(pk=job_id)
        if job.dispatch_by is not None:
            params = params_from(job.kind, job.params)
            command = carry.submit_of(job, params, greeting, db_now())
            conversation.send(command, timeout_s=carry.SEND_S)
        return real_claim(job_id=job_id, owner=owner, welcome=welcome)

    _put(stack, carry, "_first_greeting", first)
    _put(stack, carry, "job_claim_dispatched", claim)


@mutant
def sends_again(stack: ExitStack) -> None:
    """A job whose worker went silent is given to another one, though it was sent."""

    def again(*, job_id: Any, **_: object) -> None:
        moved = Job.objects.filter(pk=job_id, state=JobState.DISPATCHED).update(
            state=JobState.ACCEPTED, lease_owner="", lease_until=None
        )
        if moved:
            dispatch.job_ring(job_id)

    _put(stack, reconcile, "job_reconcile", again)


# ---- the console: repair ---------------------------------------------------------------------


@mutant
def rings_once(stack: ExitStack) -> None:
    """A doorbell that is lost is not rung again."""
    _put(stack, reconcile, "doorbells_ring", lambda: 0)


@mutant
def keeps_lapsed_claims(stack: ExitStack) -> None:
    """A claim whose worker went silent stays."""
    _put(stack, reconcile, "job_release", lambda **_: None)


@mutant
def keeps_lapsed_jobs(stack: ExitStack) -> None:
    """A sent job whose worker went silent stays."""
    _put(stack, reconcile, "job_reconcile", lambda **_: None)


@mutant
def expires_nothing(stack: ExitStack) -> None:
    """Nobody ends a job that was not sent in time."""
    _put(stack, reconcile.Reconciler, "expire_overdue", lambda self: None)
    _put(stack, carry, "job_expire", lambda **_: None)


@mutant
def fails_without_asking(stack: ExitStack) -> None:
    """A job whose worker went silent is called failed."""
    _wrapped(stack, reconcile, "job_reconcile", _fails)


def _fails(real: Callable[..., Any], **arguments: Any) -> Any:
    job = real(**arguments)
    if job is not None:
        answer = QueryAnswer(op_id=str(job.pk), engine_id="", status=QueryStatus.NEVER)
        job_sweep.job_never_ran(job_id=job.pk, attempt=job.attempt, answer=answer)
    return job


@mutant
def asks_without_seal(stack: ExitStack) -> None:
    """The engine says that it never saw a job, and promises nothing."""
    _put(stack, reconcile, "Query", lambda op_id, seal: Query(op_id=op_id, seal=False))


@mutant
def believes_any_engine(stack: ExitStack) -> None:
    """Another engine at the address answers for the one that is gone."""
    real = reconcile.Reconciler._ask

    def ask(self: Any, conversation: Any, job: Any) -> None:
        class Same:
            def __getattr__(self, name: str) -> Any:
                return getattr(conversation, name)

            def call(self, command: Any, *, timeout_s: float) -> Any:
                answer = conversation.call(command, timeout_s=timeout_s)
                if isinstance(answer, QueryAnswer):
                    job.engine_identity = answer.engine_id
                return answer

        real(self, Same(), job)

    _put(stack, reconcile.Reconciler, "_ask", ask)


@mutant
def believes_every_refusal(stack: ExitStack) -> None:
    """Whatever the engine answers, it did nothing."""
    _put(stack, carry, "CLEAN_REFUSALS", frozenset(ErrorCode))
    _put(stack, job_run, "CLEAN_REFUSALS", frozenset(ErrorCode))


@mutant
def forgets_strangers(stack: ExitStack) -> None:
    """A job that waits for an operation of somebody else is not let go."""
    _put(stack, reconcile.Reconciler, "unblock", lambda self: None)


@mutant
def lets_nobody_go(stack: ExitStack) -> None:
    """The job that waits for this one is not let go, now or later."""
    _put(stack, transitions, "job_let_next", lambda **_: None)
    _put(stack, job_sweep, "job_let_next", lambda **_: None)


# ---- the console: cancel, exclusivity, the audit log -----------------------------------------


@mutant
def cancels_by_itself(stack: ExitStack) -> None:
    """A job that was sent is called cancelled when somebody wishes so."""

    def cancel(job: Any, actor: Any, reason: str) -> Any:
        with transaction.atomic():
            return transitions.job_move(
                job_id=job.pk,
                frm={JobState.DISPATCHED},
                to=JobState.CANCELLED,
                actor=actor,
                process="web",
                now=db_now(),
            )

    _put(stack, job_control, "_cancel_sent", cancel)


@mutant
def cancels_once(stack: ExitStack) -> None:
    """A cancel that the engine could not hear is not repeated."""
    _put(stack, reconcile.Reconciler, "repeat_cancels", lambda self: None)


@mutant
def two_holders(stack: ExitStack) -> None:
    """A second exclusive job does not wait, and no index keeps it from being claimed."""
    _put(stack, jobs, "job_holder", lambda engine: None)
    connection.cursor().execute("DROP INDEX job_one_holder_an_engine")


@mutant
def replays_nothing(stack: ExitStack) -> None:
    """The same key is another job each time."""
    _put(stack, jobs, "_replayed", lambda *_: None)


@mutant
def intent_not_written(stack: ExitStack) -> None:
    """A job is accepted without an audit entry."""
    _put(stack, jobs, "audit_append", lambda **_: None)


@mutant
def outcome_written_later(stack: ExitStack) -> None:
    """The end of a job and its audit entry are two transactions."""
    _wrapped(stack, transitions, "audit_append", _appends_later)


def _appends_later(real: Callable[..., Any], **arguments: Any) -> Any:
    if arguments["stage"] != AuditStage.OUTCOME:
        return real(**arguments)

    def later() -> None:
        with transaction.atomic():
            real(**arguments)

    transaction.on_commit(later)
    return None


@mutant
def doorbell_not_owed(stack: ExitStack) -> None:
    """A job is accepted, and nothing in the database says that it waits for a worker."""

    def ring(job: Any, now: Any) -> None:
        transaction.on_commit(partial(dispatch.job_ring, job.pk), robust=True)

    _put(stack, transitions, "job_doorbell", ring)
    _put(stack, jobs, "job_doorbell", ring)


@mutant
def rings_before_commit(stack: ExitStack) -> None:
    """The doorbell is rung inside the transaction."""

    def ring(job: Any, now: Any) -> None:
        Outbox.objects.update_or_create(
            job=job, defaults={"created_at": now, "rung_at": now, "rings": 1}
        )
        dispatch.job_ring(job.pk)

    _put(stack, transitions, "job_doorbell", ring)
    _put(stack, jobs, "job_doorbell", ring)


# ---- the engine ------------------------------------------------------------------------------


@mutant
def engine_without_epoch(stack: ExitStack) -> None:
    """A command for an earlier start of the frontend is taken, its clock and all."""
    real = control_server.ControlServer._submit

    def submit(self: Any, peer: bytes, request_id: str, command: Any) -> None:
        class Now:
            def __getattr__(self, name: str) -> Any:
                return getattr(command, name)

            epoch = self._frontend.epoch.text

        real(self, peer, request_id, Now())  # type: ignore[arg-type]

    _put(stack, control_server.ControlServer, "_submit", submit)


@mutant
def engine_without_deadline(stack: ExitStack) -> None:
    """However late a command comes, it is begun."""
    real = Operations.submit

    def submit(self: Any, *, start_by: float | None = None, **arguments: Any) -> Any:
        return real(self, start_by=None, **arguments)

    _put(stack, Operations, "submit", submit)


@mutant
def engine_without_memo(stack: ExitStack) -> None:
    """A repeated id is run again."""
    _put(stack, Operations, "_known", lambda self, op_id, digest: None)


@mutant
def engine_without_seal(stack: ExitStack) -> None:
    """The engine promises never to run an id, and forgets it."""
    _drop(stack, Sealed)


@mutant
def engine_without_started(stack: ExitStack) -> None:
    """What was begun is not on record."""
    _drop(stack, Started)


@mutant
def engine_without_journal(stack: ExitStack) -> None:
    """A restarted frontend knows nothing of its predecessor's operations."""

    def reload(self: Any) -> None:
        kept = [r for r in self.records if not isinstance(r, Started | Finished | Sealed)]
        self.index = JournalIndex(initial=self.index.desired if self.records else START)
        for record in kept:
            self.index.apply(record)

    _put(stack, MemoryJournal, "reload", reload)


def _drop(stack: ExitStack, kind: type) -> None:
    real = MemoryJournal.append

    def append(self: Any, record: Any) -> None:
        self.drop = (kind,)
        real(self, record)

    _put(stack, MemoryJournal, "append", append)


@mutant
def engine_takes_two(stack: ExitStack) -> None:
    """The engine begins a second operation while one is open."""
    _put(stack, Coordinator, "_refuse_if_busy", lambda self: None)


@contextmanager
def weakened(name: str) -> Iterator[None]:
    """The product without one guard."""
    with MUTANTS[name]():
        yield
