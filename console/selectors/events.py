"""What changed, in the order and with the numbers of the audit log."""

from __future__ import annotations

from typing import Any  # JSON objects

from console.access import Act, Rights
from console.models import AuditEntry, Job
from console.selectors.access import engines_with, sees_engine
from console.selectors.audit_chain import log_start
from console.selectors.payloads import job_payload, when

ROWS = 200


def events_begin() -> int:
    """The last number that is not there any more; 0 while the whole log is."""
    return log_start()[0]


def events_after(since: int, *, rights: Rights) -> tuple[int, list[dict[str, Any]]]:
    """(number read to, events): of jobs and engines that one may see, at most ROWS entries on.

    A job is told as it is now, which may be later than the event.
    """
    rows = list(AuditEntry.objects.filter(seq__gt=since).order_by("seq")[:ROWS])
    if not rows:
        return since, []
    seen = None
    if not rights.may_everywhere(Act.READ):
        seen = set(engines_with(rights, removed=True).values_list("name", flat=True))
    jobs = {
        job.pk: job
        for job in Job.objects.select_related("engine")
        .prefetch_related("ranks", "followers")
        .filter(pk__in={row.job_id for row in rows if row.job_id})
    }
    found = []
    for row in rows:
        job = jobs.get(row.job_id) if row.job_id else None
        is_engine = row.action.startswith("engine.")
        if job is None and not is_engine:
            continue
        if job is not None and not sees_engine(rights, job.engine):
            continue
        if job is None and seen is not None and row.engine_name not in seen:
            continue
        found.append(
            {
                "type": "job" if job is not None else "engine",
                "seq": row.seq,
                "at": when(row.created_at),
                "action": row.action,
                "stage": row.stage,
                "engine": row.engine_name or None,
                "job": job_payload(job) if job is not None else None,
            }
        )
    return rows[-1].seq, found
