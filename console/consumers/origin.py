"""Which pages may open a socket: ours only, because the browser sends the cookie to any.

Policy: an Origin header must be there and name the host (and port) that was asked, or a trusted
origin; `null` and missing are refused. Refused at the handshake, before session or group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any  # ASGI messages
from urllib.parse import urlsplit

from django.http.request import split_domain_port, validate_host

from console.consumers.refusals import socket_refused

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_PORTS = {"http": "80", "https": "443"}


def _header(scope: Message, name: bytes) -> str | None:
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) != 1:
        return None
    try:
        text: str = values[0].decode("ascii")
    except UnicodeDecodeError:
        return None
    return text.strip().lower()


def origin_is_ours(
    scope: Message, allowed_hosts: Iterable[str], trusted_origins: Iterable[str]
) -> bool:
    """True when the handshake comes from a page of this console."""
    origin, host = _header(scope, b"origin"), _header(scope, b"host")
    if origin is None or host is None or origin == "null":
        return False
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, list(allowed_hosts)):
        return False
    if origin in {trusted.lower().rstrip("/") for trusted in trusted_origins}:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # half of an IPv6 address
        return False
    if parts.scheme not in _PORTS or parts.path or parts.query or parts.username is not None:
        return False
    if scope.get("scheme") == "wss" and parts.scheme != "https":
        return False
    origin_domain, origin_port = split_domain_port(parts.netloc)
    _, host_port = split_domain_port(host)
    default = _PORTS[parts.scheme]
    return origin_domain == domain and (origin_port or default) == (host_port or default)


async def refuse(scope: Message, receive: Receive, send: Send) -> None:
    """The handshake ends with 403; for strangers, and for paths where no socket is."""
    await receive()
    await send({"type": "websocket.close", "code": 4403})


class SameOrigin:
    """Refuses foreign handshakes with 403."""

    def __init__(
        self, app: App, *, allowed_hosts: Iterable[str], trusted_origins: Iterable[str]
    ) -> None:
        self._app = app
        self._allowed_hosts = list(allowed_hosts)
        self._trusted_origins = list(trusted_origins)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on what comes from our own pages."""
        if origin_is_ours(scope, self._allowed_hosts, self._trusted_origins):
            await self._app(scope, receive, send)
            return
        await socket_refused(scope, asked="live", code="foreign_origin")
        await refuse(scope, receive, send)
