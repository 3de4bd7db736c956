"""Storage jobs of the console on a real engine of two ranks, with a real Valkey and real files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.supervised import Supervised
from tests.fakes.waiting import wait_until
from tests.system.storage_stack import (
    ATTACH,
    CLEAR,
    DETACH,
    POLICIES,
    SMALL,
    Store,
    ask,
    do,
    done,
    flush,
    from_storage,
    generate,
    make_bare,
    segments,
    undo,
    until_idle,
    valkey_store,
    view,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture
def bare(whole: Supervised) -> Iterator[Supervised]:
    """With nothing attached, and nothing stored; nothing is attached afterwards either."""
    make_bare(whole)
    yield whole
    done(whole, DETACH)
    flush(whole)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with valkey_store(tmp_path_factory.mktemp("store")) as made:
        yield made


def held(stack: Supervised) -> list[str | None]:
    """What each rank says that it has."""
    ranks = view(stack)["ranks"]
    return [rank["storage"] and rank["storage"]["config_id"] for rank in ranks]


def until_held(stack: Supervised, job: dict[str, Any]) -> None:
    """Until the console's snapshot says of both ranks what a job left."""
    now = job["reply"]["storage"]
    wait_until(lambda: held(stack) == [now and now["config_id"]] * 2)


def test_attach_policies_detach_and_clear(bare: Supervised) -> None:
    attached = done(bare, ATTACH, backend="file", config=SMALL, prefetch_policy="wait_complete")
    now = attached["reply"]["storage"]
    assert attached["reply"]["storage_before"] is None
    assert attached["reply"]["staged_s"] > 0
    first = generate(bare)
    assert from_storage(first) == 0
    flush(bare)
    again = generate(bare)
    assert from_storage(again) == 592 and again["text"] == first["text"]

    same = done(bare, ATTACH, backend="file", write_policy="write_through_selective")
    assert same["reply"]["storage"] == same["reply"]["storage_before"] == now
    assert same["reply"]["policies"] == {
        "prefetch_policy": "wait_complete",
        "write_policy": "write_through_selective",
    }
    other = do(bare, ATTACH, backend="file", config={})
    assert other["state"] == "failed" and "other settings" in other["error"]["message"]
    done(bare, POLICIES, write_policy="write_through")
    wait_until(lambda: view(bare)["policies"]["write_policy"] == "write_through")

    until_idle(bare)
    files = segments(bare)
    assert files
    gone = done(bare, DETACH)
    assert gone["reply"]["storage"] is None and segments(bare) == files
    refused = do(bare, CLEAR)
    assert refused["error"]["message"] == "no storage backend is attached"
    assert segments(bare) == files
    flush(bare)
    assert from_storage(generate(bare)) == 0
    assert undo(bare, gone)["reply"]["storage"] == now
    flush(bare)
    assert from_storage(generate(bare)) == 592
    until_idle(bare)
    assert done(bare, CLEAR)["reply"]["storage"] == now
    flush(bare)
    assert from_storage(generate(bare)) == 0


def test_a_rank_that_cannot_attach_leaves_all_as_they_were(bare: Supervised) -> None:  # H02
    blocked = bare.dir / "blocked"
    blocked.write_text("a file stands where rank 1's folder would be")
    ranks = {"1": {"file_storage_path": str(blocked)}}
    for before in (None, "file"):
        if before is not None:
            until_held(bare, done(bare, ATTACH, backend=before, config=SMALL))
        job = do(bare, ATTACH, backend="file", rank_configs=ranks, config={}, replace=True)
        assert (job["state"], job["error"]["code"]) == ("failed", "failed")
        why = "file_storage_path cannot be made: File exists"
        assert [(rank["state"], rank["message"]) for rank in job["ranks"]] == [
            ("not_started", "nothing changed"),
            ("failed", why),
        ]
        assert job["error"]["message"].count(why) == 1
        assert job["reply"]["storage"] == job["reply"]["storage_before"]
        until_held(bare, job)
    both = do(
        bare, ATTACH, backend="file", config={"file_storage_path": str(blocked)}, replace=True
    )
    assert [rank["state"] for rank in both["ranks"]] == ["failed", "failed"]
    assert "rank 0: " in both["error"]["message"] and "rank 1: " in both["error"]["message"]
    for index in range(3):
        for rank in (0, 1):
            generate(bare, [50 + index, *range(100)], routed_dp_rank=rank)
    done(bare, DETACH)
    again = done(bare, DETACH)
    assert again["reply"]["storage_before"] is None
    blocked.unlink()
    last = done(bare, ATTACH, backend="file", rank_configs=ranks, config=SMALL)
    assert last["reply"]["storage"]["rank_configs"].keys() == {"1"}
    until_held(bare, last)
    hashes = [rank["storage"]["config_hash"] for rank in view(bare)["ranks"]]
    assert hashes[0] != hashes[1]
    assert not any(rank["storage"]["drifts"] for rank in view(bare)["ranks"])  # it is meant


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"prefetch_threshold": -1}, "config.prefetch_threshold"),
    ({"max_size": "1"}, "config.max_size"),
    ({"xyz_tok": "canary-7f1e"}, "config.xyz_tok"),
    ({"direct_io": "canary-7f1e"}, "config.direct_io"),
]


def test_a_bad_setting_is_refused_before_there_is_a_job(bare: Supervised) -> None:  # H15
    for config, path in MALFORMED:
        answer = ask(bare, ATTACH, backend="file", config=config)
        assert answer.status_code == 422 and path in answer.text
        assert "canary" not in answer.text
    for path in ("../../etc", "/etc"):  # where files may be only the engine knows
        job = do(bare, ATTACH, backend="file", config={"file_storage_path": path})
        assert job["state"] == "failed"
        assert job["error"]["message"].startswith("file_storage_path ")
    assert held(bare) == [None, None]


def test_a_switch_is_one_job_and_is_undone_without_a_password(
    bare: Supervised, store: Store
) -> None:
    first = done(bare, ATTACH, backend="file", config=SMALL)
    text = generate(bare)["text"]
    until_idle(bare)
    refused = do(bare, ATTACH, backend="valkey", config=store.config)
    assert refused["state"] == "failed" and "'file'" in refused["error"]["message"]
    job = done(bare, ATTACH, backend="valkey", config=store.config, replace=True, mode="drain")
    assert job["reply"]["storage_before"] == first["reply"]["storage"]
    assert re.fullmatch("hmac:[0-9a-f]+", job["params"]["config"]["password"])
    flush(bare)
    assert generate(bare)["text"] == text
    flush(bare)
    again = generate(bare)
    assert from_storage(again) == 592 and again["text"] == text
    assert store.keys() > 30
    back = undo(bare, job)
    assert back["reply"]["storage"] == first["reply"]["storage"]
    assert back["params"]["config"] is None  # an id, no settings
    flush(bare)
    assert from_storage(generate(bare)) == 592
    to_valkey = undo(bare, back)  # and its password is the engine's to know
    assert to_valkey["reply"]["storage"] == job["reply"]["storage"]
    flush(bare)
    assert from_storage(generate(bare)) == 592
    until_idle(bare)
    done(bare, CLEAR)
    assert store.keys() == 0
