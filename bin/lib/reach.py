"""Whether an external Redis and PostgreSQL answer, asked before anything is started.

In the project's environment. Passwords are never repeated.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from options import Options, fail

_WAIT_S = 5


def check(options: Options) -> None:
    """Exit with a sentence that names the variable, the address and the reason."""
    if options.redis_url:
        _redis(options.redis_url)
    if options.database_url.startswith(("postgres://", "postgresql://")):
        _postgresql(options.database_url)


def _where(url: str) -> str:
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] or parts.path) or "its address"


def _redis(url: str) -> None:
    import redis

    try:
        with redis.from_url(url, socket_connect_timeout=_WAIT_S, socket_timeout=_WAIT_S) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        fail(f"REDIS_URL: no Redis answers at {_where(url)}: {_reason(error)}", 1)


def _postgresql(url: str) -> None:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=_WAIT_S).close()
    except psycopg.Error as error:
        fail(f"DATABASE_URL: no PostgreSQL answers at {_where(url)}: {_reason(error)}", 1)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
