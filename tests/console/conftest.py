"""Rows that most console tests start from."""

from __future__ import annotations

import pytest

from console.actors import Actor
from console.choices import OnConflict, Via
from console.params import params_of
from console.selectors.access import rights_of
from console.services.engines import engine_register
from console.services.jobs import job_create
from console.services.users import user_create

PASSWORD = "a-long-enough-password"


@pytest.fixture
def user(db):
    return user_create(
        username="ana",
        password=PASSWORD,
        roles=["operator", "auditor"],
        actor=Actor.system("test"),
    )


@pytest.fixture
def ana(user):
    return Actor(
        user_id=user.pk,
        name=user.username,
        via=Via.API,
        source_ip="127.0.0.1",
        rights=rights_of(user),
    )


@pytest.fixture
def engine(db):
    return engine_register(
        name="local",
        control_address="ipc:///nowhere/c.sock",
        events_address="ipc:///nowhere/e.sock",
        actor=Actor.system("test"),
    )


@pytest.fixture
def ask(engine, ana):
    """Ask for a job of `engine`, a flush if not told otherwise."""

    def do(
        *,
        kind="flush_cache",
        on_conflict=OnConflict.REFUSE,
        key=None,
        actor=ana,
        now=None,
        **params,
    ):
        return job_create(
            engine_name=engine.name,
            params=params_of(kind, params),
            reason="test",
            on_conflict=on_conflict,
            actor=actor,
            idempotency_key=key,
            now=now,
        ).job

    return do
