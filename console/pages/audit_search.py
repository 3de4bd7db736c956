"""The audit page's search box: `actor:ana result:denied since:2026-11-01`, both ways."""

from __future__ import annotations

import shlex
from datetime import UTC, date, datetime, time
from uuid import UUID

from console.exceptions import Invalid
from console.selectors.audit import FILTER_NAMES, AuditFilter

MAX_CHARS = 400


def search_read(text: str) -> AuditFilter:
    """What a search asks for. Raises Invalid, saying which word it does not understand."""
    if len(text) > MAX_CHARS or "\0" in text:
        raise Invalid(f"a search has at most {MAX_CHARS} characters")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Invalid("a quotation mark is not closed") from error
    found: dict[str, object] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            name, value = _bare(word)
        if name not in FILTER_NAMES:
            raise Invalid(f"{name!r} is no field; the fields are {', '.join(FILTER_NAMES)}")
        if name in found:
            raise Invalid(f"{name} is there twice")
        found[name] = _value(name, value)
    return AuditFilter(**found)  # type: ignore[arg-type]  # each was read by its name


def _bare(word: str) -> tuple[str, str]:
    try:
        UUID(word)
    except ValueError:
        raise Invalid(f"write what {word!r} is, such as actor:{word} or engine:{word}") from None
    return "job", word


def _value(name: str, value: str) -> object:
    if not value:
        raise Invalid(f"nothing stands behind {name}:")
    if name == "job":
        try:
            return UUID(value)
        except ValueError:
            raise Invalid("job must be a job's id") from None
    if name in ("since", "until"):
        return _moment(name, value)
    return value


def _moment(name: str, value: str) -> datetime:
    try:
        if len(value) == len("2026-01-01"):
            return datetime.combine(date.fromisoformat(value), time(), UTC)
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid(f"{name} must be a day such as 2026-01-31, or a time in ISO 8601") from None


def search_text(chosen: AuditFilter) -> str:
    """The search that asks for this."""
    return " ".join(f"{name}:{shlex.quote(value)}" for name, value in chosen.fields().items())
