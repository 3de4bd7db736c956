"""What a job's page says in words: the steps it took, and what happens next.

True now first, then what comes by itself and when, then what a person can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.choices import JobState, Mode
from console.models import Job
from console.pages import words
from console.templatetags.q_tags import age, at, duration, short


@dataclass(frozen=True)
class Step:
    """One step: its state word, title, detail and how long it took."""

    word: str
    title: str
    took: str | SafeString = ""
    detail: str = ""
    is_current: bool = False

    @property
    def is_todo(self) -> bool:
        """True when it has not begun."""
        return self.word == "not started"


@dataclass(frozen=True)
class Next:
    """What happens next."""

    tone: str
    icon: str
    lead: str
    text: str | SafeString


_COMMITTED = ("committing", "verifying", "compensating")


def _counting(start: datetime | None, now: datetime) -> SafeString:
    """The time so far; the browser goes on counting."""
    return age(start, now) if start is not None else SafeString("")


def _took(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    return duration(max(0.0, (end - start).total_seconds()))


def _engine_took_s(job: Job) -> float | None:
    reply = job.reply or {}
    started, finished = reply.get("started_clock_s"), reply.get("finished_clock_s")
    if isinstance(started, int | float) and isinstance(finished, int | float):
        return max(0.0, float(finished) - float(started))
    return None


def steps_of(job: Job, now: datetime) -> list[Step]:
    """Five steps; the same five for every end."""
    word = words.job_word(job)
    ended = job.finished_at is not None
    sent = job.dispatched_at
    ranks = len(job.ranks.all())
    accepted = Step("ok", "Accepted", detail=f"asked by {job.requested_by_name}")
    if sent is None:
        asking = Step(
            word,
            "Send to the engine",
            _took(job.created_at, job.finished_at) or _counting(job.created_at, now),
            job.note,
            is_current=not ended,
        )
        rest = ("Wait for idle", "Commit on every rank", "Release held requests")
        return [accepted, asking, *(Step("not started", title) for title in rest)]
    sent_step = Step("ok", "Sent to the engine", _took(job.created_at, sent), "recorded, then sent")
    commit_title = f"Commit on {ranks} ranks" if ranks else "Commit on every rank"
    if word == "unknown":
        return [
            accepted,
            sent_step,
            Step("unknown", "Reply lost", _counting(sent, now), job.note, is_current=True),
            Step("not started", "Ask the engine's journal"),
            Step("not started", "Outcome", detail="from the journal, never guessed"),
        ]
    if not ended:
        in_commit = word in _COMMITTED
        return [
            accepted,
            sent_step,
            Step(
                "ok" if in_commit else word,
                "Wait for idle",
                "" if in_commit else _counting(sent, now),
                is_current=not in_commit,
            ),
            Step(
                word if in_commit else "not started",
                commit_title,
                detail="reset cache and pools",
                is_current=in_commit,
            ),
            Step("not started", "Release held requests", detail="whatever the outcome"),
        ]
    took_s = _engine_took_s(job)
    wait_took = duration(took_s) if took_s is not None else _took(sent, job.finished_at)
    done = word in ("succeeded", "partial")
    wait_word = "ok" if done else word
    return [
        accepted,
        sent_step,
        Step(wait_word, "Wait for idle", wait_took, f"mode {job.mode}"),
        Step(
            "ok" if word == "succeeded" else word if word == "partial" else "not started",
            commit_title,
        ),
        Step("ok" if word != "interrupted" else "unknown", "Release held requests"),
    ]


def _ranks_of(job: Job, *states: str) -> str:
    found = [str(row.dp_rank) for row in job.ranks.all() if row.state in states]
    return ("Rank " if len(found) == 1 else "Ranks ") + ", ".join(found) if found else "No rank"


def _said(job: Job, otherwise: str) -> str:
    """The engine's own sentence, quoted; `otherwise` when it gave none."""
    message = str((job.error or {}).get("message", "")).strip().rstrip(".")
    return f"The engine says “{message}”" if message else otherwise


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:].rstrip('.')}." if note else ""


def next_of(job: Job) -> Next:
    """What happens next, by state."""
    lead = "What happens next."
    word = words.job_word(job)
    total = len(job.ranks.all())
    match word:
        case "blocked":
            holder = job.blocked_by
            text = format_html(
                "Operation {} holds this engine. When it has ended this job starts, and only then "
                "its time begins to run. Nothing was sent.",
                short(holder) if holder else "of somebody else",
            )
            return Next("", "lock", lead, text)
        case "queued":
            return Next(
                "",
                "clock",
                lead,
                format_html(
                    "A worker takes it and sends it to the engine, at {} UTC at the latest; "
                    "otherwise it ends expired with nothing sent.",
                    at(job.dispatch_by),
                ),
            )
        case "committing" | "verifying" | "compensating":
            return Next(
                "",
                "progress",
                lead,
                (
                    "The engine has decided: every rank is being flushed now, which takes a "
                    "moment. Deadline and cancel no longer apply."
                ),
            )
        case "cancelling":
            return Next(
                "",
                "ban",
                lead,
                (
                    "The engine was told to stop waiting. If it had decided already, the job ends "
                    "succeeded; otherwise cancelled, with nothing flushed."
                ),
            )
        case "unknown":
            return Next(
                "n-unk",
                "question-mark",
                lead,
                format_html(
                    "The command was sent and its reply never came, so each rank may or may not be "
                    "flushed. The console does not send it again. It asks the engine’s journal "
                    "until it answers; that answer ends this job. {}",
                    _sentence(job.note),
                ),
            )
    if job.finished_at is None:
        return _waiting(job, lead, total)
    return _ended(job, word, total)


def _waiting(job: Job, lead: str, total: int) -> Next:
    if job.deadline_at is None:
        text = "The engine answers at once: flushed if idle, refused if not."
        return Next("", "clock", lead, text)
    every = f"all {total}" if total else "all"
    held = "" if job.mode == Mode.WAIT else " Held requests are released in order."
    text = format_html(
        "At {} the engine gives up: the job ends expired, nothing is flushed, parked ranks serve "
        "again. If every rank is idle before that, {} flush at one moment.{}",
        at(job.deadline_at),
        every,
        held,
    )
    return Next("", "clock", lead, text)


def _ended(job: Job, word: str, total: int) -> Next:
    text: str | SafeString
    match word:
        case "succeeded":
            text = format_html(
                "All {} ranks are flushed, at one moment. Held requests were released in order; "
                "the caches fill again by use.",
                total,
            )
            return Next("n-ok", "check", "Done.", text)
        case "failed":
            text = format_html(
                "{}. Nothing was flushed. Nothing more happens by itself; ask again, with a "
                "deadline or in mode drain, when it suits.",
                _said(job, "The engine refused"),
            )
            return Next("n-bad", "alert-triangle", "Not done.", text)
        case "partial":
            text = format_html(
                "{} flushed, {} not. {}. An unflushed rank still serves right answers from its old "
                "cache. Nothing more happens by itself; a new flush of every rank is harmless.",
                _ranks_of(job, "succeeded"),
                _ranks_of(job, "failed", "unreachable", "unknown", "compensated").lower(),
                _said(job, "The reply below says why"),
            )
            return Next("n-bad", "alert-triangle", "Done in part.", text)
        case "expired":
            text = format_html(
                "{}. Nothing was flushed and no request was disturbed; parked ranks serve again. "
                "Mode drain would hold new requests instead of waiting for a gap.",
                _said(job, "The deadline passed before every rank was idle"),
            )
            return Next("", "clock-x", "Not done.", text)
        case "cancelled":
            text = (
                "Cancelled before the decision: nothing was flushed, held requests were released."
            )
            return Next("", "ban", "Not done.", text)
    text = format_html(
        "{}. Whether each rank was flushed cannot be told any more. A new flush of every rank is "
        "harmless and makes it certain.",
        _said(job, "The engine’s memory of this job is gone"),
    )
    return Next("n-unk", "question-mark", "Not known.", text)


def is_attention(job: Job) -> bool:
    """True when a person should look at how it ended, or did not."""
    return job.state in (JobState.PARTIAL, JobState.INTERRUPTED, JobState.RECONCILING)
