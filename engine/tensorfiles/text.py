"""Names and reasons out of files of others, as text that can be sent, stored and shown."""

from __future__ import annotations

import unicodedata

MAX_NAME_CHARS = 512
MAX_REASON_CHARS = 1000


def is_name(text: str) -> bool:
    """Printable, not too long, and no half of a surrogate pair."""
    return 0 < len(text) <= MAX_NAME_CHARS and not any(map(_is_hidden, text))


def plain(text: str, limit: int = MAX_REASON_CHARS) -> str:
    """The same, with what cannot be shown made visible, cut at `limit` characters."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(f"\\u{ord(c):04x}" if _is_hidden(c) else c for c in cut)


def _is_hidden(character: str) -> bool:
    """Control, format (such as those that turn text around), surrogate: all but ordinary text."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs")
