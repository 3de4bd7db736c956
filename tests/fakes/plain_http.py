"""httpx for servers on this host. Its own calls load every root certificate, for 25 ms each."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import httpx

from tests.fakes.waiting import PATIENCE_S

_NO_ROOTS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(**options: Any) -> httpx.Client:
    """A client that stays connected."""
    return httpx.Client(**{"verify": _NO_ROOTS, "timeout": PATIENCE_S, **options})


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """One request on a connection of its own."""
    return httpx.request(method, url, **{"verify": _NO_ROOTS, "timeout": PATIENCE_S, **options})


def stream(method: str, url: str, **options: Any) -> AbstractContextManager[httpx.Response]:
    """The same; its answer is read as it comes."""
    return httpx.stream(method, url, **{"verify": _NO_ROOTS, "timeout": PATIENCE_S, **options})


get, head = partial(request, "GET"), partial(request, "HEAD")
post, patch = partial(request, "POST"), partial(request, "PATCH")
