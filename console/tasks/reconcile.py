"""The reconciler: what no worker follows is rung for again, given back, expired, or asked about.

One pass takes what the database says and asks engines, bounded; any number may run at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import structlog
from django.db import DatabaseError, close_old_connections, connection, transaction

from console.access import EVERYTHING
from console.choices import JobState
from console.clock import db_now, monotonic_s
from console.exceptions import AuditUnavailable, ConsoleError
from console.gateways import Conversation, EngineSilent, gateway_for
from console.models import Engine, Job
from console.services.audit_anchor import audit_anchor
from console.services.audit_check import audit_check
from console.services.foreign import foreign_confirm
from console.services.job_claims import job_release
from console.services.job_control import cancel_forward
from console.services.job_run import job_expire, job_finish, job_progress, job_reconcile
from console.services.job_sweep import (
    doorbells_ring,
    job_interrupted,
    job_let_go,
    job_never_ran,
    job_note,
    jobs_blocked_by_strangers,
    jobs_lapsed,
    jobs_overdue,
    jobs_to_cancel,
    jobs_unknown,
)
from console.services.uploads import uploads_sweep
from engine.protocol import (
    EngineState,
    ProtocolError,
    Query,
    QueryAnswer,
    QueryStatus,
    Snapshot,
    StateAnswer,
)

log = structlog.get_logger(__name__)

ASK_S = 0.5
SWEEP_EVERY_S = 600.0  # of uploaded files
CHECK_EVERY_S = 60.0  # of what is new in the audit log
CHECK_ALL_EVERY_S = 6 * 3600.0
OVERDUE_GRACE_S = 2.0  # a worker that holds the claim says better why


class Reconciler:
    """Passes over all open jobs. `engine_pause_s` spaces the tries at an engine that is silent."""

    def __init__(self, engine_pause_s: float = 1.0) -> None:
        self._engine_pause_s = engine_pause_s
        self._not_before: dict[int, float] = {}
        self._swept_at = monotonic_s()
        self._checked_at = self._all_checked_at = monotonic_s() - CHECK_EVERY_S

    def run_pass(self) -> None:
        """One pass; a step that fails, from whatever cause, is logged and stops no other."""
        steps: list[Callable[[], object]] = [
            doorbells_ring,
            self.expire_overdue,
            self.release_lapsed,
            self.ask_unknown,
            self.repeat_cancels,
            self.unblock,
            self.sweep_uploads,
            self.check_audit,
        ]
        for step in steps:
            try:
                step()
            except DatabaseError as error:
                log.warning("reconciler step failed", step=step.__name__, error=repr(error))
                connection.close()
            except Exception as error:
                # A fault of ours, or of a row: the other steps carry jobs of other engines.
                log.error("reconciler step failed", step=step.__name__, exc_info=error)
        close_old_connections()

    def sweep_uploads(self) -> None:
        if monotonic_s() - self._swept_at < SWEEP_EVERY_S:
            return
        self._swept_at = monotonic_s()
        if cleared := uploads_sweep():
            log.info("uploads cleared", count=cleared)

    def check_audit(self) -> None:
        """Sign the head of the audit log, and check what is new; all of it now and then."""
        now = monotonic_s()
        if now - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at = now
        is_full = now - self._all_checked_at >= CHECK_ALL_EVERY_S
        if is_full:
            self._all_checked_at = now
        try:
            audit_anchor()
            verdict = audit_check(rights=EVERYTHING, is_full=is_full)
        except AuditUnavailable as error:
            log.error("the audit log is not signed", reason=error.message)
            return
        if verdict.fault is not None:
            log.error("the audit log is broken", seq=verdict.fault.seq, reason=verdict.fault.why)

    def expire_overdue(self) -> None:
        now = db_now()
        for job in jobs_overdue(now=now):
            assert job.dispatch_by is not None, job.pk
            late_s = (now - job.dispatch_by).total_seconds()
            if job.state == JobState.CLAIMED and late_s < OVERDUE_GRACE_S:
                continue
            job_expire(
                job_id=job.pk,
                attempt=job.attempt,
                process="reconciler",
                code="engine_unreachable" if job.note else "deadline_passed",
                message=f"{job.note}; nothing was sent" if job.note else "",
                now=now,
            )

    def release_lapsed(self) -> None:
        now = db_now()
        for job in jobs_lapsed(now=now):
            if job.state == JobState.CLAIMED:
                job_release(
                    job_id=job.pk,
                    attempt=job.attempt,
                    why="its worker went silent before anything was sent",
                    process="reconciler",
                    pause_s=0,
                    lapsed_at=now,
                )
            else:
                job_reconcile(
                    job_id=job.pk,
                    attempt=job.attempt,
                    why="its worker went silent; asking the engine what became of it",
                    process="reconciler",
                    lapsed_at=now,
                )

    def ask_unknown(self) -> None:
        by_engine: dict[int, list[Job]] = defaultdict(list)
        for job in jobs_unknown():
            by_engine[job.engine_id].append(job)
        for engine_pk, jobs in by_engine.items():
            if monotonic_s() >= self._not_before.get(engine_pk, 0.0):
                self._ask_engine(jobs[0].engine, jobs)

    def _ask_engine(self, engine: Engine, jobs: list[Job]) -> None:
        try:
            with gateway_for(engine).converse(engine) as conversation:
                welcome = conversation.hello(timeout_s=ASK_S).welcome
                if not welcome.ready:
                    raise EngineSilent("it is recovering")
                for job in jobs:
                    self._ask(conversation, job)
        except (EngineSilent, ProtocolError, ConsoleError) as error:
            self._not_before[engine.pk] = monotonic_s() + self._engine_pause_s
            for job in jobs:
                job_note(
                    job_id=job.pk,
                    note=f"engine {engine.name} does not answer; its answer is awaited, "
                    "nothing is guessed",
                )
            log.debug("engine silent", engine=engine.name, error=str(error))

    def _ask(self, conversation: Conversation, job: Job) -> None:
        answer = conversation.call(Query(op_id=str(job.pk), seal=True), timeout_s=ASK_S)
        if not isinstance(answer, QueryAnswer):
            raise EngineSilent(f"answered {type(answer).__name__}")
        if answer.engine_id != job.engine_identity:
            job_interrupted(
                job_id=job.pk,
                attempt=job.attempt,
                why=f"the engine that was asked ({job.engine_identity}) is gone; "
                f"another one ({answer.engine_id}) answers and knows nothing of it",
                observed=self._observe(conversation),
            )
            return
        match answer.status:
            case QueryStatus.FINISHED if answer.result is not None:
                job_finish(
                    job_id=job.pk,
                    attempt=job.attempt,
                    frm=JobState.RECONCILING,
                    result=answer.result,
                    process="reconciler",
                )
            case QueryStatus.OPEN if answer.operation is not None:
                job_progress(job_id=job.pk, attempt=job.attempt, view=answer.operation)
                job_note(job_id=job.pk, note=f"the engine still has it: {answer.operation.phase}")
            case QueryStatus.NEVER:
                job_never_ran(job_id=job.pk, attempt=job.attempt, answer=answer)
            case QueryStatus.TOO_OLD:
                job_interrupted(
                    job_id=job.pk,
                    attempt=job.attempt,
                    why="the engine's journal no longer reaches back to it",
                    observed=self._observe(conversation),
                )
            case _:
                raise EngineSilent(f"an answer without its part: {answer.status}")

    def _observe(self, conversation: Conversation) -> EngineState | None:
        reply = conversation.call(Snapshot(), timeout_s=ASK_S)
        return reply.state if isinstance(reply, StateAnswer) else None

    def repeat_cancels(self) -> None:
        for job in jobs_to_cancel():
            if monotonic_s() < self._not_before.get(job.engine_id, 0.0):
                continue
            try:
                cancel_forward(job=job)
            except ConsoleError as error:
                self._not_before[job.engine_id] = monotonic_s() + self._engine_pause_s
                log.debug("cancel not taken", job_id=str(job.pk), error=error.message)

    def unblock(self) -> None:
        for job in jobs_blocked_by_strangers():
            if foreign_confirm(engine=job.engine, timeout_s=ASK_S) is None:
                with transaction.atomic():
                    job_let_go(job=job)
