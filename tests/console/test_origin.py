"""Which Origin opens a live socket (S05), as a table."""

from __future__ import annotations

import pytest

from console.consumers.origin import origin_is_ours

HOSTS = ["console.example.org", "localhost", "[::1]"]


def ours(origin, host="console.example.org", scheme="wss", trusted=()):
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return origin_is_ours({"headers": headers, "scheme": scheme}, HOSTS, trusted)


@pytest.mark.parametrize(
    "origin",
    [
        "https://console.example.org",
        "https://console.example.org:443",
        "HTTPS://Console.Example.ORG",
    ],
)
def test_our_own_pages_may(origin):
    assert ours(origin)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "",
        "https://evil.example",
        "https://[",
        "https://[::1",
        "https://console.example.org:x",
        "https://console.example.org.evil.example",
        "https://evil.example/console.example.org",
        "https://console.example.org@evil.example",
        "https://console.example.org:8443",
        "http://console.example.org",
        "file://",
        "https://xn--cnsole-9jf.example.org",
        "https://console.example.org/",
    ],
)
def test_nobody_else_may(origin):
    assert not ours(origin)


def test_a_host_that_is_not_ours_may_not_even_with_the_same_origin():
    assert not ours("https://evil.example", host="evil.example")


def test_plain_http_on_this_host_with_a_port():
    assert ours("http://localhost:8000", host="localhost:8000", scheme="ws")
    assert ours("http://[::1]:8000", host="[::1]:8000", scheme="ws")
    assert not ours("http://localhost:8001", host="localhost:8000", scheme="ws")


def test_a_trusted_origin_may_behind_a_proxy():
    assert ours(
        "https://public.example.org",
        host="localhost:8000",
        scheme="ws",
        trusted=["https://public.example.org"],
    )


def test_two_origins_are_none():
    headers = [
        (b"host", b"localhost"),
        (b"origin", b"http://localhost"),
        (b"origin", b"http://evil.example"),
    ]
    assert not origin_is_ours({"headers": headers, "scheme": "ws"}, HOSTS, ())
