"""The OpenAPI document says what is answered: found by generated requests, each fault kept here."""

from __future__ import annotations

import pytest

from api.main import api as ninja_api
from api.routers.events import _line
from console.services.audit_export import EXPORT_TYPES

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def operations():
    paths = ninja_api.get_openapi_schema()["paths"]
    return {f"{method} {path}": one for path, ways in paths.items() for method, one in ways.items()}


def test_problems_are_documented_as_what_they_are_sent_as(operations, api):
    for name, operation in operations.items():
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"], (name, status)
    assert api.get("/api/v1/jobs?color=red")["Content-Type"] == "application/problem+json"


def test_an_export_is_documented_in_each_form(operations):
    documented = operations["get /api/v1/audit/export"]["responses"][200]["content"]
    assert list(documented) == list(EXPORT_TYPES.values())


def test_events_are_documented_one_by_one(operations):
    content = operations["get /api/v1/events"]["responses"][200]["content"]
    event = content["text/event-stream"]["schema"]
    lines = [line.partition(": ")[0] for line in _line("alive", 7, {}).decode().splitlines()]
    assert lines[:3] == event["required"]


@pytest.mark.parametrize("path", ["jobs", "audit", "audit/export"])
@pytest.mark.parametrize("since", ["0", "2026", "1767225600.5", "-1"])
def test_a_number_is_no_time(api, path, since):
    answer = api.get(f"/api/v1/{path}", {"since": since})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "since"


@pytest.mark.parametrize("path", ["jobs", "audit", "audit/export"])
@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_before_or_after_all_times_is_refused(api, path, since):
    assert api.get(f"/api/v1/{path}", {"since": since}).status_code == 422


def test_a_token_ends_at_a_time_that_is_written_as_one(post):
    for moment in (1893456000, "1893456000", "9999-12-31T23:59:59-23:59"):
        answer = post({"name": "t", "expires_at": moment}, path="/api/v1/tokens")
        assert answer.status_code == 422, moment


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("users", {"username": "bo", "is_service": "true"}),
        ("users/ana/grants", {"role": "viewer", "may_force": 0}),
        ("engines", {"name": "e", "control_address": "ipc:///a", "events_address": "ipc:///b",
                     "enabled": "no"}),
    ],
)  # fmt: skip
def test_a_flag_is_true_or_false(post, path, body):
    answer = post(body, path=f"/api/v1/{path}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == list(body)[-1]
