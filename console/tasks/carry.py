"""Carry one job to its engine and bring back what became of it.

Hello → commit CLAIMED and DISPATCHED → send → follow. Where the engine does not answer at once, or
more has to be done before: claim → Hello, until it answers → commit DISPATCHED → send → follow. A
job is sent once: whatever goes wrong after that is answered by asking, never by sending again.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
import structlog

from console.choices import SHARED_KINDS, JobKind, JobState, OnConflict
from console.clock import db_now, monotonic_s, sleep_s
from console.exceptions import ConsoleKeyUnusable
from console.gateways import Conversation, EngineSilent, Greeting, gateway_for
from console.models import Job
from console.params import JobParams, TensorParams, params_from
from console.selectors.engines import own_job
from console.selectors.jobs import job_waiting
from console.services.job_claims import job_adopt, job_claim, job_handover, job_release
from console.services.job_run import (
    CLEAN_REFUSALS,
    job_claim_dispatched,
    job_dispatched,
    job_expire,
    job_finish,
    job_progress,
    job_reconcile,
    job_refused,
)
from console.tasks.feed import feed
from console.tasks.lease import Lease
from console.tasks.saving import saved
from console.tasks.submitting import submit_of
from engine.protocol import (
    Answer,
    Failure,
    ListOperations,
    OperationList,
    OperationResult,
    OperationView,
    Progress,
    ProtocolError,
    Query,
    QueryAnswer,
    QueryStatus,
    Response,
)

log = structlog.get_logger(__name__)

GREET_FIRST_S = 0.1  # before the claim
GREET_TRY_S = 0.5
GREET_PAUSE_S = 0.2
GREET_HOLD_S = 8.0  # then the claim is given back, so that dead engines do not fill the workers
SEND_S = 1.0
LISTEN_S = 0.25
PROBE_S = 1.0  # of silence, then the engine is asked whether it still has the operation
SILENT_S = 3.0  # then it is not known what became of the job
STAGING_EVERY_S = 0.4  # bytes alone are written no oftener
# What is over sooner is not written: nobody would see it, and the answer behind it would wait for
# a commit.
NOTE_AFTER_S = 0.02
FOLLOW_LIMIT_S = 600.0  # then another task takes over: a task must end before its redelivery


def job_carry(*, job_id: UUID, owner: str) -> None:
    """Carry the job as far as this worker can. Harmless when another has it, or it has ended."""
    if _carried_at_once(job_id, owner):
        return
    job = job_claim(job_id=job_id, owner=owner)
    if job is not None:
        with Lease(job_id=job.pk, attempt=job.attempt, owner=owner) as lease:
            carrier = _Carrier(job, owner, lease)
            try:
                carrier.carry()
            except ConsoleKeyUnusable as error:  # before a word was said
                job_release(job_id=job.pk, attempt=job.attempt, why=error.message, process="worker")
        return
    job = job_adopt(job_id=job_id, owner=owner)
    if job is not None:
        with Lease(job_id=job.pk, attempt=job.attempt, owner=owner) as lease:
            carrier = _Carrier(job, owner, lease)
            try:
                carrier.adopt()
            except ConsoleKeyUnusable as error:
                carrier.lose_sight(error.message)
        return
    job_expire(job_id=job_id, process="worker")


def _carried_at_once(job_id: UUID, owner: str) -> bool:
    """Carry a job for which nothing is to be done but to send it, to an engine that answers.

    False: that is not so, and nothing was written.
    """
    job = job_waiting(job_id)
    if job is None or job.kind == JobKind.UPDATE_WEIGHTS_FROM_TENSOR or _may_queue(job):
        return False
    try:
        with gateway_for(job.engine).converse(job.engine) as conversation:
            greeting = _first_greeting(conversation)
            if greeting is None:
                return False
            sent = saved(
                lambda: job_claim_dispatched(job_id=job_id, owner=owner, welcome=greeting.welcome)
            )
            if sent is None:
                return False
            with Lease(job_id=job_id, attempt=sent.attempt, owner=owner) as lease:
                _Carrier(sent, owner, lease).send(conversation, greeting)
    except ConsoleKeyUnusable:
        return False  # before a word was said
    return True


def _first_greeting(conversation: Conversation) -> Greeting | None:
    try:
        greeting = conversation.hello(timeout_s=GREET_FIRST_S)
    except (EngineSilent, ProtocolError):
        return None
    return greeting if greeting.welcome.ready else None


def _may_queue(job: Job) -> bool:
    """It waits for a foreign operation, of which the engine is asked."""
    return job.on_conflict == OnConflict.QUEUE and job.kind not in SHARED_KINDS


class _Carrier:
    """One job's way through one worker."""

    def __init__(self, job: Job, owner: str, lease: Lease) -> None:
        self.job = job
        self.owner = owner
        self.lease = lease
        self.log = log.bind(job_id=str(job.pk), engine=job.engine.name, attempt=job.attempt)
        self.params: JobParams = params_from(job.kind, job.params)
        self._seen: object = None
        self._bytes_done: list[int] = []
        self._staging_at = 0.0
        self._told: OperationView | None = None  # the newest progress, not written yet
        self._told_at = 0.0  # since when there is such

    def carry(self) -> None:
        with gateway_for(self.job.engine).converse(self.job.engine) as conversation:
            greeting = self._greet(conversation)
            if greeting is None or self._stranger_waits(conversation):
                return
            if isinstance(self.params, TensorParams):
                if not feed(conversation, self.job, self.params, self.owner, self.lease):
                    return
                self.job.refresh_from_db(fields=["dispatch_by"])
                greeting = self._greet(conversation)  # that took a while: its clock, its epoch
                if greeting is None:
                    return
            job = saved(
                lambda: job_dispatched(
                    job_id=self.job.pk,
                    attempt=self.job.attempt,
                    owner=self.owner,
                    welcome=greeting.welcome,
                )
            )
            if job is None or self.lease.is_lost:
                job_expire(job_id=self.job.pk, process="worker", attempt=self.job.attempt)
                return
            self.job = job
            self.send(conversation, greeting)

    def send(self, conversation: Conversation, greeting: Greeting) -> None:
        """Send what was dispatched for this engine, and follow it."""
        try:
            request_id = conversation.send(
                submit_of(self.job, self.params, greeting, db_now()), timeout_s=SEND_S
            )
        except EngineSilent as error:
            self.lose_sight(f"the connection was lost while sending: {error}")
            return
        self.log.info("job sent", epoch=greeting.welcome.epoch)
        self._follow(conversation, request_id)

    def adopt(self) -> None:
        """Follow a job that an earlier task sent and handed over."""
        with gateway_for(self.job.engine).converse(self.job.engine) as conversation:
            if self._greet(conversation, patient=False) is not None:
                self._follow(conversation, "")

    def _greet(self, conversation: Conversation, *, patient: bool = True) -> Greeting | None:
        """Hello until the engine is ready; None when the job was ended or given back instead."""
        started = monotonic_s()
        why = ""
        while not self.lease.is_lost:
            try:
                greeting = conversation.hello(timeout_s=self._greet_s())
                if greeting.welcome.ready:
                    return greeting
                why = "the engine is recovering and takes no commands yet"
            except EngineSilent:
                why = f"engine {self.job.engine.name} does not answer"
            except ProtocolError as error:
                why = f"engine {self.job.engine.name} refused the greeting: {error.message}"
            if self._left_s() <= 0 and not self._was_extended():
                job_expire(
                    job_id=self.job.pk,
                    attempt=self.job.attempt,
                    process="worker",
                    code="engine_unreachable",
                    message=f"{why}; nothing was sent",
                )
                return None
            if monotonic_s() - started > (GREET_HOLD_S if patient else SILENT_S):
                break
            sleep_s(min(GREET_PAUSE_S, max(0.0, self._left_s())))
        if patient:
            job_release(job_id=self.job.pk, attempt=self.job.attempt, why=why, process="worker")
        else:
            self.lose_sight(why)
        return None

    def _left_s(self) -> float:
        """Seconds until the job must have been sent; a dispatched one has been."""
        if self.job.dispatch_by is None or self.job.state == JobState.DISPATCHED:
            return GREET_HOLD_S
        return (self.job.dispatch_by - db_now()).total_seconds()

    def _was_extended(self) -> bool:
        """Look again: a person may have moved the deadline of this unsent job."""
        self.job.refresh_from_db(fields=["dispatch_by", "deadline_at"])
        return self._left_s() > 0

    def _greet_s(self) -> float:
        return max(0.05, min(GREET_TRY_S, self._left_s()))

    def _stranger_waits(self, conversation: Conversation) -> bool:
        """For a job that may queue: give the claim back while a foreign operation is open."""
        if not _may_queue(self.job):
            return False
        try:
            reply = conversation.call(ListOperations(limit=1), timeout_s=SEND_S)
        except (EngineSilent, ProtocolError):
            return False
        views = reply.open if isinstance(reply, OperationList) else []
        stranger = next((view for view in views if own_job(view.op_id) is None), None)
        if stranger is None:
            return False
        job_release(
            job_id=self.job.pk,
            attempt=self.job.attempt,
            why=f"operation {stranger.op_id}, not of this console, holds the engine",
            process="worker",
            blocked_by=stranger.op_id,
        )
        return True

    def _follow(self, conversation: Conversation, request_id: str) -> None:
        started = heard = asked = monotonic_s()
        while not self.lease.is_lost:
            now = monotonic_s()
            if now - heard > SILENT_S:
                self.lose_sight(f"the engine has been silent for {SILENT_S:.0f} s")
                return
            if now - started > FOLLOW_LIMIT_S:
                job_handover(job_id=self.job.pk, attempt=self.job.attempt, owner=self.owner)
                return
            try:
                response = conversation.receive(timeout_s=self._note_told())
                if response is None and now - max(heard, asked) > PROBE_S:
                    asked = now
                    conversation.send(Query(op_id=str(self.job.pk), seal=False), timeout_s=0.1)
            except EngineSilent:
                continue  # counts as silence
            if response is None:
                continue
            is_news, is_over = self._take(response, request_id)
            if is_over:
                return
            if is_news:
                heard = monotonic_s()

    def _take(self, response: Response, request_id: str) -> tuple[bool, bool]:
        """(it told something of the job, the job is out of this worker's hands)."""
        op_id = str(self.job.pk)
        match response.body:
            case Progress(operation=view) if view.op_id == op_id:
                if self._told is None:
                    self._told_at = monotonic_s()
                self._told = view
                return True, False
            case Answer(result=result) if result.op_id == op_id:
                self._finish(result)
                return True, True
            case QueryAnswer() as answer if answer.op_id == op_id:
                return True, self._take_query(answer)
            case Failure() as failure if response.id == request_id:
                self._refused(failure)
                return True, True
            case _:
                return False, False

    def _take_query(self, answer: QueryAnswer) -> bool:
        if answer.engine_id != self.job.engine_identity:
            self.lose_sight("another engine answers at this address")
            return True
        if answer.status is QueryStatus.OPEN and answer.operation is not None:
            self._progress(answer.operation)
            return False
        if answer.status is QueryStatus.FINISHED and answer.result is not None:
            self._finish(answer.result)
            return True
        self.lose_sight(f"the engine says of this operation: {answer.status}")
        return True

    def _note_told(self) -> float:
        """Write the newest progress once it has lasted; how long to wait for what comes next."""
        if self._told is None:
            return LISTEN_S
        left_s = NOTE_AFTER_S - (monotonic_s() - self._told_at)
        if left_s > 0:
            return left_s
        view, self._told = self._told, None
        self._progress(view)
        return LISTEN_S

    def _progress(self, view: OperationView) -> None:
        """Write what moved; an unchanged view costs no transaction."""
        parts = [msgspec.structs.replace(rank, staging=None) for rank in view.ranks]
        steps = [rank.staging.what if rank.staging else "" for rank in view.ranks]
        bytes_done = [rank.staging.done_bytes if rank.staging else 0 for rank in view.ranks]
        seen = (
            *(view.phase, view.mode, view.attempt),
            *(round(view.deadline_clock_s, 1), parts, steps),
        )
        due = monotonic_s() - self._staging_at >= STAGING_EVERY_S
        if seen != self._seen or (due and bytes_done != self._bytes_done):
            self._seen, self._bytes_done, self._staging_at = seen, bytes_done, monotonic_s()
            saved(lambda: job_progress(job_id=self.job.pk, attempt=self.job.attempt, view=view))

    def _finish(self, result: OperationResult) -> None:
        saved(
            lambda: job_finish(
                job_id=self.job.pk,
                attempt=self.job.attempt,
                frm=JobState.DISPATCHED,
                result=result,
                process="worker",
            )
        )
        self.log.info("job ended", outcome=str(result.outcome))

    def _refused(self, failure: Failure) -> None:
        self.log.info("job refused", code=str(failure.code))
        if failure.code in CLEAN_REFUSALS:
            saved(
                lambda: job_refused(job_id=self.job.pk, attempt=self.job.attempt, failure=failure)
            )
        else:
            self.lose_sight(f"the engine answered {failure.code}: {failure.message}")

    def lose_sight(self, why: str) -> None:
        """It was sent, and is not followed any more: the reconciler asks what became of it."""
        self.log.warning("job unknown", why=why)
        saved(
            lambda: job_reconcile(
                job_id=self.job.pk, attempt=self.job.attempt, why=why, process="worker"
            )
        )
