"""Who gets in: S07 (nobody by accident) and S08 (CSRF for cookies, not for tokens)."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.test import Client

from api.auth import AUTH, SessionAuth, TokenAuth
from api.main import PUBLIC_OPERATIONS
from api.main import api as ninja_api
from console.actors import Actor
from console.clock import db_now
from console.services.tokens import token_create, token_revoke
from console.services.users import user_create, user_set_active
from tests.console.conftest import PASSWORD

pytestmark = pytest.mark.django_db

JOB = "00000000-0000-4000-8000-000000000000"


def operations():
    """Every registered operation: (method, path, operation)."""
    for router in ninja_api._get_bound_routers():
        prefix = router.prefix
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    full = re.sub(r"\{[a-z]*:(job|upload)_id\}", JOB, f"/api/v1{prefix}{path}")
                    full = full.replace("{name}", "local").replace("{int:grant_id}", "1")
                    yield method, full, operation


ALL = list(operations())
CHANGING = [one for one in ALL if one[0] != "GET"]


def test_s07_every_operation_has_our_two_kinds_of_auth_and_none_is_async():
    assert len(ALL) >= 9
    assert frozenset() == PUBLIC_OPERATIONS
    for method, path, operation in ALL:
        kinds = [type(auth) for auth in operation.auth_callbacks]
        assert kinds == [TokenAuth, SessionAuth], (method, path)
        for auth in operation.auth_callbacks:
            for call in (auth, type(auth).__call__, auth.authenticate):
                assert not inspect.iscoroutinefunction(call), (method, path)
        assert not operation.is_async, (method, path)


def hopeless(user):
    """Credentials that must open nothing."""
    actor = Actor.system("test")
    expired = token_create(
        username=user.username,
        name="old",
        actor=actor,
        expires_at=db_now() - timedelta(seconds=1),
        now=db_now() - timedelta(days=1),
    )
    revoked = token_create(username=user.username, name="gone", actor=actor)
    token_revoke(prefix=revoked.token.prefix, actor=actor)
    leaver = user_create(username="leaver", password=PASSWORD, roles=["operator"], actor=actor)
    inactive = token_create(username="leaver", name="left", actor=actor)
    user_set_active(username=leaver.username, is_active=False, actor=actor)
    return {
        "nothing": {},
        "wrong": {"authorization": "Bearer qsc_00000000_" + "0" * 32},
        "garbage": {"authorization": "Bearer x"},
        "basic": {"authorization": "Basic YTpi"},
        "empty": {"authorization": "Bearer "},
        "expired": {"authorization": f"Bearer {expired.text}"},
        "revoked": {"authorization": f"Bearer {revoked.text}"},
        "inactive": {"authorization": f"Bearer {inactive.text}"},
    }


@pytest.mark.parametrize(("method", "path", "operation"), ALL)
def test_s07_no_operation_opens_to_wrong_credentials(method, path, operation, user, engine):
    bodies = set()
    for name, headers in hopeless(user).items():
        answer = Client(headers=headers).generic(method, path, "{}", "application/json")
        assert answer.status_code == 401, name
        assert answer["Content-Type"] == "application/problem+json"
        assert answer["WWW-Authenticate"]
        problem = answer.json()
        problem.pop("request_id")
        bodies.add(str(problem))
    assert len(bodies) == 1, "the answer does not tell why"


def test_s07_an_inactive_person_is_out_by_token_and_by_session(user, token, browser):
    user.is_active = False
    user.save()
    assert (
        Client(headers={"authorization": f"Bearer {token}"}).get("/api/v1/jobs").status_code == 401
    )
    assert browser.get("/api/v1/jobs").status_code == 401


@pytest.mark.parametrize("fault", [DatabaseError("down"), ZeroDivisionError()], ids=repr)
def test_s07_an_auth_that_raises_lets_nobody_in(monkeypatch, api, fault):
    def broken(self, request, token):
        raise fault

    monkeypatch.setattr(TokenAuth, "authenticate", broken)
    status = 503 if isinstance(fault, DatabaseError) else 500
    for method, path, _ in ALL:
        answer = api.generic(method, path, "{}", "application/json")
        assert answer.status_code == status, (method, path)


def test_s08_a_cookie_needs_its_csrf_token(post, browser):
    assert post(client=browser).status_code == 403
    assert post(client=browser, headers={"X-CSRFToken": "x" * 64}).status_code == 403
    other = Client()
    other.get("/login")
    foreign = other.cookies["quiesce_csrf"].value
    assert post(client=browser, headers={"X-CSRFToken": foreign}).status_code == 403
    answer = post(client=browser, headers={"X-CSRFToken": browser.csrf})
    assert answer.status_code == 202
    assert answer.json()["via"] == "api"


def test_s08_no_operation_takes_a_cookie_without_its_proof(browser):
    """Nor one with a proof that is another session's."""
    other = Client()
    other.get("/login")
    foreign = {"X-CSRFToken": other.cookies["quiesce_csrf"].value}
    bearer = {"authorization": "Bearer qsc_00000000_" + "0" * 32, "X-CSRFToken": browser.csrf}
    for method, path, _ in CHANGING:
        for headers in ({}, foreign):
            answer = browser.generic(method, path, "{}", "application/json", headers=headers)
            found = (answer.status_code, answer.json()["code"])
            assert found == (403, "csrf_failed"), (method, path)
        stray = browser.generic(method, path, "{}", "application/json", headers=bearer)
        assert stray.status_code == 401, "a token that is there alone decides"


def test_s08_a_token_needs_none_with_or_without_a_stray_cookie(post, token, browser):
    bearer = {"authorization": f"Bearer {token}"}
    assert post(client=Client(enforce_csrf_checks=True), headers=bearer).status_code == 202
    browser.get("/api/v1/jobs")
    assert post(client=browser, headers=bearer).status_code == 409  # passed: the engine is held


def test_s08_a_wrong_token_is_not_made_good_by_a_cookie(browser):
    bearer = {"authorization": "Bearer qsc_00000000_" + "0" * 32}
    assert browser.get("/api/v1/jobs", headers=bearer).status_code == 401


def test_s08_a_foreign_origin_or_referer_is_refused_over_tls(post, browser):
    headers = {"X-CSRFToken": browser.csrf}
    for more in ({"Origin": "https://evil.example"}, {"Referer": "https://evil.example/"}, {}):
        answer = post(client=browser, headers={**headers, **more}, secure=True)
        assert answer.status_code == 403
    ours = {"Origin": "https://testserver"}
    assert post(client=browser, headers={**headers, **ours}, secure=True).status_code == 202


def test_s08_a_get_changes_nothing_and_form_bodies_are_refused(api, post):
    assert api.get("/api/v1/jobs/flush").status_code == 404
    for kind in (
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data; boundary=x",
    ):
        assert post(raw="engine=local", content_type=kind).status_code == 415


def test_the_order_of_kinds_is_token_then_session():
    assert [type(auth) for auth in AUTH] == [TokenAuth, SessionAuth]
