"""The console's own CURVE key: engines elsewhere let in whoever holds it.

One file, read by every process of the console; its public half stands beside it (.pub) and is what
an engine's file of authorized keys names. Knows no socket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

import zmq
from django.conf import settings

from console.exceptions import ConsoleKeyUnusable

_KEY_CHARS = 40


def console_key_make() -> None:
    """Make the key and its public half, if they are not there. Raises ConsoleKeyUnusable."""
    path: Path = settings.CURVE_KEY_FILE
    try:
        if not path.exists():
            _, secret = zmq.curve_keypair()
            beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(secret + b"\n")
                file.flush()
                os.fsync(file.fileno())
            # Never over one that another process has just made: engines know that one.
            with contextlib.suppress(FileExistsError):
                os.link(beside, path)
            beside.unlink()
        public, _ = console_key_read()
        path.with_name(f"{path.name}.pub").write_text(f"{public.decode()}\n")
    except OSError as error:
        raise ConsoleKeyUnusable(f"{path.name} cannot be made: {error.strerror}") from error


def console_key_read() -> tuple[bytes, bytes]:
    """Public and secret key, Z85. Raises ConsoleKeyUnusable."""
    path: Path = settings.CURVE_KEY_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = path.read_text(errors="replace").strip().encode()
    except FileNotFoundError as error:
        raise ConsoleKeyUnusable(
            f"this console has no {path.name}; `manage.py prepare_state` makes it"
        ) from error
    except OSError as error:
        raise ConsoleKeyUnusable(f"{path.name} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ConsoleKeyUnusable(f"{path.name} can be read by other users; set its mode to 0600")
    try:
        return zmq.curve_public(secret), secret
    except (ValueError, zmq.ZMQError) as error:
        raise ConsoleKeyUnusable(
            f"{path.name} holds no key: it must be {_KEY_CHARS} characters of Z85"
        ) from error


def console_key_public() -> str | None:
    """The public key, to show; None when this console has none that it could use."""
    try:
        return console_key_read()[0].decode()
    except ConsoleKeyUnusable:
        return None
