"""From DATABASE_URL to Django's DATABASES: SQLite in the state folder, or pooled PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any  # Django's DATABASES is a dict of anything
from urllib.parse import parse_qsl, unquote, urlsplit

from console.project.env import EnvError

# IMMEDIATE: a write transaction takes the lock at BEGIN, so a read-then-write one waits instead of
# failing at once. FULL: the audit must survive a power loss.
SQLITE_OPTIONS = {
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
    "init_command": (
        "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;PRAGMA foreign_keys=ON;"
        "PRAGMA recursive_triggers=ON;"
    ),
}


def sqlite_database(path: Path) -> dict[str, Any]:
    """The embedded default."""
    return {
        "ENGINE": "console.project.sqlite",
        "NAME": str(path),
        "ATOMIC_REQUESTS": False,
        "CONN_MAX_AGE": 0,
        "OPTIONS": dict(SQLITE_OPTIONS),
    }


def database_from_url(url: str, pool_size: int) -> dict[str, Any]:
    """One entry of DATABASES. Raises EnvError when the URL names no database."""
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise EnvError("DATABASE_URL names no database; end it with /NAME.")
    if parts.scheme == "sqlite":
        return sqlite_database(Path(unquote(parts.path)))
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    host = options.pop("host", "") or unquote(parts.hostname or "")
    # A connection is borrowed for one request and given back: idle sockets hold none.
    options["pool"] = {"min_size": 0, "max_size": pool_size, "timeout": 20, "max_idle": 2}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or options.pop("port", "")),
        "ATOMIC_REQUESTS": False,
        "CONN_MAX_AGE": 0,
        "OPTIONS": options,
    }


def celery_broker_url(redis_url: str) -> str:
    """Celery's spelling of the same Redis: kombu wants `redis+socket://` for a unix socket."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://")
    return redis_url
