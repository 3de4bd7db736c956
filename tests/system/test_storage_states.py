"""What the console says of an engine whose backend cannot be had: blocked, not possible, gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.console.pages.test_states import flat
from tests.fakes.engine_process import EngineProcess
from tests.fakes.supervised import ROOT, Supervised, supervised
from tests.fakes.waiting import wait_until
from tests.system.storage_stack import (
    ATTACH,
    CLEAR,
    DETACH,
    POLICIES,
    SMALL,
    do,
    done,
    flush,
    from_storage,
    generate,
    logged_in,
    until_idle,
    view,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack(smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    with supervised(smollm2_dir, cpu_ext_dir, "--dp-size", "2") as stack:
        yield stack


def words(stack: Supervised, path: str) -> str:
    with logged_in(stack) as client:
        answer = client.get(path)
        assert answer.status_code == 200, path
        return flat(answer.text)


def rank(stack: Supervised, number: int) -> dict[str, Any]:
    return dict(view(stack)["ranks"][number])


def storage(stack: Supervised, number: int) -> dict[str, Any]:
    return dict(rank(stack, number)["storage"] or {})


def kill_rank(stack: Supervised, number: int) -> None:
    """As a crash does; it starts again by itself."""

    command = f"rank {number}"
    before = stack.child(command)
    before.kill()

    def is_another() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):  # also one that nobody has waited for yet
            return stack.find(command) not in (None, before.pid)
        return False

    wait_until(is_another)
    wait_until(lambda: rank(stack, number)["proven"] and rank(stack, number)["online"])


def test_a_backend_that_a_rank_cannot_open_is_told_and_tried_again(stack: Supervised) -> None:
    folder = stack.dir / "blockable"
    config = {**SMALL, "file_storage_path": str(folder)}
    done(stack, ATTACH, backend="file", config=config)
    first = generate(stack, routed_dp_rank=1)
    until_idle(stack)
    wait_until(lambda: storage(stack, 1).get("stored_pages") == 37)
    page = words(stack, "/engines/local/backend")
    assert "2 closed" in page and "37 pages" in page and "2 of 2 as desired" in page

    folder.rename(stack.dir / "moved")
    folder.write_text("not a folder")
    kill_rank(stack, 1)
    wait_until(lambda: storage(stack, 1).get("is_open") is False)
    assert storage(stack, 0)["is_open"] is True
    told = storage(stack, 1)
    assert told["breaker"] == "open" and told["last_error"]
    page = words(stack, "/engines/local/backend")
    assert "1 rank cannot open it" in page and "Rank 1 not as desired" in page
    assert "tries again by itself" in page and flat(told["last_error"]) in page
    assert "1 of 2 as desired" in page
    listed = words(stack, "/backends")
    assert "1 breaker not closed" in listed and "rank 1" in listed
    again = generate(stack, routed_dp_rank=1)
    assert again["text"] == first["text"] and from_storage(again) == 0

    folder.unlink()
    (stack.dir / "moved").rename(folder)
    wait_until(lambda: storage(stack, 1).get("is_open") is True)
    flush(stack)
    back = generate(stack, routed_dp_rank=1)
    assert from_storage(back) == 592 and back["text"] == first["text"]
    assert "2 of 2 as desired" in words(stack, "/engines/local/backend")
    done(stack, DETACH)


@pytest.fixture
def plain(stack: Supervised, smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """A second engine of the same console, without the hierarchical cache."""
    engine = EngineProcess(smollm2_dir, cpu_ext_dir, dp_size=1)
    engine.start()
    run = engine.dir / "run"
    command = ("register_engine", "plain", f"ipc://{run}/control.sock", f"ipc://{run}/events.sock")
    subprocess.run(
        [sys.executable, ROOT / "manage.py", *command],
        env={"PATH": os.environ["PATH"], "QUIESCE_STATE_DIR": str(stack.dir)},
        cwd=stack.dir,
        check=True,
    )
    try:
        wait_until(lambda: stack.api("GET", "/engines/plain").json()["online"])
        yield engine
    finally:
        engine.stop()


def test_an_engine_without_the_cache_says_so_and_one_that_is_gone_too(
    stack: Supervised, plain: EngineProcess
) -> None:
    page = words(stack, "/engines/plain/backend")
    assert "no host tier (L2), so no backend can be attached" in page
    jobs: list[tuple[str, dict[str, Any]]] = [
        (ATTACH, {"backend": "file"}),
        (DETACH, {}),
        (CLEAR, {}),
        (POLICIES, {"write_policy": "write_back"}),
    ]
    for kind, params in jobs:
        job = do(stack, kind, engine="plain", **params)
        assert (job["state"], job["error"]["message"]) == (
            "failed",
            "Hierarchical cache is not enabled.",
        ), kind
    plan = {"engine": "plain", "kind": ATTACH, "params": {"backend": "file"}}
    dry = stack.api("POST", "/jobs?dry_run=true", json=plan).json()
    assert "without the hierarchical cache" in dry["refusals"][0]["message"]
    assert "L2" not in words(stack, "/engines/plain")

    plain.stop()
    wait_until(lambda: not stack.api("GET", "/engines/plain").json()["online"])
    page = words(stack, "/engines/plain/backend")
    assert "last known" in page and "unreachable" in page
    assert "last seen" in words(stack, "/backends")
    secret = {"url": "valkey://127.0.0.1:1", "password": "canary-gone"}
    body = {**plan, "params": {"backend": "valkey", "config": secret}, "reason": "test"}
    refused = stack.api("POST", "/jobs", json=body)
    assert refused.status_code == 503 and "canary" not in refused.text
    dry = stack.api("POST", "/jobs?dry_run=true", json=plan).json()
    assert dry["would_be_accepted"] is False
