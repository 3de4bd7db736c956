"""Who may connect over tcp: a ZAP handler (ZeroMQ RFC 27) in the frontend's own loop.

It answers libzmq, which asks it about each new connection and, by ZMQ_ZAP_ENFORCE_DOMAIN, refuses
everybody when nobody answers. The file of keys is read again when it changes.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import zmq
import zmq.asyncio
from zmq.utils import z85

from engine.keys import Authorized, read_authorized
from engine.log import get_logger

log = get_logger()

DOMAIN = b"quiesce"
_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_LOOK_EVERY_S = 0.5
_TELL_EVERY_S = 5.0  # of refused peers: a stranger that tries on and on is one line in so long


class Authenticator:
    """Serves one context, in which it must be made before the sockets that it guards are bound."""

    def __init__(self, context: zmq.asyncio.Context, path: str) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._authorized = Authorized({})
        self._served: set[bytes] = set()
        self._told_at = -_TELL_EVERY_S
        self._untold = 0
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        self._look()

    def close(self) -> None:
        """Nobody answers any more: nobody is let in."""
        self._socket.close()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            await self._socket.send_multipart(self._reply(frames))

    async def key_removed(self) -> None:
        """Return once a key that was let in is not in the file any more."""
        while not self._served - self._authorized.names.keys():
            await asyncio.sleep(_LOOK_EVERY_S)
            self._look()
        self._served &= self._authorized.names.keys()

    def _reply(self, frames: list[bytes]) -> list[bytes]:
        request_id = frames[1] if len(frames) > 1 else b""
        key, why = self._judge(frames)
        if key is None:
            self._tell(frames[3] if len(frames) > 3 else b"", why)
            return [_VERSION, request_id, b"400", why.encode(), b"", b""]
        self._served.add(key)
        return [_VERSION, request_id, b"200", b"OK", key, b""]

    def _judge(self, frames: list[bytes]) -> tuple[bytes | None, str]:
        """The peer's public key when it is let in, else why not."""
        if len(frames) != 7 or frames[0] != _VERSION:
            return None, "not understood"
        if frames[2] != DOMAIN or frames[5] != b"CURVE" or len(frames[6]) != 32:
            return None, "CURVE only"
        self._look()
        key = z85.encode(frames[6])
        return (key, "") if key in self._authorized.names else (None, f"unknown key {key.decode()}")

    def _look(self) -> None:
        """Read the file again if it is another one than before; a missing one lets nobody in."""
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                return
            authorized = read_authorized(self._path)
        except OSError as error:
            if self._authorized.names or self._seen is None:
                log.error("authorized keys unreadable: nobody is let in", reason=error.strerror)
            self._seen, self._authorized = (0, 0, 0), Authorized({})
            return
        self._seen, self._authorized = seen, authorized
        for problem in authorized.problems:
            log.error("authorized keys have a line that is no key", reason=problem)
        log.info("authorized keys read", count=len(authorized.names))

    def _tell(self, address: bytes, why: str) -> None:
        now = time.monotonic()
        if now - self._told_at < _TELL_EVERY_S:
            self._untold += 1
            return
        log.warning(
            "peer refused",
            address=address.decode(errors="replace"),
            reason=why,
            more_before=self._untold,
        )
        self._told_at, self._untold = now, 0
