"""What a job's page says happens next: true now first, then what comes by itself and when.

Last comes what a person can do. The steps that it took are in `job_steps`.
"""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.choices import WEIGHT_UPDATES, JobKind, Mode
from console.models import Job
from console.pages import words
from console.pages.job_ends import Next, ended_of, nothing_words
from console.pages.kinds import kind_words
from console.selectors.jobs import job_waits
from console.templatetags.q_tags import at, short

LEAD = "What happens next."


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:].rstrip('.')}." if note else ""


def next_of(job: Job) -> Next:
    """What happens next, by state."""
    word = words.job_word(job)
    if word == "blocked":
        return Next("", "lock", LEAD, _blocked(job))
    if word == "unknown":
        return Next("n-unk", "question-mark", LEAD, _unknown(job))
    if job.finished_at is not None:
        return ended_of(job, word)
    if job.dispatched_at is None:
        return Next("", "clock", LEAD, _unsent(job, word))
    if word in ("committing", "verifying", "compensating"):
        return Next("", "progress", LEAD, _committing(job, word))
    if word == "cancelling":
        return Next(
            "",
            "ban",
            LEAD,
            "The engine was told to stop waiting. If it had decided already, the job ends "
            f"succeeded; otherwise cancelled, and {nothing_words(job)}.",
        )
    if job.kind in WEIGHT_UPDATES and word == "preparing":
        return Next("", "clock", LEAD, _staging(job))
    if job.kind == JobKind.ATTACH_STORAGE_BACKEND and word == "preparing":
        return Next("", "clock", LEAD, _probing(job))
    return _waiting(job)


def _blocked(job: Job) -> SafeString:
    return format_html(
        "Operation {} holds this engine. When it has ended this job starts, and only then "
        "its time begins to run. Nothing was sent.",
        short(job.blocked_by) if job.blocked_by else "of somebody else",
    )


def _unsent(job: Job, word: str) -> SafeString:
    if word == "preparing":
        return format_html(
            "Its files go to the engine, which keeps serving; a worker that dies is gone on from. "
            "The update itself is sent once all of them are there, at {} UTC at the latest.",
            at(job.dispatch_by),
        )
    return format_html(
        "A worker takes it and sends it to the engine, at {} UTC at the latest; "
        "otherwise it ends expired with nothing sent.",
        at(job.dispatch_by),
    )


def _unknown(job: Job) -> SafeString:
    return format_html(
        "The command was sent and its reply never came, so each rank may or may not be "
        "{}. The console does not send it again. It asks the engine’s journal "
        "until it answers; that answer ends this job. {}",
        kind_words(job.kind).done,
        _sentence(job.note),
    )


def _committing(job: Job, word: str) -> str:
    if word == "compensating":
        return "A rank failed, so the others are put back to what they were."
    if job.kind in WEIGHT_UPDATES:
        return (
            "The engine has decided: every rank swaps its weights now. Old copies are kept until "
            "the last one has. Deadline and cancel no longer apply."
        )
    if job_waits(job):
        return (
            f"The engine has decided: every rank is being {kind_words(job.kind).done} now, which "
            "takes a moment. Deadline and cancel no longer apply."
        )
    return "The engine carries it out on every rank now."


def _staging(job: Job) -> str:
    total = len(job.ranks.all())
    every = f"all {total} ranks hold" if total else "every rank holds"
    held = (
        "the first moment that all are idle is waited for"
        if job.mode in (Mode.WAIT, Mode.IF_IDLE)
        else "new requests are held"
    )
    return (
        "Ranks stage the new weights beside the old ones and go on serving. When "
        f"{every} a checked copy, {held}, and every rank swaps at one moment. If any rank "
        "refuses before that, all stay as they are."
    )


def _probing(job: Job) -> str:
    backend = job.params.get("backend", "the backend")
    return (
        f"Every rank opens {backend} and writes, reads, compares and deletes one page, beside "
        "serving. If a rank cannot, it is named with its reason and every rank stays as it is."
    )


def _waiting(job: Job) -> Next:
    done = kind_words(job.kind).done
    if not job_waits(job):
        return Next("", "clock", LEAD, "The engine carries it out on every rank at once.")
    if job.deadline_at is None:
        return Next(
            "", "clock", LEAD, f"The engine answers at once: {done} if idle, refused if not."
        )
    total = len(job.ranks.all())
    every = f"all {total}" if total else "all"
    held = "" if job.mode == Mode.WAIT else " Held requests are released in order."
    text = format_html(
        "At {} the engine gives up: the job ends expired, {}, parked ranks serve "
        "again. If every rank is idle before that, {} are {} at one moment.{}",
        at(job.deadline_at),
        nothing_words(job).replace("was", "is"),
        every,
        done,
        held,
    )
    return Next("", "clock", LEAD, text)
