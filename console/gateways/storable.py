"""What an engine says, as text that every database keeps: PostgreSQL has no NUL character.

An answer that cannot be stored would be asked for again for ever, and hold its engine as long.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T", bound=msgspec.Struct)
_NUL, _MARK = b"\\u0000", "\ufffd".encode()  # as JSON writes it; and what stands in its place


def storable(said: _T) -> _T:
    """The same message, a mark in the place of every NUL."""
    document = msgspec.json.encode(said)
    if _NUL not in document:
        return said
    return msgspec.json.decode(document.replace(_NUL, _MARK), type=type(said))
