"""A plan in words, row by row: one panel for every kind of job. What is not known says so."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from console.choices import STORAGE_KINDS, WAITING_KINDS, WEIGHT_UPDATES, JobKind
from console.pages.kinds import kind_words
from console.pages.plan_storage_rows import storage_fails, storage_rows
from console.pages.words import nonzero, why_no_change
from console.params import DetachParams, JobParams, WeightParams, params_of
from console.selectors.history import Span
from console.selectors.plans import Plan
from console.templatetags.q_tags import fine, places, size

NOT_KNOWN = mark_safe('<span class="muted">not known</span>')
_WHEN = {
    "if_idle": "so if_idle would be refused",
    "wait": "when these have ended and no new ones came; steady load can starve it",
    "drain": "when these have ended; new requests are held",
    "retract": "almost at once",
    "abort": "almost at once",
}
_PARTIAL = mark_safe("Job ends <b>partial</b> and names it")
_FAILS = {
    JobKind.FLUSH_CACHE: mark_safe(
        "Job ends <b>partial</b> and names it; that rank still serves right answers from its old "
        "cache"
    ),
    JobKind.REPAIR: mark_safe("It stays fenced and the job names it"),
}


@dataclass(frozen=True)
class PlanPanel:
    """A plan, its rows, and what the form's script looks at. `error`: a field is not right yet."""

    plan: Plan
    error: str = ""

    @property
    def why_not(self) -> str:
        """Why it would be refused now; empty when it would not."""
        if self.plan.kind == JobKind.ABORT_REQUESTS:
            return "" if self.plan.view.online else why_no_change(self.plan.view)
        return why_no_change(self.plan.view, is_repair=self.plan.kind == JobKind.REPAIR)

    @property
    def class_word(self) -> str:
        """B, C or D. A detach that is forced breaks off what is in flight."""
        params = self.plan.params
        is_forced = isinstance(params, DetachParams) and params.force
        return "D" if is_forced else kind_words(self.plan.kind).class_word

    @property
    def rows(self) -> list[tuple[str, SafeString]]:
        """(label, words) of everything that this kind of job has."""
        plan = self.plan
        found = [("Touches", _touches(plan))]
        if reasons := self._refused():
            found.insert(0, ("Not ready" if self.error else "Refused now", reasons))
        if plan.params.waits:
            found.append(("Idle", _idle(plan)))
        if plan.kind in WEIGHT_UPDATES:
            found += [("Bytes", _bytes(plan)), ("Staging", _seconds(plan.history.staged_s))]
            if plan.kind == JobKind.UPDATE_WEIGHTS_FROM_DISK:
                found.append(("Folder", _folder(self)))
        if plan.params.waits:
            found.append(("Expected pause", _seconds(plan.history.pause_s)))
        elif plan.kind in STORAGE_KINDS:
            found.append(("Expected pause", mark_safe("<b>none</b>: it waits for nothing")))
        found += storage_rows(plan)
        if plan.drops_cache:
            found.append(("Tokens lost", _tokens(plan)))
        found.append(("Requests at risk", _risk(plan)))
        can, text = plan.undo
        can = can or plan.kind in WEIGHT_UPDATES  # until the last rank commits
        words = kind_words(plan.kind)
        lead = f"Class {self.class_word}:" if can else ""
        if not can and words.is_typed:
            lead = f"Class {self.class_word}: none."
        undo = text.removeprefix("None. ")
        found.append(("Undo", format_html("<b>{}</b> {}", lead, undo)))
        found.append(("If a rank fails", _if_fails(plan)))
        return found

    def _refused(self) -> SafeString:
        reasons = [self.error] if self.error else []
        if not self.error:
            reasons += [refusal.message for refusal in self.plan.refusals]
        if self.why_not and self.why_not not in reasons:
            reasons.insert(0, self.why_not)
        return format_html_join(mark_safe("<br>"), "{}", ((one,) for one in reasons[:4]))


def _touches(plan: Plan) -> SafeString:
    ranks = len(plan.view.ranks)
    change = ""
    if isinstance(plan.params, WeightParams):
        now = plan.served.version if plan.served else "not known"
        new = plan.params.weight_version or "its checksum"
        change = format_html('<br><span class="mono">{} → {}</span>', now, new)
    return format_html(
        "<b>1 engine, {} rank{}</b>{}{}",
        ranks,
        "" if ranks == 1 else "s",
        ", all or none" if plan.params.waits else "",
        change,
    )


def _idle(plan: Plan) -> SafeString:
    busy = [(rank.dp_rank, nonzero(rank.places)) for rank in plan.view.ranks]
    busy = [(rank, pairs) for rank, pairs in busy if pairs]
    if not plan.view.online:
        return NOT_KNOWN
    if not busy:
        return mark_safe("<b>now</b>: nothing is held on any rank")
    ranks = format_html_join(
        "",
        '<span class="hs"><b>rank {}</b>{}</span>',
        ((rank, places(pairs)) for rank, pairs in busy),
    )
    return format_html('{}<span class="muted">{}</span>', ranks, _WHEN.get(plan.mode, ""))


def _bytes(plan: Plan) -> SafeString:
    each, ranks = plan.bytes_a_rank, len(plan.view.ranks)
    if each is None:
        return NOT_KNOWN
    verb = {
        JobKind.UPDATE_WEIGHTS_FROM_DISK: "read",
        JobKind.UPDATE_WEIGHTS_FROM_TENSOR: "sent",
    }.get(plan.kind, "broadcast, as many as now,")
    return format_html(
        "<b>{}</b> {} a rank, <b>{}</b> in all", size(each), verb, size(each * ranks)
    )


def span_words(span: Span | None) -> str:
    """`1.2 s`, or `1.2–3.4 s`; empty when not known."""
    if span is None:
        return ""
    low, high = fine(span.low), fine(span.high)
    if low == high:
        return low
    if low.startswith("under"):
        return f"at most {high}"
    same_unit = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0]}–{high}" if same_unit and " " in low else f"{low}–{high}"


def _seconds(span: Span | None) -> SafeString:
    if span is None:
        return mark_safe('<span class="muted">not known: no earlier job of this kind</span>')
    noun = "job" if span.count == 1 else "jobs"
    return format_html(
        '<b>{}</b><br><span class="muted">as measured in the last {} {}</span>',
        span_words(span),
        span.count,
        noun,
    )


def _folder(panel: PlanPanel) -> SafeString:
    one = panel.plan.checkpoint
    if panel.error:
        return mark_safe('<span class="muted">not checked yet</span>')
    if one is None:
        return mark_safe('<span class="muted">not known: the engine did not say in time</span>')
    if one.problem:
        return format_html("<b>cannot be loaded.</b> {}", one.problem)
    return format_html(
        '<b>there, headers are in order</b><br><span class="muted">{} file{}, {} tensors; every '
        "tensor is checked while it is staged</span>",
        one.num_files,
        "" if one.num_files == 1 else "s",
        f"{one.num_tensors:,}",
    )


def _tokens(plan: Plan) -> SafeString:
    if plan.cached_tokens is None:
        return NOT_KNOWN
    again = plan.recompute_s
    cost = (
        f"{span_words(again)} of prefill to have them again, from the share that is hit to all"
        if again is not None
        else "what it takes to have them again is not known: no rank has told its prefill rate"
    )
    return format_html(
        '<b>{}</b> cached on the device (L1)<br><span class="muted">{}</span>',
        f"{plan.cached_tokens:,}",
        cost if plan.cached_tokens else "nothing to compute again",
    )


def _held(plan: Plan) -> str:
    if not plan.risk.holds:
        return ""
    held = plan.history.held
    if held is None:
        return "new ones are held meanwhile, how many is not known"
    low, high = int(held.low), int(held.high)
    return f"about {low if low == high else f'{low}–{high}'} held meanwhile, as in earlier jobs"


def _risk(plan: Plan) -> SafeString:
    risk, held = plan.risk, _held(plan)
    tail = f"; {held}" if held else ""
    if plan.kind == JobKind.ABORT_REQUESTS:
        return format_html("<b>{} end</b> with finish_reason abort", risk.lost)
    if risk.lost:
        return format_html("<b>{} end</b> with finish_reason abort{}", risk.lost, tail)
    if risk.restarted:
        return format_html("<b>0 lost</b>; {} restart from prefill{}", risk.restarted, tail)
    if plan.mode == "wait":
        return mark_safe("<b>0 lost</b>; ranks that are idle hold new ones once all are")
    if held:
        return format_html("<b>0 lost</b>{}", tail)
    return mark_safe("<b>0</b>")


def _if_fails(plan: Plan) -> SafeString:
    if plan.kind in WEIGHT_UPDATES:
        return mark_safe(
            "Before the swap: all stay as they are. In it: the others are put back; one that "
            "cannot be is named, fenced, and the job ends <b>partial</b>"
        )
    return storage_fails(plan.kind) or _FAILS.get(plan.kind, _PARTIAL)


_STAND_INS: dict[str, dict[str, object]] = {
    JobKind.UPDATE_WEIGHTS_FROM_DISK: {"model_path": "-"},
    JobKind.UPDATE_WEIGHTS_FROM_TENSOR: {"uploads": ["0" * 64]},
    JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED: {
        "group": {"master_address": "-", "master_port": 1, "world_size": 2}
    },
    JobKind.UPDATE_WEIGHT_VERSION: {"new_version": "-"},
    JobKind.ABORT_REQUESTS: {"abort_all": True},
    JobKind.ATTACH_STORAGE_BACKEND: {"backend": "file"},
    JobKind.SET_CACHE_POLICIES: {"write_policy": "write_through"},
}


def stand_in(kind: str, mode: str = "") -> JobParams:
    """Parameters to plan with while the form's own are not right yet."""
    values = dict(_STAND_INS.get(kind, {}))
    if kind in WAITING_KINDS and mode:
        values["mode"] = mode
    return params_of(kind, values)
