"""Secrets that somebody types where they do not belong, or where they do: each in its own words.

What is recorded as it is typed, because it is meant to be read (a reason, a label, a name, an
idempotency key, a request id), is not here: docs/audit.md says so.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator

import httpx

from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack

TAIL = uuid.uuid4().hex[:10]
ENGINE_PATH = "/engines/{engine}"


def canary(name: str) -> str:
    """A word that nothing else has; also a password that is long enough."""
    return f"canary-{name.replace(' ', '-')}-{TAIL}"


def deep(value: object, depth: int) -> object:
    """Inside so many objects."""
    return value if depth == 0 else {"inner": deep(value, depth - 1)}


HEADERS = {
    "bearer": lambda word: {"Authorization": f"Bearer {word}"},
    "bearer of our form": lambda word: {
        "Authorization": f"Bearer qsc_{TAIL[:8]}_{word.replace('-', '')[:32].ljust(32, '0')}"
    },
    "basic": lambda word: {
        "Authorization": "Basic " + base64.b64encode(f"admin:{word}".encode()).decode()
    },
    "api key": lambda word: {"X-API-Key": word},
    "cookie": lambda word: {"Cookie": f"quiesce_sid={word}"},
    "csrf header": lambda word: {"X-CSRFToken": word},
    "if match": lambda word: {"If-Match": word},
    "last event": lambda word: {"Last-Event-ID": word},
    "proxy": lambda word: {"Proxy-Authorization": f"Bearer {word}"},
    "agent": lambda word: {"User-Agent": word},
    "referer": lambda word: {"Referer": f"https://x.example/?password={word}"},
}
BODIES = {
    "unknown field": lambda word: {"password": word},
    "unknown parameter": lambda word: {"params": {"api_key": word}},
    "deep": lambda word: {"params": deep(word, 8)},
    "in a list": lambda word: {"params": [word]},
    "as a key": lambda word: {word: 1},
    "as a parameter's key": lambda word: {"params": {word: 1}},
    "as a kind": lambda word: {"kind": word},
    "as a mode": lambda word: {"params": {"mode": word}},
    "as a number": lambda word: {"params": {"timeout_s": word}},
    "as a conflict": lambda word: {"on_conflict": word},
    "url userinfo": lambda word: {
        "kind": "attach_storage_backend",
        "params": {"backend": "valkey", "config": {"url": f"valkey://u:{word}@h:1/0"}},
    },
    "backend password": lambda word: {
        "kind": "attach_storage_backend",
        "params": {"backend": "valkey", "config": {"url": "valkey://h:1/0", "password": word}},
        "on_conflict": "nonsense",
    },
}
QUERIES = ("password", "token", "cursor", "dry_run", "wait_s", "state", "since")
FORMS = {
    "flush form": ("/flush", {"engine": "{engine}", "password": "{word}", "mode": "{word}"}),
    "login password": ("/login", {"username": "admin", "password": "{word}"}),
    "login name": ("/login", {"username": "{word}", "password": "x"}),
    "token days": ("/tokens/new", {"name": "x", "scopes": "fleet:read", "days": "{word}"}),
    "token scope": ("/tokens/new", {"name": "x", "scopes": "{word}", "days": "30"}),
    "role": ("/users/admin/roles", {"role": "{word}"}),
    "mode of a role": ("/users/admin/roles", {"role": "viewer", "modes": "{word}"}),
    "limit of a role": ("/users/admin/roles", {"role": "viewer", "max_timeout_s": "{word}"}),
    "engine key": (
        "/register",
        {"name": "x", "control_address": "tcp://h:1", "events_address": "tcp://h:1",
         "curve_key": "{word}"},
    ),
    "search": ("/audit/verify", {"q": "{word}"}),
    "try it": ("/engines/{engine}/try", {"prompt": "x", "max_tokens": "{word}"}),
}  # fmt: skip


# Told back to whoever typed them, in that answer only: which field nobody knows, and a form that
# keeps what was typed into it. They are stored nowhere either.
TOLD_BACK = {"as a key", "as a parameter's key", "limit of a role", "engine key"}


def words() -> list[str]:
    """Every canary's name."""
    return [
        *HEADERS, *BODIES, *(f"query {name}" for name in QUERIES), *FORMS,
        "new password", "reset password", "stdin password", "token",
    ]  # fmt: skip


def typed_everywhere(
    stack: Stack, engine: FakeEngine, browser: httpx.Client
) -> Iterator[tuple[str, httpx.Response | None]]:
    """Type each; (its name, the answer)."""
    job = {"engine": engine.name, "kind": "flush_cache"}
    for name, made in HEADERS.items():
        yield name, stack.request("POST", "/jobs/nothing", json={}, headers=made(canary(name)))
    for name, made in BODIES.items():
        yield name, stack.request("POST", "/jobs", json={**job, **made(canary(name))})
    for name in QUERIES:
        word = canary(f"query {name}")
        yield f"query {name}", stack.request("GET", "/jobs", params={name: word})
        browser.get("/jobs", params={name: word})
    for name, (path, fields) in FORMS.items():
        values = {
            field: text.format(engine=engine.name, word=canary(name))
            for field, text in fields.items()
        }
        yield (
            name,
            browser.post(
                path.format(engine=engine.name),
                data={"csrfmiddlewaretoken": browser.csrf, **values},
                headers={"Origin": stack.url},
            ),
        )
    stack.manage("create_user", f"u{TAIL}", "--password-stdin", said=canary("new password"))
    stack.manage("reset_password", f"u{TAIL}", "--password-stdin", said=canary("reset password"))
    done = stack.manage(
        "create_user", "x y", "--password-stdin", check=False, said=canary("stdin password")
    )
    assert done.returncode == 1
    yield "token", stack.request("POST", "/tokens/nothing/revoke", json={"token": canary("token")})
