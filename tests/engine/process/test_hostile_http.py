"""Clients that misuse HTTP on a real engine: refused or dropped, and nobody else notices."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

import pytest

from tests.fakes.engine_process import CANARY, EngineProcess
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


def connect(
    engine: EngineProcess, data: bytes = b"", timeout_s: float = PATIENCE_S
) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", engine.port), timeout_s)
    raw.sendall(data)
    return raw


def answer(engine: EngineProcess, data: bytes) -> bytes:
    """The beginning of what comes back for these bytes."""
    with connect(engine, data) as raw:
        return raw.recv(500)


def head(path: str, length: int, **headers: str) -> bytes:
    fields = {"Host": "x", "Content-Type": "application/json", "Content-Length": length, **headers}
    lines = [f"{name}: {value}" for name, value in fields.items()]
    return f"POST {path} HTTP/1.1\r\n".encode() + "\r\n".join([*lines, "", ""]).encode()


def generation(max_new: int = 1500, **more: Any) -> bytes:
    body = {
        "text": "Once upon a time",
        "sampling_params": {"max_new_tokens": max_new, "ignore_eos": True, "temperature": 0},
        **more,
    }
    data = json.dumps(body).encode()
    return head("/generate", len(data)) + data


def test_a_head_without_end_is_refused(engine: EngineProcess) -> None:
    for start in (b"GET /", b"GET /health HTTP/1.1\r\nHost: x\r\nA: "):
        with connect(engine, start) as raw:
            try:
                for _ in range(100):
                    raw.sendall(b"a" * 16384)
            except (ConnectionError, TimeoutError):
                pass
            else:
                assert raw.recv(20)[9:12] in (b"431", b"400")
    assert engine.is_itself()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"BREW /generate HTTP/1.1\r\nHost: x\r\n\r\n",
        head("/generate", -4) + b"{}",
        head("/generate", 10**30) + b"{}",
        head("/generate", 5, **{"Transfer-Encoding": "chunked"}) + b"0\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        head("/generate", 25, **{"Content-Encoding": "gzip"}) + b"\x1f\x8b" + b"x" * 23,
    ],
)
def test_what_is_no_request_is_a_400(engine: EngineProcess, data: bytes) -> None:
    assert answer(engine, data).startswith(b"HTTP/1.1 400")


def test_methods_and_paths_that_do_not_exist_are_json(engine: EngineProcess) -> None:
    for method, path, status in (
        ("DELETE", "/generate", 405),
        ("OPTIONS", "/generate", 405),
        ("GET", "/generate", 405),
        ("HEAD", "/flush_cache", 405),
        ("HEAD", "/operations", 405),
        ("PUT", "/operations/x/cancel", 405),
        ("POST", "//generate", 404),
        ("POST", "/generate/", 404),
        ("GET", "/%2e%2e/operations", 404),
        ("GET", "/operations/%00", 404),
        ("POST", "/operations/x/zork", 404),
    ):
        found = engine.admin(method, path, follow_redirects=False)
        assert found.status_code == status, (method, path, found.text)
        if method != "HEAD":
            assert found.headers["content-type"] == "application/json"
    assert not engine.operations()["open"]
    wait_until(lambda: engine.client.head("/health").status_code == 200)


def test_a_websocket_is_not_spoken(engine: EngineProcess) -> None:
    upgrade = (
        b"GET /flush_cache HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert answer(engine, upgrade).startswith(b"HTTP/1.1 401")


def test_chunked_and_pipelined_requests_are_answered_in_order(engine: EngineProcess) -> None:
    body = b'{"text":"%s","sampling_params":{"max_new_tokens":1,"temperature":0}}' % CANARY.encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    first = (
        b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    )
    data = first + b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nGET /nope HTTP/1.1\r\nHost: x\r\n\r\n"
    seen = b""
    with connect(engine, data) as raw:
        while b"Not Found" not in seen:
            seen += raw.recv(4096)
    assert re.findall(rb"HTTP/1.1 (\d+)", seen) == [b"200", b"200", b"404"]
    assert b'"text":' + json.dumps(engine.word).encode() in seen


def test_a_client_that_leaves_while_it_sends_its_body_is_no_fault(engine: EngineProcess) -> None:
    before = engine.log().count("request failed")
    for path in ("/generate", "/v1/chat/completions", "/operations/x/extend"):
        connect(engine, head(path, 100) + b"{").close()
    time.sleep(0.3)
    assert engine.log().count("request failed") == before
    assert engine.is_itself()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_its_request_is_read_leaves_no_work(
    engine: EngineProcess, stream: bool
) -> None:
    body = {
        "text": "Once upon a time",
        "stream": stream,
        "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True},
    }
    data = json.dumps(body).encode() + b" " * 300_000  # read in many parts
    before = engine.generated()
    for _ in range(5):
        connect(engine, head("/generate", len(data)) + data).close()
    time.sleep(0.5)
    engine.until_idle()
    assert engine.generated() < before + 1900  # not one of them was run to its end


def test_an_id_may_be_used_again_as_soon_as_its_client_left(engine: EngineProcess) -> None:
    pids = engine.pids("frontend")
    for _ in range(20):
        with connect(engine, generation(stream=True, rid="same")) as raw:
            raw.recv(100)
    again = engine.generate(CANARY, 1, rid="same")
    while again.status_code == 400:  # until the last one's end is noticed
        assert "Duplicate" in again.text
        again = engine.generate(CANARY, 1, rid="same")
    assert again.json()["text"] == engine.word
    assert engine.pids("frontend") == pids


def test_a_reader_that_stops_delays_nobody_and_still_gets_everything(
    engine: EngineProcess,
) -> None:
    whole = engine.text("Once upon a time", 150, sampling={"ignore_eos": True})
    engine.flush()
    more = {"stream": True, "return_logprob": True, "top_logprobs_num": 60}
    with connect(engine, generation(150, **more)) as raw:
        assert engine.is_itself()
        engine.until_idle()  # it was generated to the end without its reader
        seen = bytearray()
        while b"[DONE]" not in seen[-64:]:
            seen += raw.recv(1 << 16)
    last = seen.rpartition(b'data: {"text":"')[2].partition(b'","output_ids')[0]
    assert json.loads(b'"' + last + b'"') == whole
    assert seen.count(b'"output_ids"') < 150  # what waited was joined


def test_many_idle_connections_keep_nobody_out(engine: EngineProcess) -> None:
    sockets = [connect(engine, b"GET /hea" if index % 2 else b"") for index in range(600)]
    try:
        assert engine.is_itself()
    finally:
        for raw in sockets:
            raw.close()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"text": "a", "extra_key": "k" * 5000}, "extra_key"),
        ("/generate", {"text": ["a"] * 1024, "sampling_params": {"n": 128}}, "sampling_params.n"),
        (
            "/generate",
            {"text": ["a"] * 512, "return_logprob": True, "top_logprobs_num": 128},
            "return_logprob",
        ),
        (
            "/generate",
            {"text": "a", "return_logprob": True, "token_ids_logprob": [1] * 100_000},
            "return_logprob",
        ),
        ("/v1/completions", {"prompt": "a", "rid": "k" * 300}, "rid"),
        ("/v1/completions", {"prompt": "a", "extra_key": "k" * 5000}, "extra_key"),
        ("/v1/completions", {"prompt": ["a"] * 1024, "n": 128}, "n"),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a"}],
                "logprobs": True,
                "top_logprobs": 128,
                "n": 128,
            },
            "logprobs",
        ),
        ("/abort_request", {"abort_all": True, "abort_message": "x" * 5000}, "abort_message"),
    ],
)
def test_what_would_fill_memory_is_refused_by_name(
    engine: EngineProcess, path: str, body: dict[str, Any], param: str
) -> None:
    found = engine.admin("POST", path, json=body)
    assert found.status_code == 400, found.text
    assert found.json().get("param", found.json().get("error")) == param


@pytest.mark.parametrize("op_id", ["a/b", "x" * 65, "%00", "%ff", "a b"])
def test_an_operation_id_is_one_that_every_route_can_name(
    engine: EngineProcess, op_id: str
) -> None:
    found = engine.admin("POST", f"/flush_cache?op_id={op_id}")
    assert found.status_code == 400
    assert found.json()["param"] == "op_id"


def test_a_text_of_megabytes_holds_nobody_up(engine: EngineProcess) -> None:
    body = json.dumps({"text": "x " * 1_000_000}).encode()
    with connect(engine, head("/generate", len(body)) + body) as raw:
        for _ in range(20):
            assert engine.client.get("/ping").status_code == 200
        assert raw.recv(20).startswith(b"HTTP/1.1 400")


def test_a_flush_whose_caller_leaves_at_any_moment_ends(engine: EngineProcess) -> None:
    data = (
        b"POST /flush_cache?timeout=600 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        b"Authorization: Bearer canary-admin-key-3f9a\r\n\r\n"
    )
    for index in range(30):
        with connect(engine, data[: len(data) - (index % 3)]):
            time.sleep(index * 0.001)
    wait_until(lambda: not engine.operations()["open"])
    assert engine.flush(timeout=60).status_code == 200
