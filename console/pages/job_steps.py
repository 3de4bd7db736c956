"""The steps that a job takes, in words: the same for every end, more of them for weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from django.utils.safestring import SafeString

from console.choices import WEIGHT_UPDATES, JobKind, JobState
from console.models import Job
from console.pages import words
from console.pages.kinds import kind_words
from console.selectors.jobs import job_waits
from console.templatetags.q_tags import age, duration, fine, size, size_of


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


_COMMITTED = ("committing", "verifying", "compensating")


def _counting(start: datetime | None, now: datetime) -> SafeString:
    """The time so far; the browser goes on counting."""
    return age(start, now) if start is not None else SafeString("")


def _took(start: datetime | None, end: datetime | None) -> str:
    if start is None or end is None:
        return ""
    return duration(max(0.0, (end - start).total_seconds()))


def reply_number(job: Job, name: str) -> float | None:
    """A number of the engine's last word; None when it gave none."""
    value = (job.reply or {}).get(name)
    return float(value) if isinstance(value, int | float) else None


def _engine_took_s(job: Job) -> float | None:
    started, finished = reply_number(job, "started_clock_s"), reply_number(job, "finished_clock_s")
    return None if started is None or finished is None else max(0.0, finished - started)


def _commit_words(job: Job) -> str:
    if job.kind == JobKind.ATTACH_STORAGE_BACKEND and job.params.get("replace"):
        return "detach the old one, attach the new one"
    if job.kind == JobKind.DETACH_STORAGE_BACKEND and job.params.get("force"):
        return "give up transfers in flight, close"
    return kind_words(job.kind).commit


def _is_prepared(step: Step) -> bool:
    """A step that every rank takes while it serves."""
    return step.title.startswith(("Stage", "Open"))


def _todo(job: Job) -> list[Step]:
    """Everything after the sending, not begun."""
    ranks = len(job.ranks.all())
    found = []
    if job.kind in WEIGHT_UPDATES:
        found.append(Step("not started", "Stage and verify", detail="beside serving"))
    if job.kind == JobKind.ATTACH_STORAGE_BACKEND:
        title = f"Open and probe {job.params.get('backend', '')}"
        found.append(Step("not started", title, detail="on every rank, beside serving"))
    if job_waits(job):
        found.append(Step("not started", "Wait for idle"))
    title = f"Commit on {ranks} ranks" if ranks else "Commit on every rank"
    found.append(Step("not started", title, detail=_commit_words(job)))
    if job_waits(job):
        found.append(Step("not started", "Release held requests", detail="whatever the outcome"))
    return found


def _unsent(job: Job, now: datetime) -> list[Step]:
    word, ended = words.job_word(job), job.finished_at is not None
    took = _took(job.created_at, job.finished_at) or _counting(job.created_at, now)
    if job.kind == JobKind.UPDATE_WEIGHTS_FROM_TENSOR and job.sent_bytes is not None:
        detail = size_of(job.sent_bytes, job.total_bytes or 0)
        asking = Step(word, "Bring files to the engine", took, detail, is_current=not ended)
        return [asking, Step("not started", "Send to the engine")]
    return [Step(word, "Send to the engine", took, job.note, is_current=not ended)]


def _sent(job: Job) -> list[Step]:
    found = []
    if job.total_bytes is not None:
        found.append(Step("ok", "Bring files to the engine", detail=size(job.total_bytes)))
    took = _took(job.created_at, job.dispatched_at)
    return [*found, Step("ok", "Sent to the engine", took, "recorded, then sent")]


def _open(job: Job, now: datetime) -> list[Step]:
    """The step that goes on now, by phase; those before it are done."""
    word, todo = words.job_word(job), _todo(job)
    titles = [step.title for step in todo]
    commit = next(n for n, title in enumerate(titles) if title.startswith("Commit"))
    current = commit if word in _COMMITTED or not job_waits(job) else commit - 1
    if _is_prepared(todo[0]) and word == "preparing":
        current = 0
    steps = [replace(step, word="ok") for step in todo[:current]]
    took = "" if word in _COMMITTED else _counting(job.dispatched_at, now)
    steps.append(replace(todo[current], word=word, took=took, is_current=True))
    return [*steps, *todo[current + 1 :]]


def _ended(job: Job) -> list[Step]:
    """Where it came to its end; a step's time is the engine's own measurement."""
    word, todo = words.job_word(job), _todo(job)
    staged_s, whole_s = reply_number(job, "staged_s"), _engine_took_s(job)
    effect_s = max((row.effect_s or 0.0 for row in job.ranks.all()), default=0.0)
    is_done = word in ("succeeded", "partial")
    found: list[Step] = []
    is_over = False
    for step in todo:
        if is_over:
            found.append(step)
        elif _is_prepared(step):
            is_over = staged_s is None and not is_done
            took = fine(staged_s) if staged_s is not None else ""
            found.append(replace(step, word=word if is_over else "ok", took=took))
        elif step.title.startswith("Wait"):
            is_over = not is_done
            waited_s = None if whole_s is None else whole_s - (staged_s or 0.0) - effect_s
            took = duration(max(0.0, waited_s)) if waited_s is not None else ""
            took = took or _took(job.dispatched_at, job.finished_at)
            detail = f"mode {job.mode}"
            found.append(replace(step, word=word if is_over else "ok", took=took, detail=detail))
        elif step.title.startswith("Commit"):
            one = "ok" if word == "succeeded" else word
            is_over = not is_done
            found.append(replace(step, word=one, took=fine(effect_s) if effect_s else ""))
        else:
            found.append(replace(step, word="ok"))
    if found[-1].title.startswith("Release") and found[-1].is_todo:
        found[-1] = replace(found[-1], word="ok" if word != "interrupted" else "unknown")
    return found


def steps_of(job: Job, now: datetime) -> list[Step]:
    """From the asking to the end."""
    accepted = Step("ok", "Accepted", detail=f"asked by {job.requested_by_name}")
    if job.dispatched_at is None:
        return [accepted, *_unsent(job, now), *_todo(job)]
    if job.state == JobState.RECONCILING:
        took = _counting(job.dispatched_at, now)
        return [
            accepted,
            *_sent(job),
            Step("unknown", "Reply lost", took, job.note, is_current=True),
            Step("not started", "Ask the engine's journal"),
            Step("not started", "Outcome", detail="from the journal, never guessed"),
        ]
    if job.finished_at is None:
        return [accepted, *_sent(job), *_open(job, now)]
    return [accepted, *_sent(job), *_ended(job)]
