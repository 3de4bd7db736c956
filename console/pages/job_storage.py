"""A storage job on its page: how it ended in words, before and after, and the way back."""

from __future__ import annotations

from collections.abc import Callable

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.access import KIND_ACTS, Rights
from console.choices import STORAGE_KINDS, JobKind, JobState, RankState
from console.models import Job
from console.selectors.engines import EngineView
from console.selectors.storage import Attached, Change, undo_of
from console.selectors.undo import can_be_undone
from console.templatetags.access_tags import denied_attrs
from console.templatetags.q_tags import Cells, icon, short

_NOTHING = mark_safe('<span class="faint">nothing</span>')
_POLICY_WORDS = {"write_policy": "Write policy", "prefetch_policy": "Prefetch policy"}
KEPT = "What it stored stays in the store; clear would delete it."


def named(attached: Attached | None) -> str:
    """`valkey c41d77e0`, or `nothing`."""
    return "nothing" if attached is None else f"{attached.backend} {attached.short_id}".rstrip()


def succeeded_words(job: Job) -> str:
    """What is true of every rank now."""
    total, change = len(job.ranks.all()), Change.of(job)
    now = named(change.now) if change else str(job.params.get("backend", "the backend"))
    match job.kind:
        case JobKind.ATTACH_STORAGE_BACKEND if change and change.is_switch:
            return (
                f"All {total} ranks use {now} in place of {named(change.before)}. What the old "
                "one stored stays in its store; clear would have deleted it."
            )
        case JobKind.ATTACH_STORAGE_BACKEND if change and change.has_same_backend:
            policies = ", ".join(change.policies.values())
            tail = f" Its policies are {policies} now." if change.policies_changed else ""
            return f"{now} was attached to all {total} ranks already; it stays as it was.{tail}"
        case JobKind.ATTACH_STORAGE_BACKEND:
            return f"All {total} ranks write to {now} and look into it for prompts they lack."
        case JobKind.DETACH_STORAGE_BACKEND if change and change.before is None:
            return "Nothing was attached, so nothing changed."
        case JobKind.DETACH_STORAGE_BACKEND:
            was = named(change.before) if change else "the backend"
            return f"No rank uses {was} any more. {KEPT}"
        case JobKind.CLEAR_STORAGE_BACKEND:
            return (
                f"What this engine stored in {now} is deleted. The backend stays attached and "
                "fills again by use; pages of other engines and models were not touched."
            )
    words = ", ".join((change.policies if change else {}).values())
    return f"All {total} ranks follow {words or 'the new policies'} from their next step on."


def reasons_of(job: Job) -> str:
    """Each rank that did not, in its own words; empty when the ranks say nothing."""
    odd = (RankState.FAILED, RankState.UNREACHABLE, RankState.UNKNOWN, RankState.COMPENSATED)
    whole = str((job.error or {}).get("message", ""))
    told = [row for row in job.ranks.all() if row.state in odd and row.message]
    if all(f"rank {row.dp_rank}: {row.message}" in whole for row in told):
        return ""  # the engine's own sentence says it already
    return ". ".join(f"Rank {row.dp_rank}: “{row.message.rstrip('.')}”" for row in told)


def stays_words(job: Job) -> str:
    """What is attached still, after a switch that was not made; empty for anything else."""
    change = Change.of(job) if job.kind == JobKind.ATTACH_STORAGE_BACKEND else None
    before = change.before if change is not None else None
    return f"{named(before)} stays attached" if before is not None else ""


def partial_words(job: Job) -> str:
    """What becomes of the ranks that did not."""
    if job.kind == JobKind.CLEAR_STORAGE_BACKEND:
        return "What those ranks stored may be there still; clear again once they are back."
    change = Change.of(job)
    return (
        f"The engine is to have {named(change.now) if change else 'what was asked for'}; a rank "
        "that does not is named on the backend’s page, serves without it, and is brought to it by "
        "repair or by a new job."
    )


def undo_link(job: Job, read_view: Callable[[], EngineView], rights: Rights) -> SafeString:
    """The button of the inverse, which opens its plan; nothing where there is none.

    Nor once that was changed since: then it would undo another's work.
    """
    undo = undo_of(job) if job.kind in STORAGE_KINDS else None
    if undo is None:
        return SafeString("")
    view = read_view()
    if not can_be_undone(job, view):
        return SafeString("")
    engine = job.engine.name
    if undo.kind == JobKind.ATTACH_STORAGE_BACKEND:
        assert undo.attached is not None
        text, url = f"attach {named(undo.attached)}", reverse("backend-attach", args=[engine])
    else:
        url = reverse("operate", args=[engine, undo.kind])
        text = "detach" if undo.kind == JobKind.DETACH_STORAGE_BACKEND else "policies as before"
    return format_html(
        '<a class="btn btn-q" href="{}?undo={}"{}>{}Undo: {}…</a>',
        url,
        job.pk,
        denied_attrs(rights.why_denied(KIND_ACTS[undo.kind], view.labels)),
        icon("arrow-back-up"),
        text,
    )


def undo_reason(job: Job) -> str:
    """The reason that an undo's form begins with."""
    return f"Undo of job {short(job.pk)}"


def _backend_rows(change: Change) -> list[tuple[str, str, str]]:
    before, now = change.before, change.now
    rows = [("backend", named(before), named(now))]
    old, new = (dict(one.config) if one else {} for one in (before, now))
    for rank in sorted(
        {*(before.rank_configs if before else ()), *(now.rank_configs if now else ())}
    ):
        for one, into in ((before, old), (now, new)):
            settings = one.rank_configs.get(rank, {}) if one else {}
            into |= {f"rank {rank}: {name}": value for name, value in settings.items()}
    return rows + [(name, _shown(old.get(name)), _shown(new.get(name))) for name in {**old, **new}]


def _shown(value: object) -> str:
    if value is None:
        return ""
    if value == "":
        return "empty"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _diff(rows: list[tuple[str, str, str]]) -> SafeString:
    """Settings with what they were and are; those that stayed are plain."""
    return format_html_join(
        "",
        '<tr><th scope="row" class="o1 full">{}</th><td class="full">{}</td></tr>',
        (
            (
                name,
                format_html('<span class="faint">{}</span>', new)
                if old == new
                else format_html(
                    "{} {}",
                    format_html('<span class="del">{}</span>', old) if old else "",
                    format_html('<span class="add">{}</span>', new) if new else "",
                ),
            )
            for name, old, new in rows
        ),
    )


def changed_cell(job: Job) -> SafeString:
    """Before and after; before the end, that it is not known yet."""
    change = Change.of(job)
    if change is None:
        ended = job.state in (JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED)
        words = "Nothing was changed." if ended else "Known once the job has ended."
        return format_html('<p class="muted">{}</p>', words)
    rows = _backend_rows(change)
    for name, label in _POLICY_WORDS.items():
        rows.append((label, change.policies_before.get(name, ""), change.policies.get(name, "")))
    return format_html(
        '<div class="stackable"><table class="table diff"><thead><tr><th scope="col">Setting</th>'
        '<th scope="col">Before − and after +</th></tr></thead><tbody>{}</tbody></table></div>',
        _diff(rows),
    )


def storage_cells(job: Job, view: Callable[[], EngineView], rights: Rights) -> Cells:
    """The live cells that only a storage job has; the undo is there for every kind, empty."""
    cells: Cells = {"undo": undo_link(job, view, rights)}
    if job.kind in STORAGE_KINDS:
        cells["changed"] = changed_cell(job)
    return cells
