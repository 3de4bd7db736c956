"""What a reason, or a person's name, may hold: people read it in the audit log, so it must read as
it was written.

Control characters and text-direction overrides can show other words than are stored, on a page and
in a terminal; PostgreSQL takes no NUL at all. Used by every service that records one.
"""

from __future__ import annotations

import re
import unicodedata

from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError

from console.exceptions import Invalid

MAX_REASON_CHARS = 500
MAX_NAME_CHARS = 150
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def reason_read(text: str) -> str:
    """The reason without blanks around it. Raises Invalid, naming what it may not hold."""
    return _read("reason", text, MAX_REASON_CHARS)


def full_name_read(text: str) -> str:
    """A person's name likewise. Raises Invalid."""
    return _read("full name", text, MAX_NAME_CHARS)


def username_read(text: str) -> str:
    """The name that somebody logs in with, as it is kept and as a log-in reads it: NFKC, so that
    `ＢＯＢ` is `BOB`. Raises Invalid."""
    name = unicodedata.normalize("NFKC", text.strip())
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError as error:
        raise Invalid("a user name holds letters, digits and @ . + - _ only") from error
    if len(name) > MAX_NAME_CHARS:
        raise Invalid(f"user name must have at most {MAX_NAME_CHARS} characters")
    return name


def _read(what: str, text: str, most: int) -> str:
    text = text.strip()
    if len(text) > most:
        raise Invalid(f"{what} must have at most {most} characters")
    if found := _HIDDEN.search(text):
        raise Invalid(
            f"{what} holds a control or text-direction character, U+{ord(found.group()):04X}"
        )
    return text
