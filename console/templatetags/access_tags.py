"""Buttons of what one may not do: there, greyed out, with the role that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.access import KIND_ACTS, Act, Rights
from console.choices import JobKind

register = template.Library()


def denied_attrs(why: str) -> SafeString:
    """Attributes of a button that is off for good on this page; none without a reason."""
    if not why:
        return SafeString("")
    return format_html(' aria-disabled="true" data-denied title="{}."', why[:1].upper() + why[1:])


@register.simple_tag
def day(moment: datetime) -> SafeString:
    """A moment by its day, for what lives long; the whole of it in its title."""
    text = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC" data-day>{}</time>',
        text.isoformat(),
        f"{text:%Y-%m-%d %H:%M:%S}",
        f"{text.day} {text:%b %Y}",
    )


@register.filter
def in_days(moment: datetime, now: datetime) -> str:
    """`in 3 days`, `today`, `2 days ago`."""
    days = (moment.astimezone(UTC).date() - now.astimezone(UTC).date()).days
    noun = "day" if abs(days) == 1 else "days"
    return "today" if days == 0 else f"in {days} {noun}" if days > 0 else f"{-days} {noun} ago"


@register.simple_tag
def denied(rights: Rights, act: str, labels: Mapping[str, str] | None = None) -> SafeString:
    """For a button that does `act`, on an engine with these labels or on some engine."""
    return denied_attrs(rights.why_denied(Act(act), labels))


@register.simple_tag
def denied_kind(rights: Rights, kind: str, labels: Mapping[str, str]) -> SafeString:
    """For a button that leads to a job of `kind`."""
    return denied_attrs(rights.why_denied(KIND_ACTS[JobKind(kind)], labels))


@register.simple_tag
def may(rights: Rights, act: str, labels: Mapping[str, str] | None = None) -> bool:
    """True when it is allowed: `{% may rights "audit:read" as reads %}`."""
    return rights.may(Act(act), labels)
