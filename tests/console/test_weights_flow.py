"""Weight jobs through the real processes: staged, swapped, partial, unknown; files beside them."""

from __future__ import annotations

import json
import time

import pytest

from engine.protocol import ErrorCode, Outcome, PauseMode, UpdateWeightsFromDisk, Upload
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

DISK = {"kind": "update_weights_from_disk", "model_path": "/srv/models/v2"}


@pytest.fixture
def restarted_worker(stack):
    """The worker is there again after the test."""
    yield
    if "worker" not in stack.parts:
        stack.start("worker")


def big_file(size_bytes: int, fill: bytes = b"\x00") -> bytes:
    tensors = {"w": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + fill * size_bytes


def outcome_of(stack, job_id: str) -> dict:
    items = stack.request("GET", "/audit", params={"job": job_id}).json()["items"]
    return next(one["body"] for one in items if one["stage"] == "outcome")


def test_weights_from_disk_are_staged_then_served_and_the_audit_says_from_what_to_what(
    stack, stack_engine
):
    stack_engine.weights.stage_s = 600
    job_id = stack.submit(stack_engine, **DISK, timeout_s=300, mode="retract")
    job = stack.until(job_id, phase="preparing", state="dispatched")
    assert job["deadline_at"] is None
    wait_until(lambda: (stack.job(job_id)["ranks"][0]["staging"] or {}).get("done_bytes"))
    stack_engine.weights.stage_s = 0
    job = stack.ended(job_id)
    assert job["state"] == "succeeded"
    (submit,) = stack_engine.submits(job_id)
    assert submit.operation == UpdateWeightsFromDisk(model_path="/srv/models/v2")
    assert submit.timeout_s == 300
    assert submit.start_by_clock_s - stack_engine.clock_s > 600
    assert [rank["staging"]["what"] for rank in job["ranks"]] == ["ready", "ready"]
    assert job["reply"]["weights"]["version"] == "v2"
    ranks = outcome_of(stack, job_id)["ranks"]
    assert [one["weights_before"]["version"] for one in ranks] == ["v1", "v1"]
    assert [one["weights_after"]["version"] for one in ranks] == ["v2", "v2"]
    assert "path" not in ranks[0]["weights_after"]
    wait_until(lambda: stack.engine(stack_engine.name)["weights"]["version"] == "v2")


def test_the_deadline_begins_when_the_weights_are_staged(stack, stack_engine):
    stack_engine.weights.stage_s = 600
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, **DISK, timeout_s=1)
    stack.until(job_id, phase="preparing", state="dispatched")
    time.sleep(1.5)
    assert stack.job(job_id)["deadline_at"] is None  # longer than the timeout, and not ended
    stack_engine.weights.stage_s = 0
    job = stack.ended(job_id)
    assert job["state"] == "expired" and job["deadline_at"]
    reply = job["reply"]
    assert reply["staged_s"] >= 1.5
    assert reply["finished_clock_s"] - reply["started_clock_s"] >= reply["staged_s"] + 1
    after = [one["weights_after"]["version"] for one in outcome_of(stack, job_id)["ranks"]]
    assert after == ["v1", "v1"]


def test_a_partial_update_names_what_each_rank_serves(stack, stack_engine):
    stack_engine.fail_ranks = {1}
    job = stack.ended(stack.submit(stack_engine, **DISK, timeout_s=300))
    assert job["state"] == "partial"
    ranks = outcome_of(stack, job["id"])["ranks"]
    assert [one["weights_after"]["version"] for one in ranks] == ["v2", "v1"]
    refused = stack.ended(stack.submit(stack_engine, timeout_s=300))
    assert (refused["state"], refused["error"]["code"]) == ("failed", "rank_not_ready")
    stack_engine.fail_ranks = set()
    repaired = stack.ended(stack.submit(stack_engine, kind="repair"))
    assert repaired["state"] == "succeeded"
    wait_until(lambda: all(r["proven"] for r in stack.engine(stack_engine.name)["ranks"]))


def test_a_refusal_while_staging_leaves_the_old_weights(stack, stack_engine):
    stack_engine.weights.refuse_staging = "rank 1: tensor w has another shape"
    job = stack.ended(stack.submit(stack_engine, **DISK, timeout_s=300))
    assert (job["state"], job["error"]["message"]) == (
        "failed",
        "rank 1: tensor w has another shape",
    )
    assert stack_engine.journal.effects == []


def test_a_staging_job_is_cancelled_extended_and_forced_like_a_flush(stack, stack_engine):
    stack_engine.busy(1)
    job_id = stack.submit(stack_engine, **DISK, timeout_s=300)
    stack.until(job_id, phase="waiting for idle")
    assert stack.request("POST", f"/jobs/{job_id}/extend", json={"by_s": 30}).status_code == 200
    assert stack.request("POST", f"/jobs/{job_id}/force").json()["mode"] == "drain"
    stack.request("POST", f"/jobs/{job_id}/cancel")
    assert stack.ended(job_id)["state"] == "cancelled"
    assert stack_engine.weights.version == "v1"


def test_a_lost_answer_and_a_killed_worker_end_with_the_truth(
    stack, stack_engine, restarted_worker
):
    stack_engine.drop_answers = True
    job = stack.ended(stack.submit(stack_engine, **DISK, timeout_s=300))
    assert (job["state"], len(stack_engine.submits(job["id"]))) == ("succeeded", 1)
    stack_engine.drop_answers = False
    stack_engine.busy(1)
    back = stack.submit(stack_engine, **{**DISK, "model_path": "/srv/models/v1"}, timeout_s=300)
    stack.until(back, phase="waiting for idle")
    stack.kill("worker")
    stack.start("worker")
    stack.until(back, state="reconciling", phase="unknown")
    stack_engine.idle()
    assert stack.ended(back)["state"] == "succeeded"
    assert stack_engine.journal.effects == [job["id"], back]
    assert outcome_of(stack, back)["ranks"][0]["weights_after"]["version"] == "v1"


def test_an_engine_that_never_got_it_seals_it_and_one_that_restarts_says_so(stack, stack_engine):
    stack_engine.drop_submits = True
    job = stack.ended(stack.submit(stack_engine, **DISK, timeout_s=10))
    assert (job["state"], job["error"]["code"]) == ("failed", "never_ran")
    stack_engine.drop_submits = False
    stack_engine.weights.stage_s = 30
    staged = stack.submit(stack_engine, **DISK, timeout_s=10)
    stack.until(staged, phase="preparing", state="dispatched")
    stack_engine.restart(outcome=Outcome.FAILED)
    assert stack.ended(staged)["state"] == "failed"


def test_an_engine_that_is_away_is_told_within_the_dispatch_window(stack, stack_engine):
    stack_engine.stop()
    job_id = stack.submit(stack_engine, **DISK, timeout_s=5)
    key = job_id.replace("-", "")
    stack.sql("UPDATE console_job SET dispatch_by = created_at WHERE id = ?", key)
    job = stack.ended(job_id)
    assert job["state"] == "expired"
    assert stack_engine.submits(job_id) == []


def test_files_go_to_the_engine_before_the_job(stack, stack_engine):
    content = big_file(3 << 20, b"\x07")
    sha = stack.upload(content, "seven.safetensors")
    job_id = stack.submit(
        stack_engine, kind="update_weights_from_tensor", uploads=[sha], weight_version="seven"
    )
    job = stack.ended(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert (job["sent_bytes"], job["total_bytes"]) == (len(content), len(content))
    assert bytes(stack_engine.weights.uploads[job_id]["seven.safetensors"]) == content
    assert stack_engine.weights.version == "seven"


def test_a_worker_that_dies_while_it_brings_files_is_gone_on_from(
    stack, stack_engine, restarted_worker
):
    content = big_file(6 << 20, b"\x08")
    sha = stack.upload(content, "eight.safetensors")
    stack_engine.weights.hold_after_pieces = 5
    job_id = stack.submit(stack_engine, kind="update_weights_from_tensor", uploads=[sha])
    wait_until(lambda: stack_engine.weights.num_pieces >= 5)
    assert stack.job(job_id)["state"] == "claimed"
    stack.kill("worker")
    stack_engine.weights.hold_after_pieces = None
    stack.start("worker")
    job = stack.ended(job_id)
    assert job["state"] == "succeeded", job["error"]
    assert bytes(stack_engine.weights.uploads[job_id]["eight.safetensors"]) == content
    offsets = [got.command.offset for got in stack_engine.commands(Upload)]
    assert offsets.count(0) == 2  # asked once more where to go on; the rest came once
    assert len(offsets) <= 16
    assert len(stack_engine.submits(job_id)) == 1


def test_a_missing_or_refused_file_fails_the_job_with_nothing_submitted(stack, stack_engine):
    gone = stack.upload(big_file(100, b"\x01"), "gone.safetensors")
    stack_engine.busy(1)
    first = stack.submit(stack_engine, timeout_s=300)
    stack.until(first, phase="waiting for idle")
    queued = stack.submit(
        stack_engine,
        kind="update_weights_from_tensor",
        uploads=[gone],
        on_conflict="queue",
    )
    (stack.dir / "uploads" / f"{gone}.safetensors").unlink()
    stack_engine.idle()
    job = stack.ended(queued)
    assert (job["state"], job["error"]["code"]) == ("failed", "upload_missing")
    assert "nothing was submitted" in job["error"]["message"]
    assert stack_engine.submits(queued) == []
    stack_engine.weights.refuse_upload = True
    sha = stack.upload(big_file(100, b"\x02"), "no.safetensors")
    job = stack.ended(stack.submit(stack_engine, kind="update_weights_from_tensor", uploads=[sha]))
    assert (job["state"], job["error"]["code"]) == ("failed", str(ErrorCode.INVALID_ARGUMENT))
    assert stack_engine.commands(Upload)[-1].command.name == "no.safetensors"


def test_an_abort_ends_what_a_waiting_job_waits_for(stack, stack_engine):
    stack_engine.busy(2)
    waiting = stack.submit(stack_engine, **DISK, timeout_s=300)
    stack.until(waiting, phase="waiting for idle")
    abort = stack.ended(stack.submit(stack_engine, kind="abort_requests", abort_all=True))
    assert abort["state"] == "succeeded"
    assert [rank["interrupted"] for rank in abort["ranks"]] == [2, 2]
    assert stack.ended(waiting)["state"] == "succeeded"


def test_pause_release_and_resume_are_seen_on_the_engine(stack, stack_engine):
    def done(kind, **params):
        job = stack.ended(stack.submit(stack_engine, kind=kind, **params))
        assert job["state"] == "succeeded", job["error"]

    def shows(**wanted):
        wait_until(lambda: stack.engine(stack_engine.name).items() >= wanted.items())

    done("pause_generation", pause_mode="in_place")
    assert stack_engine.weights.paused is PauseMode.IN_PLACE
    shows(paused="in_place")
    done("continue_generation")
    shows(paused=None)
    done("release_memory", tags=["weights"])
    shows(released=["weights"])
    done("resume_memory", tags=["weights"])
    shows(released=[], needs_weights=True)
    done("update_weights_from_disk", model_path="/srv/models/v2")
    shows(needs_weights=False)
