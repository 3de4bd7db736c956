"""CURVE keys of an engine as files: its own pair, and the public keys of the consoles it lets in.

Knows no socket. `python -m engine keys` makes the pair; `launch` checks both before anything is
started, and the frontend reads them again. A key is 40 characters of Z85 on a line of its own.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from engine.config import ConfigError, EngineConfig

FILE_NAME = "engine-curve"
_KEY_CHARS = 40


@dataclass(frozen=True)
class KeyPair:
    """Z85, as ZeroMQ takes them. The secret is in no text of this object."""

    public: bytes
    _secret: bytes

    @property
    def secret(self) -> bytes:
        """For the socket's option only."""
        return self._secret

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.decode()})"


@dataclass(frozen=True)
class Authorized:
    """Public keys that are let in, with their names; and the lines that hold no key."""

    names: dict[bytes, str]
    problems: tuple[str, ...] = ()


def is_key(text: str) -> bool:
    """40 characters that decode to 32 bytes."""
    if len(text) != _KEY_CHARS or not text.isascii():
        return False
    try:
        return len(z85.decode(text.encode())) == 32
    except (KeyError, ValueError, struct.error):
        return False


def make(folder: Path) -> KeyPair:
    """Make the pair in `folder`, or read the one that is there. Raises ConfigError."""
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _, secret = zmq.curve_keypair()
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(secret + b"\n")
                file.flush()
                os.fsync(file.fileno())
        pair = read(path)
        path.with_suffix(".pub").write_text(pair.public.decode() + "\n")
    except OSError as error:
        raise ConfigError(f"cannot make keys in {folder}: {error.strerror}") from error
    return pair


def read(path: Path) -> KeyPair:
    """The pair of a secret file. Raises ConfigError: missing, open to others, no key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        raise ConfigError(
            f"no CURVE key at {path} ({error.strerror}); make one with `python -m engine keys`"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by other users; set its mode to 0600")
    if not is_key(text):
        raise ConfigError(f"{path} holds no CURVE key: it must be 40 characters of Z85")
    return KeyPair(zmq.curve_public(text.encode()), text.encode())


def read_authorized(path: Path) -> Authorized:
    """Keys of the file, one a line, each with an optional name after it.

    A line that begins with # is a comment: no key does. What is neither is a problem, named by the
    number of its line, and lets nobody in. Raises OSError.
    """
    names: dict[bytes, str] = {}
    problems = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        key, _, name = line.strip().partition(" ")
        if is_key(key):
            names[key.encode()] = name.strip()
        elif key and not key.startswith("#"):
            problems.append(f"line {number} of {path} begins with no public key")
    return Authorized(names, tuple(problems))


def check(config: EngineConfig) -> None:
    """Refuse tcp sockets without keys, before anything is started. Raises ConfigError."""
    if not config.is_tcp:
        return
    if not config.authorized_keys:
        raise ConfigError(
            "a tcp address needs --authorized-keys FILE: the public keys of the consoles let in"
        )
    read(Path(config.curve_key))
    try:
        found = read_authorized(Path(config.authorized_keys))
    except OSError as error:
        raise ConfigError(
            f"cannot read authorized keys {config.authorized_keys}: {error.strerror}"
        ) from error
    if found.problems:
        raise ConfigError(found.problems[0])
    if not found.names:
        raise ConfigError(f"{config.authorized_keys} holds no public key: nobody could connect")
