"""Flush over HTTP on a real engine: SGLang's texts, every rank or none, and nobody locked out."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.fakes.engine_process import Background, EngineProcess
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

LONG = "The quick brown fox jumps over the lazy dog. " * 32
FLUSHED = "Cache flushed.\n"


def test_a_flush_empties_the_cache_of_every_rank(engine: EngineProcess) -> None:
    for rank in (0, 1):
        engine.generate(LONG, routed_dp_rank=rank)
        assert engine.cached(LONG, routed_dp_rank=rank) >= 256
    answer = engine.flush()
    assert answer.status_code == 200
    assert [rank["state"] for rank in answer.json()["ranks"]] == ["succeeded", "succeeded"]
    for rank in (0, 1):
        assert engine.cached(LONG, routed_dp_rank=rank) == 0


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_text_answers_are_sglangs(engine: EngineProcess, method: str) -> None:
    answer = engine.admin(method, "/flush_cache")
    assert answer.status_code == 200
    assert answer.text.startswith(FLUSHED)
    work = engine.busy(1500)
    refused = engine.admin(method, "/flush_cache")
    assert refused.status_code == 400
    assert refused.text.startswith("Flush cache failed.\n")
    assert "running=1" in refused.text
    expired = engine.admin(method, "/flush_cache?timeout=0.2")
    assert (expired.status_code, expired.text) == (400, "Timed out waiting for idle state.")
    engine.end(work)


@pytest.mark.parametrize("busy_rank", [0, 1])
def test_one_busy_rank_refuses_for_all(engine: EngineProcess, busy_rank: int) -> None:
    """A real server says 200 here, and has flushed one rank of two."""
    other = 1 - busy_rank
    engine.generate(LONG, routed_dp_rank=other)
    work = engine.busy(1500, routed_dp_rank=busy_rank)
    answer = engine.flush()
    assert answer.status_code == 400
    assert answer.json()["outcome"] == "failed"
    assert f"rank {busy_rank} running=1" in answer.json()["message"]
    assert engine.cached(LONG, routed_dp_rank=other) >= 256
    engine.end(work)


def test_a_flush_right_after_a_reply_finds_the_engine_idle(engine: EngineProcess) -> None:  # F01
    for index in range(50):
        engine.generate(f"{index} {LONG[:200]}", 2)
        plain = engine.flush()
        if plain.status_code != 200:
            assert plain.status_code == 400
            assert "not idle" in plain.json()["message"]
        assert engine.flush(timeout=600).status_code == 200  # long before its deadline
    assert engine.cached(f"49 {LONG[:200]}") == 0


def test_two_at_once_do_not_queue_behind_each_other(engine: EngineProcess) -> None:  # F02
    work = engine.busy(1500)
    first = Background(lambda: engine.flush(timeout=120))
    wait_until(lambda: engine.operations()["open"])
    for timeout in ("120", "0"):
        second = engine.admin("POST", f"/flush_cache?timeout={timeout}")
        assert first.is_running and work.is_running  # it was answered before them
        assert second.status_code == 400
        assert second.text == "Another flush_cache is already in progress."
    conflict = engine.flush(timeout=60)
    assert conflict.status_code == 409
    assert conflict.json()["error"]["holder"] == engine.operations()["open"][0]["op_id"]
    assert 0 < conflict.json()["error"]["remaining_s"] <= 120
    engine.end(work)
    assert first.result().status_code == 200  # with the end of the work, not at its deadline
    assert engine.flush().status_code == 200


def test_a_caller_that_hangs_up_frees_the_slot(engine: EngineProcess) -> None:  # F13
    work = engine.busy(1500)
    with socket.create_connection(("127.0.0.1", engine.port)) as raw:
        raw.sendall(
            b"POST /flush_cache?timeout=600 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
            b"Authorization: Bearer canary-admin-key-3f9a\r\n\r\n"
        )
        wait_until(lambda: engine.operations()["open"])
    wait_until(lambda: not engine.operations()["open"])
    assert engine.operations()["finished"][0]["outcome"] == "cancelled"
    answer = Background(lambda: engine.flush(timeout=120))
    engine.end(work)
    assert answer.result().status_code == 200


def test_an_operation_with_an_id_goes_on_without_its_caller(engine: EngineProcess) -> None:
    work = engine.busy(1500)
    with socket.create_connection(("127.0.0.1", engine.port)) as raw:
        raw.sendall(
            b"POST /flush_cache?timeout=600&op_id=kept HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 0\r\nAuthorization: Bearer canary-admin-key-3f9a\r\n\r\n"
        )
        wait_until(lambda: engine.operations()["open"])
    time.sleep(0.3)
    assert engine.operations()["open"][0]["op_id"] == "kept"
    engine.end(work)
    wait_until(lambda: not engine.operations()["open"])
    assert engine.admin("GET", "/operations/kept").json()["outcome"] == "succeeded"


@pytest.mark.parametrize(
    "query",
    [
        "timeout=NaN",
        "timeout=Infinity",
        "timeout=-Infinity",
        "timeout=-1",
        "timeout=x",
        "timeout=",
        "timeout=1e308",
        "timeout=true",
        "timeout=1&timeout=2",
        "mode=zork",
        "mode=",
        "mode=WAIT",
        "empty_cache=maybe",
        "mode=drain",
        "tiemout=3",
    ],
)
def test_bad_parameters_are_refused_by_name(engine: EngineProcess, query: str) -> None:
    answer = engine.admin("POST", f"/flush_cache?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.text or "drain" in answer.text
    assert engine.operations()["open"] == []


def test_a_pending_operation_is_listed_extended_and_cancelled(engine: EngineProcess) -> None:
    work = engine.busy(1500)
    flush = Background(lambda: engine.flush(timeout=120, op_id="p1"))
    wait_until(lambda: engine.operations()["open"])
    wait_until(lambda: engine.operations()["open"][0]["phase"] == "waiting for idle")
    view = engine.admin("GET", "/operations/p1").json()
    assert view["mode"] == "wait"
    assert len(view["awaited_ranks"]) == 1
    extended = engine.admin("POST", "/operations/p1/extend", json={"by_s": 30})
    assert extended.status_code == 202
    assert extended.json()["deadline_clock_s"] == view["deadline_clock_s"] + 30
    for body in ({"by_s": "x"}, {}, {"by_s": 1, "z": 2}):
        assert engine.admin("POST", "/operations/p1/extend", json=body).status_code == 400
    assert engine.admin("POST", "/operations/p1/cancel").status_code == 202
    assert flush.result().json()["outcome"] == "cancelled"
    assert engine.admin("POST", "/operations/p1/cancel").status_code == 409
    assert engine.admin("POST", "/operations/nobody/cancel").status_code == 404
    assert engine.admin("GET", "/operations/nobody").status_code == 404
    engine.end(work)


def test_a_timeout_expires_on_time_and_disturbs_nobody(engine: EngineProcess) -> None:
    undisturbed = engine.text("Once upon a time", 800, sampling={"ignore_eos": True})
    engine.flush()
    work = engine.busy(800)
    answer = engine.flush(timeout=0.3).json()
    assert answer["outcome"] == "expired" and "running=1" in answer["message"]
    assert answer["finished_clock_s"] - answer["started_clock_s"] >= 0.3
    assert work.result()["text"] == undisturbed


def test_drain_under_steady_load_succeeds_and_changes_no_text(engine: EngineProcess) -> None:
    prompts = [f"Story number {index}: once upon a time" for index in range(8)]
    alone = [engine.text(prompt, 40, sampling={"ignore_eos": True}) for prompt in prompts]
    engine.flush()
    texts: dict[int, list[str]] = {index: [] for index in range(8)}
    is_flushed = threading.Event()

    def client(index: int) -> None:
        while not is_flushed.is_set():
            texts[index].append(engine.text(prompts[index], 40, sampling={"ignore_eos": True}))

    clients = [Background(lambda index=index: client(index)) for index in range(8)]
    wait_until(lambda: all(texts.values()))
    answer = engine.flush(timeout=120, mode="drain")
    is_flushed.set()
    assert answer.json()["outcome"] == "succeeded", answer.text
    for work in clients:
        work.result()
    for index in range(8):
        assert texts[index]
        assert set(texts[index]) == {alone[index]}


@pytest.mark.parametrize("mode", ["retract", "abort"])
def test_retract_and_abort_flush_at_once(engine: EngineProcess, mode: str) -> None:
    undisturbed = engine.text("Once upon a time", 150, sampling={"ignore_eos": True})
    engine.flush()
    work = engine.busy(150)
    assert engine.flush(timeout=120, mode=mode).json()["outcome"] == "succeeded"
    answer = work.result()
    if mode == "retract":
        assert answer["text"] == undisturbed
        assert answer["meta_info"]["num_retractions"] == 1
    else:
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert undisturbed.startswith(answer["text"])
