"""How long a thread that computes keeps the others of its process waiting.

Python hands its lock on after 5 ms. Every request and reading is made in a thread, and each of its
ways out leads over another one, the event loop or the sender of hints, that has next to nothing to
do: it would wait for whoever renders, at every step.
"""

from __future__ import annotations

import sys

SWITCH_S = 0.001


def take_turns() -> None:
    """Called once, when a process of many threads starts."""
    sys.setswitchinterval(SWITCH_S)
