"""Opens files under allowed folders only, following no link out of them, and nothing but files.

The path is resolved first; the resolved path is then walked from the root without following any
link, so that one put in its way meanwhile is refused and not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from engine.tensorfiles.errors import TensorFileError

Roots = Sequence[Path]


def resolve_beneath(path: str, roots: Roots) -> tuple[Path, Path]:
    """Return the root that holds `path`, and the resolved path. Raises TensorFileError."""
    if not path or "\0" in path or not Path(path).is_absolute() or ".." in Path(path).parts:
        raise TensorFileError(repr(path), "weights are named by an absolute path without '..'")
    try:
        real = Path(path).resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        reason = error.strerror if isinstance(error, OSError) else "a loop of links"
        raise TensorFileError(path, reason or "cannot be resolved") from error
    for root in roots:
        real_root = root.resolve()
        if real.is_relative_to(real_root):
            return real_root, real
    shown = ", ".join(map(str, roots)) or "none"
    raise TensorFileError(path, f"not under an allowed weights root ({shown})")


def open_file(path: Path, roots: Roots | None) -> int:
    """Open a regular file for reading; the caller closes the descriptor. Raises TensorFileError.

    `roots` None allows any place: for what the operator named when the engine was started.
    """
    try:
        if roots is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        else:
            fd = _walk(*resolve_beneath(str(path), roots))
    except OSError as error:
        raise TensorFileError(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise TensorFileError(path, "not a regular file")
    return fd


def _walk(root: Path, target: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for name in target.relative_to(root).parts:
            below = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = below
    except OSError:
        os.close(fd)
        raise
    return fd
