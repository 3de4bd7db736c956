"""Storage backends over HTTP, on two real ranks: SGLang's contract, and where it is kept better."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.process.storage_client import (
    ADMIN,
    PROMPT,
    ROUTE,
    attach,
    clear,
    detach,
    flush,
    generate,
    status,
    tiers,
    until_idle,
)
from tests.engine.weights.checkpoints import write
from tests.fakes.engine_process import EngineProcess
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """Two checkpoints of one shape."""
    root = tmp_path_factory.mktemp("storage") / "models"
    root.mkdir()
    for seed, name in enumerate(("base", "other")):
        write(root / name, seed, smollm2_dir)
    return root


@pytest.fixture(scope="module")
def engine(models: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(models / "base", cpu_ext_dir)
    engine.command.append("--enable-hierarchical-cache")
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture(autouse=True)
def nothing_attached(engine: EngineProcess) -> None:
    engine.until_serving()
    until_idle(engine)
    assert detach(engine).status_code == 200
    flush(engine)


def test_sglang_attach_detach_contract(engine: EngineProcess) -> None:
    """test_hicache_storage_runtime_attach_detach.py, as sglang-contract.md § 8 describes it."""
    for call in (engine.client.get, engine.client.delete):
        assert call(ROUTE).status_code == 401
    body = {"hicache_storage_backend": "file"}
    assert engine.client.put(ROUTE, json=body).status_code == 401
    config = '{"hicache_storage_pass_prefix_keys": true,  "prefetch_threshold": 64}'
    done = attach(engine, "file", config, hicache_storage_prefetch_policy="timeout")
    assert (done.status_code, done.text) == (
        200,
        "HiCache storage backend attached.\nAttached HiCache storage backend successfully.\n",
    )
    found = status(engine)
    assert found["hicache_storage_backend"] == "file"
    assert found["hicache_storage_backend_extra_config"] == config  # byte for byte
    again = attach(
        engine,
        "file",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_write_policy="write_through_selective",
    )
    assert again.text == (
        "HiCache storage backend attached.\n"
        "HiCache storage backend already enabled with same backend; policies updated.\n"
    )
    found = status(engine)
    assert found["hicache_storage_prefetch_policy"] == "wait_complete"
    assert found["hicache_write_policy"] == "write_through_selective"
    assert found["hicache_storage_backend_extra_config"] == config
    other = attach(engine, "nixl", "{}")
    assert other.status_code == 400
    assert "already enabled with backend 'file'. Cannot attach different" in other.text
    for _ in range(2):
        gone = detach(engine)
        assert (gone.status_code, gone.text) == (
            200,
            "HiCache storage backend detached.\nDetached HiCache storage backend successfully.\n",
        )
        found = status(engine)
        assert found["hicache_storage_backend"] is None
        assert found["hicache_storage_backend_extra_config"] is None
        assert found["hicache_storage_prefetch_policy"] == "wait_complete"
    assert attach(engine, "file", hicache_write_policy="write_through").status_code == 200


def test_without_an_admin_key_every_route_is_400(
    models: Path, cpu_ext_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fakes.engine_process.ADMIN_KEY", "")
    engine = EngineProcess(models / "base", cpu_ext_dir, dp_size=1)
    try:
        engine.start()
        body = {"hicache_storage_backend": "file"}
        for method, path in (
            ("GET", ROUTE),
            ("PUT", ROUTE),
            ("DELETE", ROUTE),
            ("POST", f"{ROUTE}/clear"),
        ):
            answer = engine.client.request(method, path, json=body if method == "PUT" else None)
            assert answer.status_code == 400, (method, path, answer.text)
            assert "requires admin API key" in answer.json()["error"]
    finally:
        engine.stop()


def test_detach_keeps_the_data_and_clear_deletes_it(engine: EngineProcess) -> None:  # H19
    config = {"prefetch_threshold": 16, "file_storage_path": str(engine.dir / "h19")}
    attach(engine, "file", config)
    first = generate(engine)
    until_idle(engine)
    foreign = engine.dir / "h19" / "of-another-model.seg"
    foreign.write_bytes(b"theirs")
    detach(engine)
    files = sorted((engine.dir / "h19").rglob("*.seg"))
    assert sum(file.stat().st_size for file in files) > 600 * 1000
    refused = clear(engine)
    assert refused.status_code == 400 and "no storage backend is attached" in refused.text
    assert sorted((engine.dir / "h19").rglob("*.seg")) == files
    attach(engine, "file", config)
    flush(engine)
    again = generate(engine)
    assert again["output_ids"] == first["output_ids"]
    assert tiers(again) == (0, 0, 592)
    until_idle(engine)
    cleared = clear(engine)
    assert (cleared.status_code, cleared.text) == (
        200,
        "Hierarchical cache storage backend cleared.\n",
    )
    flush(engine)
    third = generate(engine)
    assert third["output_ids"] == first["output_ids"] and tiers(third) == (0, 0, 0)
    assert foreign.read_bytes() == b"theirs"


MALFORMED: list[tuple[str, str]] = [
    ("{", "extra_config is no valid JSON"),
    ("[]", "must be a JSON object"),
    ("1", "must be a JSON object"),
    ('"x"', "must be a JSON object"),
    ('{"prefetch_threshold":"abc"}', "prefetch_threshold"),
    ('{"prefetch_threshold":-1}', "prefetch_threshold"),
    ('{"prefetch_timeout_base":NaN}', "prefetch_timeout_base"),
    ('{"a":"' + "x" * 5_000_000 + '"}', "hicache_storage_backend_extra_config_json"),
    ('{"a":' * 2000 + "1" + "}" * 2000, "nested too deeply"),
    ('{"max_size":70000,"max_size":80000}', "duplicate key 'max_size'"),
    ('{"xyz_tok":"canary-7f1e"}', "'xyz_tok' is no setting of file"),
    ('{"file_storage_path":"../../etc"}', "file_storage_path"),
    ('{"file_storage_path":"/etc"}', "file_storage_path"),
    ('{"direct_io":"canary-7f1e"}', "direct_io"),
    ("@/etc/hostname", "extra_config is no valid JSON"),
]


@pytest.mark.parametrize(("text", "named"), MALFORMED, ids=[named for _, named in MALFORMED])
def test_a_bad_config_is_refused_by_name_before_anything_happens(
    engine: EngineProcess, text: str, named: str
) -> None:  # H15
    before = _threads(engine), sorted(engine.dir.rglob("*.seg"))
    answer = attach(engine, "file", text)
    assert answer.status_code == 400, answer.text[:300]
    assert named in answer.text and "canary" not in answer.text
    assert status(engine)["hicache_storage_backend"] is None
    assert (_threads(engine), sorted(engine.dir.rglob("*.seg"))) == before
    assert "canary" not in engine.log()


def _threads(engine: EngineProcess) -> list[int]:
    pids = [engine.pids(f"rank {rank}")[-1] for rank in (0, 1)]
    return [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids]


@pytest.mark.parametrize("text", ["", "null", "  ", "{}"])
def test_no_config_is_no_config(engine: EngineProcess, text: str) -> None:  # H15
    assert attach(engine, "file", text).status_code == 200
    assert status(engine)["hicache_storage_backend"] == "file"


def test_a_changed_config_is_refused_and_not_swallowed(engine: EngineProcess) -> None:
    config = json.dumps({"prefetch_threshold": 64})
    attach(engine, "file", config)
    for changed in ('{"prefetch_threshold":100000}', "{nope"):
        assert attach(engine, "file", changed).status_code == 400
        assert status(engine)["hicache_storage_backend_extra_config"] == config
    assert attach(engine, "file", '{"prefetch_threshold":64}').status_code == 200  # the same
    assert status(engine)["hicache_storage_backend_extra_config"] == config
    replaced = attach(engine, "file", '{"prefetch_threshold":128}', replace=True)
    assert replaced.status_code == 200, replaced.text
    assert status(engine)["hicache_storage_backend_extra_config"] == '{"prefetch_threshold":128}'


def test_many_refused_attaches_leave_the_settings_in_use(engine: EngineProcess) -> None:
    config = {"prefetch_threshold": 64}
    attach(engine, "file", config)
    for index in range(300):
        other = attach(engine, "file", {"prefetch_threshold": 65, "max_size": 70_000 + index})
        assert other.status_code == 400
    _kill_rank(engine, 1)
    found = status(engine)
    assert [rank["attached"] for rank in found["ranks"]] == [True, True] and not found["drift"]


def test_folders_of_the_engine_are_no_place_for_pages(engine: EngineProcess) -> None:
    for name in ("storage-settings/configs", "storage-settings", "run", "weights"):
        answer = attach(engine, "file", {"file_storage_path": str(engine.dir / name)})
        assert answer.status_code == 400 and "engine's own" in answer.text, answer.text


def test_what_is_no_file_is_no_segment(engine: EngineProcess) -> None:
    folder = engine.dir / "fifos"
    config = {"prefetch_threshold": 16, "file_storage_path": str(folder)}
    attach(engine, "file", config)
    first = generate(engine)
    until_idle(engine)
    detach(engine)
    for rank in folder.glob("*/rank-*"):
        os.mkfifo(rank / "0000009999-deadbeef.seg")
        (rank / "0000009998-deadbeef.seg").mkdir()
    done = attach(engine, "file", config)
    assert done.status_code == 200, done.text
    flush(engine)
    again = generate(engine)
    assert again["output_ids"] == first["output_ids"] and tiers(again)[2] == 592


def test_a_busy_engine_refuses_and_nothing_changes(engine: EngineProcess) -> None:  # H01
    quiet = [generate(engine, [7, 8, index], 200)["output_ids"] for index in range(4)]
    until_idle(engine)
    flush(engine)
    before = _threads(engine), sorted(engine.dir.rglob("*.seg")), status(engine)
    outputs: dict[int, list[int]] = {}

    def stream(index: int) -> None:
        outputs[index] = generate(engine, [7, 8, index], 200)["output_ids"]

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    _until_running(engine)
    for _ in range(4):
        for verb, answer in (
            ("attach", attach(engine, "file", timeout=0)),
            ("detach", detach(engine, timeout=0)),
        ):
            assert answer.status_code == 400, answer.text
            assert re.search(
                rf"Reject {verb}: scheduler is not idle\. #queue-req=\d+ #running-req=\d+",
                answer.text,
            )
    after = status(engine)
    assert after["hicache_storage_backend"] is None
    assert [r["attached"] for r in after["ranks"]] == [r["attached"] for r in before[2]["ranks"]]
    assert (_threads(engine), sorted(engine.dir.rglob("*.seg"))) == before[:2]
    for thread in threads:
        thread.join()
    assert [outputs[index] for index in range(4)] == quiet
    until_idle(engine)
    assert attach(engine, "file").status_code == 200


def _until_running(engine: EngineProcess) -> None:
    def is_running() -> bool:
        return all(load["num_running_reqs"] > 0 for load in engine.loads())

    wait_until(is_running)


def test_one_rank_that_cannot_attach_leaves_both_as_they_were(engine: EngineProcess) -> None:  # H02
    folder = engine.dir / "h02"
    config = {"prefetch_threshold": 16, "file_storage_path": str(folder / "shared")}
    folder.mkdir()
    blocked = folder / "blocked"
    blocked.write_text("a file stands where rank 1's folder would be")
    override = {"1": {"file_storage_path": str(blocked)}}
    refused = attach(engine, "file", config, rank_configs=override)
    assert refused.status_code == 400
    assert "rank 1: " in refused.text and "file_storage_path" in refused.text
    found = status(engine)
    assert found["hicache_storage_backend"] is None and not found["drift"]
    assert [rank["attached"] for rank in found["ranks"]] == [False, False]
    both = attach(engine, "file", {**config, "file_storage_path": str(blocked)})
    assert both.status_code == 400 and "rank 0: " in both.text and "rank 1: " in both.text
    for index in range(5):
        for rank in (0, 1):
            generate(engine, [50 + index, *range(100)], routed_dp_rank=rank)
    for _ in range(2):
        assert detach(engine).status_code == 200
    blocked.unlink()
    assert attach(engine, "file", config, rank_configs=override).status_code == 200
    found = status(engine)
    assert [rank["attached"] for rank in found["ranks"]] == [True, True]
    assert found["ranks"][0]["config_hash"] != found["ranks"][1]["config_hash"]
    assert not found["drift"]  # an override is meant


def test_old_pages_are_not_found_for_new_weights_and_again_for_the_old(
    engine: EngineProcess, models: Path
) -> None:  # W02
    attach(engine, "file", {"prefetch_threshold": 16})
    first = generate(engine)
    until_idle(engine)

    def update(path: Path, **more: Any) -> None:
        body = {"model_path": str(path), "timeout": 120, **more}
        answer = engine.client.post("/update_weights_from_disk", headers=ADMIN, json=body)
        assert answer.status_code == 200, answer.text

    update(models / "other")
    flush(engine)
    cold = generate(engine)
    assert tiers(cold) == (0, 0, 0)
    until_idle(engine)
    flush(engine)
    warm = generate(engine)
    assert tiers(warm) == (0, 0, 592) and warm["output_ids"] == cold["output_ids"]
    until_idle(engine)
    update(models / "base", flush_cache=False)
    back = generate(engine)
    assert back["output_ids"] == first["output_ids"]
    assert tiers(back)[2] == 592 and tiers(back)[0] == 0


def test_a_flush_right_after_a_reply_says_what_is_busy_or_is_done(
    engine: EngineProcess,
) -> None:  # F01
    attach(engine, "file", {"prefetch_threshold": 16})
    for index in range(20):
        ids = [index, *PROMPT[:300]]
        generate(engine, ids, 4)
        at_once = engine.client.post("/flush_cache", headers=ADMIN)
        assert at_once.status_code in (200, 400)
        if at_once.status_code == 400:
            assert re.search(r"l1_backup=[1-9]|l3_backup=[1-9]", at_once.text), at_once.text
            assert tiers(generate(engine, ids, 1))[0] > 0  # nothing was dropped
        assert (
            engine.client.post("/flush_cache", headers=ADMIN, params={"timeout": 120}).status_code
            == 200
        )
        again = generate(engine, ids, 1)
        assert tiers(again)[:2] == (0, 0)


def test_a_forced_detach_needs_no_idle_engine(engine: EngineProcess) -> None:
    attach(engine, "file", {"prefetch_threshold": 16})
    quiet = generate(engine, [9, 9, 9], 300)["output_ids"]
    until_idle(engine)
    outputs: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: outputs.append(generate(engine, [9, 9, 9], 300)["output_ids"])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    _until_running(engine)
    assert detach(engine, timeout=0).status_code == 400
    forced = detach(engine, timeout=0, force="true")
    assert forced.status_code == 200, forced.text
    assert [rank["attached"] for rank in status(engine)["ranks"]] == [False, False]
    for thread in threads:
        thread.join()
    assert outputs == [quiet] * 4


def test_secrets_are_neither_shown_nor_written_where_they_may_be_read(
    engine: EngineProcess,
) -> None:
    from engine.frontend.http_server import ROUTES

    secret = "canary-" + os.urandom(8).hex()
    config = {"url": "valkey://127.0.0.1:1", "password": secret}
    answer = attach(engine, "valkey", config)
    assert answer.status_code == 400 and "127.0.0.1:1" in answer.text
    shown = [answer.text, json.dumps(status(engine)), engine.log()]
    for path, _, methods, _ in ROUTES:  # S01: also of a backend's settings
        if "GET" in methods:
            named = re.sub(r"\{[^}]*\}", "x", path)
            for headers in (ADMIN, {}):
                told = engine.client.get(named, headers=headers)
                shown += [told.text, str(told.headers)]
    shown.append((engine.dir / "journal").read_bytes().decode("latin-1"))
    assert not any(secret in text for text in shown)
    holders = [p for p in engine.dir.rglob("*") if p.is_file() and secret.encode() in _read(p)]
    assert [path.parent.name for path in holders] == ["configs"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in holders)
    url = attach(engine, "valkey", {"url": f"valkey://user:{secret}@127.0.0.1:1"})
    assert url.status_code == 400 and secret not in url.text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_endpoints_and_names_outside_the_lists_are_refused(engine: EngineProcess) -> None:
    far = attach(engine, "valkey", {"url": "valkey://10.9.8.7:6379"})
    assert far.status_code == 400 and "not an allowed storage endpoint" in far.text
    for name in ("dynamic", "sim", "os.path", ""):
        answer = attach(engine, name, {"module_path": "os", "class_name": "system"})
        assert answer.status_code == 400, answer.text
    body = engine.client.put(ROUTE, headers=ADMIN, content=b"{")
    assert body.status_code == 400


def _kill_rank(engine: EngineProcess, rank: int) -> None:
    """And wait for the next one to serve."""
    before = status(engine)["ranks"][rank]["incarnation"]
    engine.kill(f"rank {rank}")

    def is_back() -> bool:
        found = status(engine)["ranks"][rank]
        return bool(found["incarnation"] != before and found["proven"] and found["online"])

    wait_until(is_back)


def test_a_rank_that_dies_comes_back_with_its_backend(engine: EngineProcess) -> None:
    attach(engine, "file", {"prefetch_threshold": 16})
    first = generate(engine, routed_dp_rank=1)
    until_idle(engine)
    _kill_rank(engine, 1)
    found = status(engine)
    assert [rank["attached"] for rank in found["ranks"]] == [True, True]
    again = generate(engine, routed_dp_rank=1)
    assert tiers(again) == (0, 0, 592) and again["output_ids"] == first["output_ids"]


def test_the_engine_comes_back_with_its_backend(engine: EngineProcess) -> None:
    config = json.dumps({"prefetch_threshold": 16})
    attach(engine, "file", config, hicache_storage_prefetch_policy="wait_complete")
    first = generate(engine)
    until_idle(engine)
    engine.restart()
    found = status(engine)
    assert found["hicache_storage_backend_extra_config"] == config
    assert found["hicache_storage_prefetch_policy"] == "wait_complete"
    assert [rank["attached"] for rank in found["ranks"]] == [True, True]
    again = generate(engine)
    assert tiers(again)[2] == 592 and again["output_ids"] == first["output_ids"]


def test_a_backend_that_is_gone_costs_hits_and_no_answer(engine: EngineProcess) -> None:
    folder = engine.dir / "gone"
    attach(engine, "file", {"prefetch_threshold": 16, "file_storage_path": str(folder)})
    first = generate(engine, routed_dp_rank=1)
    until_idle(engine)
    folder.rename(engine.dir / "moved")
    folder.write_text("not a folder")
    _kill_rank(engine, 1)
    found = status(engine)
    assert [rank["attached"] for rank in found["ranks"]] == [True, False]
    assert found["drift"] and found["ranks"][1]["health"] == "open"
    assert found["ranks"][1]["storage"]["last_error"]
    again = generate(engine, routed_dp_rank=1)
    assert again["output_ids"] == first["output_ids"] and tiers(again) == (0, 0, 0)
    folder.unlink()
    (engine.dir / "moved").rename(folder)
    wait_until(lambda: not status(engine)["drift"])
    flush(engine)
    back = generate(engine, routed_dp_rank=1)
    assert back["output_ids"] == first["output_ids"] and tiers(back)[2] == 592


def test_prompt_ids_are_the_ones_the_tests_mean() -> None:
    assert len(PROMPT) == 600 and len(set(PROMPT)) == 600
