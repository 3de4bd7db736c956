"""Jobs over the whole real stack: on time, at once, and with the truth after every kill."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import plain_http
from tests.fakes.engine_process import Background
from tests.fakes.supervised import Supervised
from tests.fakes.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
LONG = "The quick brown fox jumps over the lazy dog. " * 32


@pytest.fixture
def stack(whole: Supervised) -> Supervised:
    """All are well, and nothing runs."""
    wait_until(lambda: whole.api("GET", "/engines/local").json()["idle"])
    return whole


def generate(stack: Supervised, prompt: str, max_new: int, **sampling: Any) -> dict[str, Any]:
    body = {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": max_new, **sampling},
    }
    return dict(plain_http.post(f"{stack.engine_base}/generate", json=body).json())


def cached(stack: Supervised, prompt: str) -> int:
    return int(generate(stack, prompt, 1)["meta_info"]["cached_tokens"])


def busy(stack: Supervised, tokens: int) -> Background:
    work = Background(lambda: generate(stack, "Once upon a time", tokens, ignore_eos=True))
    wait_until(lambda: running(stack) == 1)
    return work


def running(stack: Supervised) -> int:
    """Requests that run on any rank, by the console's newest news."""
    ranks = stack.api("GET", "/engines/local").json()["ranks"]
    return sum(rank["places"]["running"] for rank in ranks if rank["places"])


def end(stack: Supervised, work: Background) -> dict[str, Any]:
    """Abort what runs on the engine; what became of `work`."""
    assert work.is_running, "it ended by itself"
    key = (stack.dir / "engine-admin-key").read_text().strip()
    plain_http.post(
        f"{stack.engine_base}/abort_request",
        json={"abort_all": True},
        headers={"Authorization": f"Bearer {key}"},
    ).raise_for_status()
    return dict(work.result())


def flush(stack: Supervised, **params: Any) -> httpx.Response:
    body = {
        "engine": "local",
        "kind": "flush_cache",
        "params": {"mode": "wait", **params},
        "reason": "test",
    }
    return stack.api("POST", "/jobs", json=body)


def test_a_flush_waits_for_idle_and_empties_every_rank(stack: Supervised) -> None:
    cached(stack, LONG)
    assert cached(stack, LONG) >= 256
    work = busy(stack, 1900)
    job = flush(stack, timeout_s=300).json()
    wait_until(lambda: stack.api("GET", f"/jobs/{job['id']}").json()["phase"] == "waiting for idle")
    wait_until(lambda: running(stack) == 1)
    end(stack, work)
    ended = stack.ended(job["id"])
    assert ended["state"] == "succeeded"
    assert [rank["state"] for rank in ended["ranks"]] == ["succeeded", "succeeded"]
    assert cached(stack, LONG) == 0


def test_busy_without_a_timeout_fails_at_once_with_counts(stack: Supervised) -> None:
    work = busy(stack, 1900)
    job = stack.ended(flush(stack, timeout_s=0).json()["id"])
    assert job["state"] == "failed"
    assert "running=1" in str(job["error"])
    end(stack, work)


def test_the_request_id_is_in_each_entry_and_in_the_engines_log(stack: Supervised) -> None:  # D03
    answer = flush(stack, timeout_s=60)
    request_id, job = answer.headers["x-request-id"], answer.json()["id"]
    stack.ended(job)
    entries = stack.api("GET", "/audit", params={"request": request_id}).json()["items"]
    asked_for = {entry["action"] for entry in entries if entry["job"] == job}
    assert {"job.accepted", "job.claimed", "job.dispatched", "job.succeeded"} <= asked_for
    lines = (stack.dir / "logs" / "engine.log").read_text().splitlines()
    assert [line for line in lines if request_id in line and job in line and "asked for" in line]


@pytest.mark.slow  # each half of it is a test of its own side
def test_a_timeout_expires_and_disturbs_nobody(stack: Supervised) -> None:
    alone = generate(stack, "Once upon a time", 1900, ignore_eos=True)["text"]
    work = busy(stack, 1900)
    job = stack.ended(flush(stack, timeout_s=1.5).json()["id"])
    assert job["state"] == "expired"
    assert work.is_running
    assert work.result()["text"] == alone


def test_a_second_job_is_refused_at_once_and_names_the_first(stack: Supervised) -> None:
    work = busy(stack, 1900)
    first = flush(stack, timeout_s=300).json()
    wait_until(lambda: stack.api("GET", f"/jobs/{first['id']}").json()["state"] == "dispatched")
    second = flush(stack, timeout_s=300)
    assert work.is_running  # it was not waited for
    assert second.status_code == 409
    assert second.headers["content-type"].startswith("application/problem+json")
    assert first["id"] in second.text
    end(stack, work)
    assert stack.ended(first["id"])["state"] == "succeeded"


@pytest.mark.parametrize("timeout", ["NaN", "Infinity", "-1", '"x"', "true", "1e308", "null"])
def test_a_bad_timeout_is_refused(stack: Supervised, timeout: str) -> None:
    body = (
        '{"engine": "local", "kind": "flush_cache", "reason": "t", '
        f'"params": {{"mode": "wait", "timeout_s": {timeout}}}}}'
    )
    answer = stack.api(
        "POST",
        "/jobs",
        content=body,
    )
    if answer.status_code == 415:
        answer = plain_http.post(
            f"{stack.base}/api/v1/jobs",
            content=body,
            headers={
                "Authorization": f"Bearer {stack.token}",
                "Content-Type": "application/json",
            },
        )
    assert answer.status_code in (400, 422), answer.text


@pytest.mark.slow  # each half of it is a test of its own side
def test_drain_under_steady_load_succeeds(stack: Supervised) -> None:
    prompts = [f"Story {n}: once upon a time" for n in range(8)]
    alone = [generate(stack, p, 30, ignore_eos=True)["text"] for p in prompts]
    stop_at = time.monotonic() + 5
    texts: list[list[str]] = [[] for _ in prompts]

    def client(number: int) -> None:
        while time.monotonic() < stop_at:
            texts[number].append(generate(stack, prompts[number], 30, ignore_eos=True)["text"])

    clients = [Background(lambda n=n: client(n)) for n in range(8)]
    time.sleep(1)
    job = stack.ended(flush(stack, timeout_s=300, mode="drain").json()["id"])
    assert job["state"] == "succeeded", job
    for work in clients:
        work.result()
    for number, text in enumerate(alone):
        assert set(texts[number]) == {text}


@pytest.mark.slow  # each half of it is a test of its own side
def test_a_worker_killed_while_waiting_costs_the_job_nothing(stack: Supervised) -> None:
    work = busy(stack, 1900)
    job = flush(stack, timeout_s=300).json()
    wait_until(lambda: stack.api("GET", f"/jobs/{job['id']}").json()["phase"] == "waiting for idle")
    worker = stack.child("celery")
    for process in [*worker.children(recursive=True), worker]:
        process.send_signal(signal.SIGKILL)
    end(stack, work)
    ended = stack.ended(job["id"])
    assert ended["state"] == "succeeded"
    assert cached(stack, LONG) == 0


def test_a_killed_engine_is_said_to_be_down_and_the_job_ends_with_the_truth(
    stack: Supervised,
) -> None:
    log = stack.dir / "logs" / "engine.log"
    frontend = int(re.findall(r"child='frontend' pid=(\d+)", log.read_text())[-1])
    work = busy(stack, 1900)
    job = flush(stack, timeout_s=300).json()
    wait_until(lambda: stack.api("GET", f"/jobs/{job['id']}").json()["phase"] == "waiting for idle")
    os.kill(stack.child("engine serve").pid, signal.SIGKILL)  # its children die with it
    wait_until(lambda: not stack.api("GET", "/engines/local").json()["online"])
    wait_until(lambda: not Path(f"/proc/{frontend}").exists())
    with pytest.raises(httpx.TransportError):
        work.result()
    ended = stack.ended(job["id"])
    assert ended["state"] in ("failed", "expired"), ended
    wait_until(lambda: stack.api("GET", "/engines/local").json()["online"])
    wait_until(
        lambda: all(rank["proven"] for rank in stack.api("GET", "/engines/local").json()["ranks"]),
    )
    assert stack.ended(flush(stack, timeout_s=300).json()["id"])["state"] == "succeeded"
    actions = [
        entry["action"] for entry in stack.api("GET", f"/audit?job={job['id']}").json()["items"]
    ]
    assert sum(action.startswith("job.") for action in actions) >= 3
    assert len([entry for entry in actions if entry in ("job.failed", "job.expired")]) == 1
