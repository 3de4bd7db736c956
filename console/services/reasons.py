"""What a reason may hold: people read it in the audit log, so it must read as it was written.

Control characters and text-direction overrides can show other words than are stored, on a page and
in a terminal; PostgreSQL takes no NUL at all. Used by every service that records a reason.
"""

from __future__ import annotations

import re

from console.exceptions import Invalid

MAX_REASON_CHARS = 500
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def reason_read(text: str) -> str:
    """The reason without blanks around it. Raises Invalid, naming what it may not hold."""
    reason = text.strip()
    if len(reason) > MAX_REASON_CHARS:
        raise Invalid(f"reason must have at most {MAX_REASON_CHARS} characters")
    if found := _HIDDEN.search(reason):
        raise Invalid(
            f"reason holds a control or text-direction character, U+{ord(found.group()):04X}"
        )
    return reason
