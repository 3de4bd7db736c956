"""The command that a job becomes, with what is left of its time on the engine's own clock."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings

from console.choices import STAGED_KINDS
from console.clock import monotonic_s
from console.gateways import Greeting
from console.models import Job
from console.params import JobParams
from console.services.transitions import DISPATCH_WINDOW_S
from engine.protocol import Mode, Submit


def _budget_s(job: Job, now: datetime) -> float:
    """How long after now an effect may begin at the latest."""
    if job.kind in STAGED_KINDS:  # their deadline begins when they are staged
        return float(settings.STAGING_ALLOWANCE_S) + max(job.timeout_s, DISPATCH_WINDOW_S)
    assert job.dispatch_by is not None, job.pk
    return (job.dispatch_by - now).total_seconds()


def submit_of(job: Job, params: JobParams, greeting: Greeting, now: datetime) -> Submit:
    """The command of a job that is dispatched, for the engine that was greeted."""
    spent_s = monotonic_s() - greeting.sent_at_s
    return Submit(
        op_id=str(job.pk),
        epoch=greeting.welcome.epoch,
        operation=params.operation(job_id=str(job.pk)),
        mode=Mode(job.mode),
        # As asked, so that the rank's side can be held against the request; what is left of it is
        # the next line's. The engine's deadline is the earlier of the two.
        timeout_s=0.0 if job.mode == Mode.IF_IDLE else job.timeout_s,
        # Rates only: no two clocks are compared, and the error is on the early side.
        start_by_clock_s=greeting.welcome.clock_s + _budget_s(job, now) - spent_s,
        requested_by=job.requested_by_name,
        request_id=job.request_id,
    )
