"""How a job ended, in words: what is true of every rank now, and what a person can do."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.safestring import SafeString

from console.choices import SHARED_KINDS, STORAGE_KINDS, WEIGHT_UPDATES, JobKind, Mode
from console.models import Job
from console.pages.job_steps import reply_number
from console.pages.job_storage import (
    partial_words,
    reasons_of,
    stays_words,
    succeeded_words,
)
from console.pages.kinds import kind_words
from console.selectors.jobs import job_waits
from console.selectors.weights import Weights


@dataclass(frozen=True)
class Next:
    """What happens next."""

    tone: str
    icon: str
    lead: str
    text: str | SafeString


def _ranks_of(job: Job, *states: str) -> str:
    found = [str(row.dp_rank) for row in job.ranks.all() if row.state in states]
    return ("Rank " if len(found) == 1 else "Ranks ") + ", ".join(found) if found else "No rank"


def _said(job: Job, otherwise: str) -> str:
    """The engine's own sentence, quoted; `otherwise` when it gave none."""
    message = str((job.error or {}).get("message", "")).strip().rstrip(".")
    return f"The engine says “{message}”" if message else otherwise


def weights_now(job: Job) -> Weights | None:
    """What the engine serves since this job ended, as its reply says."""
    return Weights.of((job.reply or {}).get("weights"))


def weights_before(job: Job) -> Weights | None:
    """What the engine served before."""
    return Weights.of((job.reply or {}).get("weights_before"))


def nothing_words(job: Job) -> str:
    """What not having been done means for the ranks."""
    old = weights_before(job) or weights_now(job)
    if job.kind in WEIGHT_UPDATES:
        return (
            f"every rank goes on serving {old.version}"
            if old
            else "every rank serves its old weights"
        )
    return stays_words(job) or f"nothing was {kind_words(job.kind).done}"


def _succeeded(job: Job) -> str:
    total, new = len(job.ranks.all()), weights_now(job)
    held = int(reply_number(job, "held_requests") or 0)
    ended = int(reply_number(job, "interrupted") or 0)
    match job.kind:
        case JobKind.FLUSH_CACHE:
            return (
                f"All {total} ranks are flushed, at one moment. Held requests were released in "
                "order; the caches fill again by use."
            )
        case JobKind.PAUSE_GENERATION:
            return (
                f"No rank steps. {ended} requests were ended or put back; new ones are held until "
                "you continue."
            )
        case JobKind.CONTINUE_GENERATION:
            return f"All {total} ranks step again; held requests were released in order."
        case JobKind.ABORT_REQUESTS:
            return f"{ended} requests ended with finish_reason abort."
        case JobKind.RELEASE_MEMORY:
            return (
                "The memory is back with the machine. Nothing is served until all of it is resumed."
            )
        case JobKind.RESUME_MEMORY:
            return (
                "The memory is there again. Weights that were released have no contents until an "
                "update loads some."
            )
        case JobKind.REPAIR:
            return (
                f"All {total} ranks serve what the engine is to serve, and requests reach them "
                "again."
            )
    if job.kind in STORAGE_KINDS:
        return succeeded_words(job)
    if new is None:
        return f"All {total} ranks are {kind_words(job.kind).done}."
    sum_words = f", checksum {new.checksum[:8]}" if new.checksum else ""
    text = f"All {total} ranks serve {new.version}{sum_words}."
    return (
        f"{text} {held} held requests were released in order."
        if job.kind in WEIGHT_UPDATES
        else text
    )


def _partial(job: Job) -> str:
    kind = kind_words(job.kind)
    odd = _ranks_of(job, "failed", "unreachable", "unknown", "compensated").lower()
    done, said = _ranks_of(job, "succeeded"), _said(job, "The reply below says why")
    head = f"{done} {kind.done}, {odd} not. {said}. "
    if job.kind == JobKind.FLUSH_CACHE:
        return head + (
            "An unflushed rank still serves right answers from its old cache. Nothing more "
            "happens by itself; a new flush of every rank is harmless."
        )
    if job.kind in STORAGE_KINDS:
        return f"{done} {kind.done}, {odd} not. {reasons_of(job) or said}. {partial_words(job)}"
    if job.kind in WEIGHT_UPDATES:
        new = weights_now(job)
        what = f"The engine is to serve {new.version}; " if new else ""
        return head + (
            f"{what}a rank that does not is fenced and gets no requests. One that died is brought "
            "to it as it restarts; for the others, repair the engine."
        )
    return head + "Nothing more happens by itself."


def ended_of(job: Job, word: str) -> Next:
    nothing = nothing_words(job)
    nothing = f"{nothing[:1].upper()}{nothing[1:]}"
    match word:
        case "succeeded":
            return Next("n-ok", "check", "Done.", _succeeded(job))
        case "failed":
            hint = (
                " Ask again, with a deadline or in mode drain, when it suits."
                if job_waits(job)
                else ""
            )
            if job.kind == JobKind.ATTACH_STORAGE_BACKEND:
                hint = " Mend what is named, then ask again."
            said = _said(job, "The engine refused")
            if job.kind in STORAGE_KINDS and reasons_of(job):
                said = f"{said}. {reasons_of(job)}"
            text = f"{said}. {nothing}. Nothing more happens by itself.{hint}"
            return Next("n-bad", "alert-triangle", "Not done.", text)
        case "partial":
            return Next("n-bad", "alert-triangle", "Done in part.", _partial(job))
        case "expired":
            hint = (
                " and no request was disturbed; parked ranks serve again. Mode drain would hold "
                "new requests instead of waiting for a gap."
                if job.mode in (Mode.WAIT, Mode.IF_IDLE) and job_waits(job)
                else "; held requests were released and parked ranks serve again."
                if job_waits(job)
                else "."
            )
            said = _said(job, "The deadline passed before every rank was idle")
            return Next("", "clock-x", "Not done.", f"{said}. {nothing}{hint}")
        case "cancelled":
            text = f"Cancelled before the decision: {nothing_words(job)}"
            held = ", held requests were released." if job_waits(job) else "."
            return Next("", "ban", "Not done.", text + held)
    lost = _said(job, "The engine’s memory of this job is gone")
    again = "" if job.kind in SHARED_KINDS else " Look at the engine’s page for what is true now."
    done = kind_words(job.kind).done
    text = f"{lost}. Whether each rank was {done} cannot be told any more.{again}"
    if job.kind == JobKind.FLUSH_CACHE:
        text += " A new flush of every rank is harmless and makes it certain."
    return Next("n-unk", "question-mark", "Not known.", text)
