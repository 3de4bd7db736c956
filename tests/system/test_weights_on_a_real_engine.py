"""Weight jobs of the console on a real engine: from disk, from uploaded files, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import plain_http
from tests.fakes.supervised import Supervised
from tests.fakes.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
PROMPT = "The capital of France is"


@pytest.fixture
def stack(whole: Supervised) -> Supervised:
    return whole


def generate(stack: Supervised) -> str:
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 24}}
    return str(plain_http.post(f"{stack.engine_base}/generate", json=body).json()["text"])


def do(stack: Supervised, kind: str, **params: Any) -> dict[str, Any]:
    body = {"engine": "local", "kind": kind, "params": params, "reason": "test"}
    asked = stack.api("POST", "/jobs", json=body)
    assert asked.status_code == 202, asked.text
    return stack.ended(asked.json()["id"])


def upload(stack: Supervised, path: Path) -> str:
    size = path.stat().st_size
    begun = stack.api("POST", "/uploads", json={"name": path.name, "size_bytes": size}).json()
    at = begun
    with path.open("rb") as file:
        while at["offset"] < size:
            file.seek(at["offset"])
            answer = plain_http.patch(
                f"{stack.base}/api/v1/uploads/{begun['id']}?offset={at['offset']}",
                content=file.read(begun["piece_bytes"]),
                headers={
                    "Authorization": f"Bearer {stack.token}",
                    "Content-Type": "application/octet-stream",
                },
            )
            assert answer.status_code == 200, answer.text
            at = answer.json()
    return str(at["sha256"])


def test_weights_from_disk_change_the_answer_and_the_return_restores_it(stack, models) -> None:
    do(stack, "update_weights_from_disk", model_path=str(models / "one"), mode="retract")
    before = generate(stack)
    found = stack.api("GET", "/engines/local/checkpoints").json()
    assert {one["name"] for one in found["checkpoints"]} >= {"one", "two"}
    plan = {
        "engine": "local",
        "kind": "update_weights_from_disk",
        "params": {"model_path": str(models / "two")},
    }
    dry = stack.api("POST", "/jobs?dry_run=true", json=plan).json()
    assert dry["would_be_accepted"], dry["refusals"]
    assert dry["checkpoint"]["num_tensors"] > 0
    there = do(
        stack,
        "update_weights_from_disk",
        model_path=str(models / "two"),
        weight_version="two",
        mode="retract",
    )
    assert there["state"] == "succeeded", there["error"]
    assert there["reply"]["pause_s"] is not None
    assert all(rank["staging"]["total_bytes"] > 10**7 for rank in there["ranks"])
    assert all(rank["effect_s"] is not None for rank in there["ranks"])
    assert generate(stack) != before
    old = there["reply"]["weights_before"]
    back = do(
        stack,
        "update_weights_from_disk",
        model_path=old["path"],
        weight_version=old["version"],
        expected_checksum=old["checksum"],
    )
    assert back["state"] == "succeeded", back["error"]
    assert back["reply"]["weights"]["checksum"] == old["checksum"]
    assert generate(stack) == before


@pytest.mark.slow  # each half of it is a test of its own side
def test_uploaded_files_are_served(stack, models) -> None:
    before = generate(stack)
    (file,) = (models / "two").glob("*.safetensors")
    sha = upload(stack, file)
    job = do(stack, "update_weights_from_tensor", uploads=[sha], weight_version="files")
    assert job["state"] == "succeeded", job["error"]
    assert job["sent_bytes"] == job["total_bytes"] == file.stat().st_size
    assert generate(stack) != before
    bad = do(stack, "update_weights_from_disk", model_path="/etc")
    assert bad["state"] == "failed"


def test_a_pause_is_seen_and_ended(stack) -> None:
    assert do(stack, "pause_generation", pause_mode="in_place")["state"] == "succeeded"
    # The engine tells its state by itself, soon after the end of an operation.
    wait_until(lambda: stack.api("GET", "/engines/local").json()["paused"] == "in_place")
    assert do(stack, "continue_generation")["state"] == "succeeded"
    assert do(stack, "update_weight_version", new_version="named")["state"] == "succeeded"
    assert do(stack, "repair")["state"] == "succeeded"
    assert do(stack, "abort_requests", abort_all=True)["state"] == "succeeded"
    assert generate(stack)
