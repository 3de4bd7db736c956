"""Faults that requests generated from a document have found (tests/conformance), each kept here."""

from __future__ import annotations

import pytest

from tests.fakes.engine_process import EngineProcess

pytestmark = pytest.mark.process
STORAGE = "/hicache/storage-backend"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (STORAGE, {"GET", "PUT", "DELETE"}),  # three handlers
        ("/flush_cache", {"GET", "POST"}),
        ("/generate", {"POST", "PUT"}),
    ],
)
def test_a_method_that_is_not_taken_is_answered_with_those_that_are(
    engine: EngineProcess, path: str, allowed: set[str]
) -> None:
    for method in ("OPTIONS", "PATCH", "HEAD"):
        answer = engine.admin(method, path)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/flush_cache", 200),
        ("GET", "/flush_cache", 200),
        ("DELETE", STORAGE, 400),
        ("POST", f"{STORAGE}/clear", 400),  # no hierarchical cache here
    ],
)
def test_text_says_that_it_is_text(
    engine: EngineProcess, method: str, path: str, status: int
) -> None:
    answer = engine.admin(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/flush_cache"), ("DELETE", STORAGE), ("POST", "/operations/repair")],
)
def test_an_empty_operation_id_is_refused(engine: EngineProcess, method: str, path: str) -> None:
    answer = engine.admin(method, f"{path}?op_id=")  # a script's variable that was not set
    assert (answer.status_code, answer.json()["param"]) == (400, "op_id")


@pytest.mark.parametrize("form", ["json", "prometheus"])
def test_a_rank_that_is_none_is_refused_in_each_format(engine: EngineProcess, form: str) -> None:
    answer = engine.client.get("/v1/loads", params={"dp_rank": 7, "format": form})
    assert (answer.status_code, answer.json()["param"]) == (400, "dp_rank")
