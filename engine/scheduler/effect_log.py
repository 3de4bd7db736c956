"""What this rank has done, one line an effect, for who must prove it later: `serve --effect-log`.

Written by the process that did it, after the effect and before its answer, so that whatever was
acknowledged is in the file. Knows nothing of the coordinator or its journal; the journal's STARTED
record says whose operation a number was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

NoteEffect = Callable[[str, int, int, str], None]  # what, op, attempt, kind


def nothing_recorded(what: str, op: int, att: int, kind: str) -> None:
    """No log was asked for."""


class EffectLog:
    """All ranks of an engine append to one file. A line that cannot be written ends the rank."""

    def __init__(self, path: str, *, rank: int, inc: int) -> None:
        self._rank, self._inc = rank, inc
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)

    def record(self, what: str, op: int, att: int, kind: str) -> None:
        """`commit` or `undo`, on the disk when this returns. Raises OSError."""
        line = {
            "at": round(time.time(), 3),
            "rank": self._rank,
            "inc": self._inc,
            "op": op,
            "att": att,
            "kind": kind,
            "what": what,
        }
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._fd, data) != len(data):  # one write: lines of two ranks never mix
            raise OSError(f"effect log: a line of operation {op} was cut")
        os.fsync(self._fd)
