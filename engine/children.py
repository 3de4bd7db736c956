"""Start a child process that cannot outlive its parent, and describe how one ended.

Used by `launch`; knows nothing of what the children do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def start(
    arguments: Sequence[str], *, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """`python -m engine ARGUMENTS…` in a session of its own; killed when this process dies."""
    parent = os.getpid()

    def before_exec() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before we asked
                os._exit(1)

    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "engine", *arguments],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=before_exec,
    )


def ending(returncode: int) -> str:
    """How a process ended, for people."""
    if returncode < 0:
        try:
            return f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"was ended by signal {-returncode}"
    return f"ended with status {returncode}"
