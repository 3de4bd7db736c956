"""Makes a folder whole or not at all, whoever else tries at once and whenever its maker is killed.

Knows nothing of what is in it. Used by those that write model folders.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def sole_maker(out_dir: Path) -> Iterator[None]:
    """Wait until nobody else makes `out_dir`, and remove what killed makers left of it.

    The lock is a hidden file beside it, held by the process: it ends when that does.
    """
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with (out_dir.parent / f".{out_dir.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # By pattern and not by glob: what makes qwen2 leaves a living .qwen2.5.77.tmp alone.
        temporary = re.compile(rf"\.{re.escape(out_dir.name)}\.\d+\.tmp")
        for path in list(out_dir.parent.iterdir()):
            if temporary.fullmatch(path.name):
                shutil.rmtree(path)
        yield


@contextmanager
def new_folder(out_dir: Path) -> Iterator[Path]:
    """Yield an empty folder that is named `out_dir` once the block ends well; else it is removed.

    Only inside `sole_maker`, and only where there is no `out_dir`.
    """
    temporary = out_dir.parent / f".{out_dir.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        # A power cut must not leave a whole-looking folder of empty files.
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        temporary.rename(out_dir)
        _sync(out_dir.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
