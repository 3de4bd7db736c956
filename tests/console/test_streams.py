"""What is streamed under ASGI: an export of the audit beside its signed heads, static files."""

from __future__ import annotations

import pytest

from tests.console.audit.exports import Files
from tests.fakes import plain_http
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process


def test_an_export_of_a_running_console_verifies_beside_its_anchors(stack: Stack, tmp_path) -> None:
    anchors = stack.dir / "audit-anchors.jsonl"
    wait_until(lambda: anchors.is_file() and anchors.stat().st_size > 0)
    path = tmp_path / "export.jsonl"
    headers = {"Authorization": f"Bearer {stack.token}"}
    url = f"{stack.url}/api/v1/audit/export"
    logged = len(stack.log("web"))
    with plain_http.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200
        assert "transfer-encoding" in answer.headers  # it is sent while it is made
        path.write_bytes(answer.read())
    done = Files(path, anchors, stack.dir / "audit-key.pub").verify()
    assert done.returncode == 0, done.stdout
    assert "anchored to" in done.stdout
    assert "must consume synchronous iterators" not in stack.log("web")[logged:]
    for name in ("audit-key.pem", "audit-anchors.jsonl"):
        assert (stack.dir / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["HEAD", "not modified", "whole"])
def test_no_static_answer_is_gathered_in_memory(stack: Stack, how: str) -> None:
    path = "/static/css/quiesce.css"
    first = plain_http.get(stack.url + path)
    logged = len(stack.log("web"))
    if how == "HEAD":
        answer = plain_http.head(stack.url + path)
    elif how == "not modified":
        since = {"If-Modified-Since": first.headers["last-modified"]}
        answer = plain_http.get(stack.url + path, headers=since)
        assert answer.status_code == 304
    else:
        answer = first
    assert answer.content == (first.content if how == "whole" else b"")
    assert "must consume synchronous iterators" not in stack.log("web")[logged:]
