"""Everything at once for minutes: traffic, flushes in every mode, kills and stops. Slow.

`SOAK_S` is how long (default 90). At the end nothing hangs, leaks or lies.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import plain_http
from tests.fakes.engine_process import ADMIN_KEY, Background, EngineProcess
from tests.fakes.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600)]

SOAK_S = float(os.environ.get("SOAK_S", "90"))
SHARED = "Once upon a time there was a small engine that served many people. " * 3
PROMPTS = [f"{SHARED[: 20 * index]}Story {index}: the capital of France is" for index in range(10)]
LENGTHS = (1, 7, 40, 90)
MODES = ("if_idle", "wait", "drain", "retract", "abort")
CALL_S = 100.0


class Soak:
    """Clients of one engine. A broken promise ends the client that saw it."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.stop = threading.Event()
        self.seen: collections.Counter[str] = collections.Counter()
        self.op_ids: list[str] = []
        self.solo = {
            (prompt, length): engine.generate(prompt, length).json()["output_ids"]
            for prompt in PROMPTS
            for length in LENGTHS
        }

    def repeat(self, work: Callable[[random.Random], None], seed: int) -> Background:
        rng = random.Random(seed)

        def loop() -> None:
            while not self.stop.is_set():
                try:
                    work(rng)
                except httpx.TimeoutException as error:
                    raise AssertionError(f"no end within {CALL_S} s") from error
                except (httpx.TransportError, ConnectionError):  # its frontend was killed
                    self.seen["connection lost"] += 1
                    time.sleep(0.2)

        return Background(loop)

    # ---- traffic -----------------------------------------------------------------------------

    def body(self, rng: random.Random) -> tuple[dict[str, Any], list[int]]:
        prompt, length = rng.choice(PROMPTS), rng.choice(LENGTHS)
        body: dict[str, Any] = {
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": length},
        }
        if rng.random() < 0.2:
            body |= {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
        return body, self.solo[prompt, length]

    def judge(self, answer: dict[str, Any], expected: list[int]) -> None:
        reason = answer["meta_info"]["finish_reason"]
        ids = answer["output_ids"]
        self.seen[reason["type"]] += 1
        if reason["type"] == "abort":
            assert ids == expected[: len(ids)]
        else:
            assert ids == expected

    def refused(self, answer: httpx.Response) -> bool:
        if answer.status_code == 503:
            self.seen["503"] += 1
            time.sleep(0.05)
            return True
        assert answer.status_code == 200, answer.text
        return False

    def whole(self, rng: random.Random) -> None:
        body, expected = self.body(rng)
        if rng.random() < 0.1:
            body["sampling_params"]["max_new_tokens"], expected = 0, []
        samples = rng.choice([1, 1, 2])
        body["sampling_params"]["n"] = samples
        answer = plain_http.post(self.engine.base + "/generate", json=body, timeout=CALL_S)
        if not self.refused(answer):
            found = answer.json()
            for item in found if samples > 1 else [found]:
                reason = item["meta_info"]["finish_reason"]
                if reason["type"] == "abort" and reason["status_code"]:
                    self.seen["lost in a batch"] += 1
                else:
                    self.judge(item, expected)

    def stream(self, rng: random.Random) -> None:
        body, expected = self.body(rng)
        body["stream"] = True
        last: dict[str, Any] = {}
        ended = 0
        url = self.engine.base + "/generate"
        with plain_http.stream("POST", url, json=body, timeout=CALL_S) as answer:
            if answer.status_code == 503:
                self.seen["503"] += 1
                return
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    break
                if line:
                    last = json.loads(line[6:])
                    ended += "error" in last or last["meta_info"]["finish_reason"] is not None
                if rng.random() < 0.01:
                    time.sleep(0.3)
                if rng.random() < 0.01:
                    self.seen["left a stream"] += 1
                    return
        assert ended == 1, f"{ended} ends"
        if "error" in last:
            self.seen["error event"] += 1
        else:
            self.judge(last, expected)

    def leave(self, rng: random.Random) -> None:
        """A connection that goes away after a random part of its request or reply."""
        body, _ = self.body(rng)
        body |= {"stream": rng.random() < 0.5, "rid": f"leave-{rng.randint(0, 2)}"}
        data = json.dumps(body).encode()
        data = (
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        with socket.create_connection(("127.0.0.1", self.engine.port), 10) as raw:
            raw.sendall(data[: rng.choice([5, 60, len(data) - 1, len(data), len(data)])])
            time.sleep(rng.choice([0, 0.001, 0.02, 0.2]))
        self.seen["left"] += 1

    def abort(self, rng: random.Random) -> None:
        time.sleep(rng.random())
        body = {"rid": f"leave-{rng.randint(0, 2)}"} if rng.random() < 0.8 else {"abort_all": True}
        assert self.engine.admin("POST", "/abort_request", json=body).status_code == 200

    # ---- operations --------------------------------------------------------------------------

    def flush(self, rng: random.Random) -> None:
        op_id = f"soak-{rng.getrandbits(60)}"
        query: dict[str, Any] = {"mode": rng.choice(MODES), "timeout": rng.choice([0, 0.1, 1, 5])}
        if rng.random() < 0.7:
            query["op_id"] = op_id
            self.op_ids.append(op_id)
        patience = rng.choice([0.01, 0.2, CALL_S, CALL_S])
        headers = {"Accept": "application/json"}
        url = self.engine.base + "/flush_cache"
        headers["Authorization"] = f"Bearer {ADMIN_KEY}"
        try:
            answer = plain_http.post(url, params=query, headers=headers, timeout=patience)
        except httpx.TimeoutException:
            assert patience < CALL_S, "a flush did not end"
            self.seen["flush left"] += 1
            return
        assert answer.status_code in (200, 400, 409, 503), answer.text
        self.seen[f"flush {answer.json().get('outcome') or answer.json()['error']}"[:22]] += 1
        time.sleep(rng.random() * 0.3)

    def meddle(self, rng: random.Random) -> None:
        time.sleep(rng.random() * 0.5)
        for operation in self.engine.operations()["open"]:
            act = rng.choice(["extend", "force", "cancel", "none"])
            path = f"/operations/{operation['op_id']}/{act}"
            body = {"by_s": rng.choice([-1, 0.5, 2])} if act == "extend" else None
            answer = self.engine.admin("POST", path, json=body)
            assert answer.status_code in (202, 404, 409), answer.text

    # ---- the operating system ----------------------------------------------------------------

    def hurt(self, rng: random.Random) -> None:
        """Children die at most every 12 s: `launch` gives up at five deaths of one a minute."""
        self.stop.wait(12)
        child = rng.choice(["frontend", "rank 0", "rank 1"])
        if rng.random() < 0.5:
            self.seen[f"killed {child}"] += 1
            self.engine.kill(child)
        else:
            self.seen[f"stopped {child}"] += 1
            self.engine.kill(child, signal.SIGSTOP)
            time.sleep(rng.choice([0.5, 2, 4]))
            self.engine.kill(child, signal.SIGCONT)


def resources(pid: int) -> dict[str, int]:
    """Descriptors, threads and resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    threads = re.search(r"Threads:\s+(\d+)", status)
    rss = re.search(r"VmRSS:\s+(\d+)", status)
    assert threads and rss
    return {
        "fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "threads": int(threads[1]),
        "rss_mb": int(rss[1]) // 1024,
    }


def check_rest(soak: Soak) -> None:
    """At rest: no page held, no operation open, no account out of balance, no fault in the log."""
    engine = soak.engine
    engine.until_serving()
    engine.until_idle()
    wait_until(lambda: not engine.operations()["open"])
    wait_until(lambda: engine.flush(timeout=60).status_code == 200)
    for load in engine.loads():
        kv = load["memory"]["kv"]
        assert (kv["locked_pages"], kv["held_pages"]) == (0, 0), kv
        assert kv["free_pages"] == kv["total_pages"], kv
    for line in engine.client.get("/metrics").text.splitlines():
        if line.startswith("sglang:kv_account_violations_total{"):
            assert line.endswith(" 0.0"), line
    for op_id in soak.op_ids:
        found = engine.admin("GET", f"/operations/{op_id}")
        if found.status_code == 200:
            assert found.json()["outcome"] is not None
    for word in ("Traceback", "level='error'", "request failed"):
        assert word not in engine.log(), engine.log()[engine.log().find(word) - 200 :][:3000]
    for prompt, length in list(soak.solo)[:8]:
        answer = engine.generate(prompt, length).json()
        assert answer["output_ids"] == soak.solo[prompt, length]


def test_nothing_hangs_leaks_or_lies(smollm2_dir: Path, cpu_ext_dir: Path) -> None:
    options = {"max_total_tokens": 800, "context_length": 400, "max_queued_requests": 8}
    engine = EngineProcess(smollm2_dir, cpu_ext_dir, max_running_requests=8, **options)
    try:
        soak = Soak(engine.start())
        work = [soak.whole] * 3 + [soak.stream] * 3 + [soak.leave] * 2 + [soak.abort]
        work += [soak.flush] * 3 + [soak.meddle]
        hurt = [soak.hurt] if os.environ.get("SOAK_KILL", "1") == "1" else []
        pids = [engine.pids(child)[-1] for child in ("frontend", "rank 0", "rank 1")]
        clients = [soak.repeat(one, seed) for seed, one in enumerate(work + hurt)]
        soak.stop.wait(15)
        before = [resources(pid) if Path(f"/proc/{pid}").exists() else {} for pid in pids]
        until = time.monotonic() + SOAK_S
        while time.monotonic() < until and all(client.is_running for client in clients):
            time.sleep(0.5)
        soak.stop.set()
        for client in clients:
            client.result()
        print(dict(soak.seen))
        check_rest(soak)
        now = [engine.pids(child)[-1] for child in ("frontend", "rank 0", "rank 1")]
        for old, new, was in zip(pids, now, before, strict=True):
            found = resources(new)
            print(old == new, was, found)
            if old == new:
                assert found["fds"] <= was["fds"] + 4
                assert found["threads"] <= was["threads"] + 2
                assert found["rss_mb"] <= was["rss_mb"] + 80
    finally:
        if engine.process is not None:
            for child in ("frontend", "rank 0", "rank 1"):
                try:
                    engine.kill(child, signal.SIGCONT)
                except ProcessLookupError:
                    continue
        engine.stop()
