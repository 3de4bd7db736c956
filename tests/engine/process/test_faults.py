"""Killing parts of a real engine: it says what happened, comes back, and nothing lies."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes import plain_http
from tests.fakes.engine_process import ADMIN_KEY, API_KEY, Background, EngineProcess
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared(small_model: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """One that asks for keys. No child may die five times in a minute: it would end."""
    engine = EngineProcess(small_model, cpu_ext_dir, api_key=API_KEY)
    try:
        assert engine.start().is_itself()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def engine(shared: EngineProcess) -> EngineProcess:
    """Both ranks serve, and nothing is under way."""
    shared.until_serving()
    shared.until_idle()
    wait_until(lambda: shared.flush().status_code == 200)
    return shared


def quiet(work: Background) -> None:
    """Wait for a request whose engine may have died under it."""
    try:
        work.result()
    except httpx.TransportError:
        return


def test_a_killed_rank_is_named_restarted_and_serves_again(engine: EngineProcess) -> None:
    work = engine.busy(800, routed_dp_rank=1)
    flush = Background(lambda: engine.flush(timeout=120))
    wait_until(lambda: engine.operations()["open"])
    engine.kill("rank 1")
    answer = flush.result()
    assert answer.json()["outcome"] == "failed"
    assert [rank["state"] for rank in answer.json()["ranks"]] == ["not_started", "unreachable"]
    lost = work.result()  # an error, not a made-up text
    assert "rank 1 was lost" in lost["error"]["message"]
    assert "was ended by SIGKILL" in engine.log()
    refused = engine.flush()
    if refused.status_code != 200:
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "rank_not_ready"
    engine.until_serving()
    wait_until(lambda: engine.flush().status_code == 200)
    assert engine.is_itself(routed_dp_rank=1)


def test_a_killed_frontend_comes_back_and_ends_what_was_open(engine: EngineProcess) -> None:
    ranks = engine.pids("rank 0") + engine.pids("rank 1")
    before = engine.generated()
    work = engine.busy(1900)
    flush = Background(lambda: engine.flush(timeout=600, op_id="open-op"))
    wait_until(lambda: engine.operations()["open"])
    engine.kill("frontend")
    quiet(work)
    quiet(flush)
    engine.until_serving()
    result = engine.admin("GET", "/operations/open-op").json()
    assert result["outcome"] == "failed"
    assert "restarted before the decision" in result["message"]
    assert engine.pids("rank 0") + engine.pids("rank 1") == ranks  # weights stayed in memory
    engine.until_idle()
    assert engine.generated() < before + 1900  # requests of the dead frontend were dropped
    assert engine.flush().status_code == 200
    assert engine.is_itself()


def test_a_frontend_that_was_stopped_finds_its_ranks_serving(engine: EngineProcess) -> None:
    work = engine.busy(200)
    flush = Background(lambda: engine.flush(timeout=1.5, op_id="late"))
    wait_until(lambda: engine.operations()["open"])
    pid = engine.pids("frontend")[-1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(pid, signal.SIGCONT)
    answer = flush.result().json()
    assert answer["outcome"] in ("expired", "succeeded")
    work.result()
    assert engine.flush().status_code == 200


def test_a_rank_that_is_stopped_gets_no_new_requests_until_it_is_heard_again(
    engine: EngineProcess,
) -> None:
    engine.is_itself(routed_dp_rank=1)  # rank 1 has this prefix
    engine.kill("rank 1", signal.SIGSTOP)
    wait_until(lambda: not engine.loads()[1]["online"])
    for _ in range(4):
        assert engine.is_itself()
    waiting = Background(lambda: engine.is_itself(routed_dp_rank=1))
    time.sleep(0.3)
    assert waiting.is_running
    engine.kill("rank 1", signal.SIGCONT)
    assert waiting.result()


def test_the_whole_engine_restarts_on_its_journal(engine: EngineProcess) -> None:
    engine.flush(op_id="before")
    flushes = engine.log().count("cache flushed")
    assert engine.process is not None
    os.kill(engine.process.pid, signal.SIGKILL)
    engine.process.wait()
    for child in ("frontend", "rank 0", "rank 1"):
        pid = engine.pids(child)[-1]
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    engine.start()
    assert engine.admin("GET", "/operations/before").json()["outcome"] == "succeeded"
    again = engine.flush(op_id="before")
    assert again.json()["op_id"] == "before"
    assert engine.log().count("cache flushed") == flushes  # not again after the restart


def test_no_secret_is_shown_anywhere(engine: EngineProcess) -> None:  # S01
    """Every route that can be read, pages that are none, and a body that cannot be read."""
    from engine.frontend.http_server import ROUTES

    paths = [re.sub(r"\{[^}]*\}", "x", path) for path, _, methods, _ in ROUTES if "GET" in methods]
    paths += ["/nope", "/openapi.json", "/docs", "/generate"]
    assert len(paths) > 20
    seen = []
    for key in ("", API_KEY, ADMIN_KEY, "wrong"):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        for path in paths:
            answer = plain_http.get(engine.base + path, headers=headers)
            assert answer.status_code < 500
            seen += [answer.text, str(answer.headers)]
        broken = plain_http.post(engine.base + "/generate", headers=headers, content=b"{")
        seen += [broken.text, str(broken.headers)]
    wall = "".join(seen) + engine.log()
    assert ADMIN_KEY not in wall
    assert API_KEY not in wall
    assert str(engine.dir) not in "".join(seen)


def test_keys_open_what_they_are_for(small_model: Path, cpu_ext_dir: Path) -> None:
    from engine.frontend.http_auth import Access
    from engine.frontend.http_server import ROUTES

    engine = EngineProcess(small_model, cpu_ext_dir, api_key=API_KEY, dp_size=1)
    try:
        engine.start()
        for path, _, methods, access in ROUTES:
            url = engine.base + path.replace("{op_id}", "x").replace("{act}", "cancel").replace(
                "{model_id:path}", "x"
            )
            for key, admitted in (
                ("", access is Access.OPEN),
                ("wrong", access is Access.OPEN),
                (API_KEY, access is not Access.ADMIN),
                (ADMIN_KEY, True),
            ):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                answer = plain_http.request(methods[0], url, headers=headers)
                assert (answer.status_code != 401) is admitted, (path, key, answer.status_code)
                if not admitted:
                    assert answer.json() == {"error": "Unauthorized"}
    finally:
        engine.stop()


def test_a_taken_port_and_a_missing_model_are_one_sentence(
    engine: EngineProcess, cpu_ext_dir: Path
) -> None:
    import subprocess
    import sys

    def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "engine", "serve", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    missing = serve("--model", "/nowhere", "--state-dir", str(engine.dir / "x"))
    assert missing.returncode == 2
    assert missing.stderr.strip().splitlines() == [
        "engine: no model at /nowhere: it has no config.json"
    ]
    taken = serve(
        *("--model", str(engine.command[engine.command.index("--model") + 1])),
        *("--state-dir", str(engine.dir / "y"), "--port", str(engine.port)),
    )
    assert taken.returncode == 2
    assert f"port {engine.port}" in taken.stderr
