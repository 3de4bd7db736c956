"""Clients of the API: by token, by session, by nobody."""

from __future__ import annotations

import pytest
from django.test import Client

from console.actors import Actor
from console.services.tokens import token_create
from tests.console.conftest import ana, ask, engine, user

__all__ = ["ana", "ask", "engine", "user"]


@pytest.fixture
def token(user):
    return token_create(username=user.username, name="ci", actor=Actor.system("test")).text


@pytest.fixture
def api(token):
    """By bearer token."""
    return Client(headers={"authorization": f"Bearer {token}"})


@pytest.fixture
def browser(user):
    """By session cookie, with CSRF enforced; `csrf` is the token to send."""
    client = Client(enforce_csrf_checks=True)
    client.get("/login")
    client.csrf = client.cookies["quiesce_csrf"].value
    client.force_login(user)
    return client


@pytest.fixture
def post(api, engine):
    """POST a flush with a raw or JSON body."""

    def do(body=None, *, client=api, path="/api/v1/jobs", raw=None, **options):
        if body is None and raw is None:
            body = {"engine": engine.name, "kind": "flush_cache"}
        content_type = options.pop("content_type", "application/json")
        return client.post(
            path, raw if raw is not None else body, content_type=content_type, **options
        )

    return do
