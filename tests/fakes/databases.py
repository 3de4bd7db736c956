"""Another database as Django's default one, in a thread: for what is to be seen on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any  # one entry of DATABASES

import psycopg
from django.db import connections
from django.db.utils import ConnectionHandler

from console.project.databases import database_from_url


def postgres_database(url: str, name: str, pool_size: int = 8) -> dict[str, Any]:
    """A new database of this name on the server of `url`, as an entry of DATABASES."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    return database_from_url(url.replace("/postgres?", f"/{name}?"), pool_size=pool_size)


@contextmanager
def as_default(settings: dict[str, Any], *, is_last: bool = False) -> Iterator[None]:
    """Inside, in this thread, it is the default one; the last one who leaves ends its pool."""
    usual = connections["default"]
    made = ConnectionHandler({"default": settings})["default"]
    connections["default"] = made
    try:
        yield
    finally:
        made.close()
        if is_last and made.vendor == "postgresql":
            made.close_pool()
        connections["default"] = usual
