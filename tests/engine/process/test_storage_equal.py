"""Whatever keeps the pages, however they lie: the same answers as without any cache, and no page
lost on any tier. Each backend, layout and policy is in some engine below; the slow ones are the
whole table, and a soak."""

from __future__ import annotations

import importlib.util
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.cache.storage.bed import ServedBed
from tests.engine.cache.storage.beds_native import MooncakeBed, NixlObjectsBed
from tests.engine.cache.storage.beds_own import ValkeyBed
from tests.engine.cache.storage.beds_stand_ins import VENDORS
from tests.engine.process.storage_client import (
    ADMIN,
    attach,
    detach,
    flush,
    generate,
    status,
    until_idle,
)
from tests.engine.weights.checkpoints import write
from tests.fakes import plain_http
from tests.fakes.engine_process import EngineProcess
from tests.fakes.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.process

Answers = list[list[int]]
SOAK_S = float(os.environ.get("SOAK_S", "90"))


def prompts(count: int) -> Answers:
    """Mixed: long and short, with shared prefixes of every length, and some twice."""
    rng = random.Random(7)
    stems = [[rng.randrange(40_000) for _ in range(320)] for _ in range(6)]
    made: Answers = []
    for index in range(count):
        stem = rng.choice(stems)[: rng.choice([0, 3, 16, 17, 48, 100, 160, 256, 320])]
        own = [rng.randrange(40_000) for _ in range(rng.choice([1, 5, 16, 40]))]
        made.append(made[rng.randrange(index)] if index and rng.random() < 0.2 else [*stem, *own])
    return made


def new_tokens(index: int) -> int:
    return 1 + index % 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    return write(tmp_path_factory.mktemp("model") / "base", 0, smollm2_dir)


def started(model: Path, kernels: Path, *flags: str, hierarchical: bool = True) -> EngineProcess:
    dp_size = 2 if hierarchical else 1
    engine = EngineProcess(
        model, kernels, dp_size=dp_size, max_total_tokens=4096, context_length=1024
    )
    if hierarchical:
        engine.command += ["--enable-hierarchical-cache", "--hicache-ratio", "3", *flags]
    return engine.start()


def ask_all(engine: EngineProcess, asked: Answers, num_ranks: int | None = None) -> Answers:
    """Four at a time; with `num_ranks` each by the rank that it is asked by every time."""

    def ask(index: int) -> list[int]:
        rank = {} if num_ranks is None else {"routed_dp_rank": index % num_ranks}
        ids: list[int] = generate(engine, asked[index], new_tokens(index), **rank)["output_ids"]
        return ids

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(ask, range(len(asked))))


@pytest.fixture(scope="module")
def cacheless(model: Path, cpu_ext_dir: Path) -> Answers:
    """Of 200 prompts, one at a time, each with an empty cache."""
    return alone(model, cpu_ext_dir, 200)


@pytest.fixture(scope="module")
def some_cacheless(model: Path, cpu_ext_dir: Path) -> Answers:
    """Of the first 50."""
    return alone(model, cpu_ext_dir, 50)


def alone(model: Path, kernels: Path, count: int) -> Answers:
    engine = started(model, kernels, hierarchical=False)
    try:
        answers = []
        for index, prompt in enumerate(prompts(200)[:count]):
            answers.append(
                generate(engine, prompt, new_tokens(index), extra_key=f"own-{index}")["output_ids"]
            )
        return answers
    finally:
        engine.stop()


def check_equal(
    engine: EngineProcess, cacheless: Answers, count: int, storage: bool, is_local: bool = False
) -> None:
    """Asked cold, asked again, and asked from storage alone, which `is_local` where each rank finds
    its own pages only: without that, which rank is asked is whoever is free."""
    asked = prompts(200)[:count]
    num_ranks = len(status(engine)["ranks"]) if is_local else None
    for turn in range(3):
        assert ask_all(engine, asked, num_ranks) == cacheless[:count], f"turn {turn}"
        until_idle(engine)
        if turn == 1:
            flush(engine)
    if storage:
        ranks = [rank["storage"] for rank in status(engine)["ranks"]]
        counts = [{name: n for name, n in rank.items() if "pages" in name} for rank in ranks]
        assert sum(rank["hit_pages"] for rank in ranks) > count / 4, counts
        assert sum(rank["corrupt_pages"] for rank in ranks) == 0
    check_no_page_is_lost(engine)


def check_no_page_is_lost(engine: EngineProcess) -> None:
    """Idle and flushed, every page of both memory tiers is free; the account never failed."""
    until_idle(engine)
    flush(engine)

    def all_is_free() -> bool:
        """By the ranks' newest reports, which come a moment after their answers."""
        values = metrics(engine)
        return (
            values["sglang:kv_available_tokens"] == values["sglang:max_total_num_tokens"]
            and not any(values["sglang:hicache_host_used_tokens"])
            and not any(values["sglang:hicache_host_evictable_tokens"])
        )

    wait_until(all_is_free)
    assert not any(metrics(engine)["sglang:kv_account_violations_total"]), engine.log()[-3000:]


def metrics(engine: EngineProcess) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for line in engine.client.get("/metrics").text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name.partition("{")[0], []).append(
            0.0 if line.startswith("#") else float(value.split()[-1])
        )
    return values


@pytest.mark.parametrize(
    ("layout", "write_policy", "prefetch"),
    [("page_first", "write_through", "timeout"), ("layer_first", "write_back", "wait_complete")],
)
def test_files_give_the_answers_of_no_cache(
    model: Path,
    cpu_ext_dir: Path,
    some_cacheless: Answers,
    layout: str,
    write_policy: str,
    prefetch: str,
) -> None:
    engine = started(model, cpu_ext_dir, "--hicache-mem-layout", layout)
    policies = {
        "hicache_write_policy": write_policy,
        "hicache_storage_prefetch_policy": prefetch,
    }
    try:
        done = attach(engine, "file", {"prefetch_threshold": 16}, **policies)
        assert done.status_code == 200, done.text
        check_equal(engine, some_cacheless, 50, storage=write_policy != "write_back")
    finally:
        engine.stop()


# Every backend with a layout and two policies; all of each kind are somewhere.
TABLE = [
    ("file", {}, "page_first_direct", "write_through_selective", "best_effort"),
    ("file", {"direct_io": "off"}, "page_head", "write_through", "wait_complete"),
    ("valkey", {}, "layer_first", "write_through", "timeout"),
    ("valkey", {}, "page_head", "write_back", "wait_complete"),
    ("mooncake", {}, "page_first", "write_through", "wait_complete"),
    ("mooncake", {}, "page_first_direct", "write_through_selective", "timeout"),
    ("nixl", {"plugin": "POSIX"}, "page_first", "write_through", "wait_complete"),
    ("nixl", {"plugin": "OBJ"}, "page_head", "write_through", "timeout"),
    ("aibrix", {"l2_backend": "ROCKSDB"}, "page_first", "write_through", "wait_complete"),
    ("aibrix", {"l2_backend": "SHFS"}, "page_first_direct", "write_back", "timeout"),
    ("hf3fs", {}, "page_first", "write_through", "wait_complete"),
    ("eic", {}, "page_head", "write_through", "timeout"),
]
NEEDS = {"mooncake": "mooncake", "nixl": "nixl_cu12", "aibrix": "aibrix_kvcache"}


@pytest.fixture
def config_of(short_dir: Path) -> Iterator[Any]:
    """Settings of a backend, its server started."""
    with ExitStack() as stack:

        def served(kind: type[ServedBed]) -> ServedBed:
            bed = kind(short_dir)
            bed.start()
            stack.callback(bed.stop)
            return bed

        def make(backend: str, config: dict[str, Any], engine: EngineProcess) -> dict[str, Any]:
            if backend == "valkey":
                return config | {"url": f"valkey://127.0.0.1:{served(ValkeyBed).port}/0"}
            if backend == "mooncake":
                address = f"127.0.0.1:{served(MooncakeBed).port}"
                return config | {
                    "master_server_address": address,
                    "global_segment_size": 128 << 20,
                }
            if config.get("plugin") == "OBJ":
                bed = served(NixlObjectsBed)
                stack.callback(NixlObjectsBed.end)
                return config | {
                    "bucket": NixlObjectsBed.bucket,
                    "endpoint_override": f"http://127.0.0.1:{bed.port}",
                    "access_key": "access",
                    "secret_key": "secret-of-the-test",
                }
            if backend == "hf3fs":
                return config | {"file_path_prefix": str(engine.dir / "3fs" / "pages")}
            if backend == "eic":
                return config | {"remote_url": "eic://127.0.0.1:7001", "eic_instance_id": "one"}
            return config

        yield make


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "config", "layout", "write_policy", "prefetch"),
    TABLE,
    ids=[f"{row[0]}-{row[2]}-{row[3]}-{row[4]}" for row in TABLE],
)
def test_every_backend_gives_the_answers_of_no_cache(
    model: Path,
    cpu_ext_dir: Path,
    cacheless: Answers,
    config_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    config: dict[str, Any],
    layout: str,
    write_policy: str,
    prefetch: str,
) -> None:
    package = NEEDS.get(backend)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"the optional package {package} is not installed")
    engine = EngineProcess(model, cpu_ext_dir, max_total_tokens=4096, context_length=1024)
    engine.command += ["--enable-hierarchical-cache", "--hicache-ratio", "3"]
    engine.command += ["--hicache-mem-layout", layout]
    if backend in ("hf3fs", "eic"):
        (engine.dir / "3fs").mkdir()
        engine.environment = {"PYTHONPATH": f"{Path(__file__).parents[3]}:{VENDORS}"}
        engine.environment["EIC_FOLDER"] = str(engine.dir / "3fs")
    try:
        engine.start()
        # A slow machine is no reason to give a fetch up: what is not fetched proves nothing.
        patient = dict.fromkeys(
            ("prefetch_timeout_base", "prefetch_timeout_max", "io_timeout"), 60.0
        )
        settings = {"prefetch_threshold": 16, **patient, **config_of(backend, config, engine)}
        done = attach(
            engine,
            backend,
            settings,
            timeout=PATIENCE_S,
            hicache_write_policy=write_policy,
            hicache_storage_prefetch_policy=prefetch,
        )
        assert done.status_code == 200, done.text
        has_hits = write_policy == "write_through" and prefetch != "best_effort"
        is_local = backend == "aibrix"  # its store is embedded in the rank
        check_equal(engine, cacheless, 200, storage=has_hits, is_local=is_local)
        assert detach(engine).status_code == 200
        check_equal(engine, cacheless, 20, storage=False)
    finally:
        engine.stop()


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 300)
def test_a_soak_with_every_kind_of_trouble_loses_no_page(
    model: Path, cpu_ext_dir: Path, cacheless: Answers
) -> None:
    """SOAK_S seconds of traffic with aborts, retractions, flushes, policies, attach, detach,
    switches and forced detaches."""
    engine = started(model, cpu_ext_dir)
    asked, ends = prompts(200), time.monotonic() + SOAK_S
    wrong: list[str] = []
    counts = {"answers": 0, "aborted": 0}

    def client(seed: int) -> None:
        rng = random.Random(seed)
        with plain_http.client(base_url=engine.base) as own:
            while time.monotonic() < ends and not wrong:
                try:
                    one(rng, own, f"soak-{seed}-{rng.randrange(10**9)}")
                except Exception as error:  # noqa: BLE001 - one that fails is what is looked for
                    wrong.append(repr(error))

    def one(rng: random.Random, own: httpx.Client, rid: str) -> None:
        index = rng.randrange(200)
        if rng.random() < 0.1:
            threading.Timer(rng.random() * 0.2, abort, args=(rid,)).start()
        reply = generate(engine, asked[index], new_tokens(index), client=own, rid=rid)
        is_aborted = reply["meta_info"]["finish_reason"]["type"] == "abort"
        counts["aborted" if is_aborted else "answers"] += 1
        ids = reply["output_ids"]
        whole = cacheless[index]
        if ids != (whole[: len(ids)] if is_aborted else whole):
            wrong.append(f"prompt {index}: {ids} not {whole}")

    def abort(rid: str) -> None:
        plain_http.post(f"{engine.base}/abort_request", headers=ADMIN, json={"rid": rid})

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    rng, done = random.Random(99), 0
    try:
        while time.monotonic() < ends and not wrong:
            done += operate(engine, rng)
            time.sleep(rng.random())
    finally:
        for thread in threads:
            thread.join(PATIENCE_S)
    try:
        assert wrong == []
        assert counts["answers"] > SOAK_S and done > SOAK_S / 10, (counts, done)
        detach(engine, mode="abort")
        check_no_page_is_lost(engine)
    finally:
        engine.stop()


def operate(engine: EngineProcess, rng: random.Random) -> int:
    """Some operation; returns 1 if it succeeded. A busy engine may refuse."""
    mode = rng.choice(["drain", "retract", "abort" if rng.random() < 0.2 else "retract"])
    options: dict[str, Any] = {"mode": mode, "timeout": 120}
    act = rng.random()
    if act < 0.35:
        config = {"prefetch_threshold": rng.choice([16, 64]), "max_size": 1 << 24}
        answer = attach(engine, "file", config, replace=True, **options)
    elif act < 0.55:
        answer = detach(engine, **options)
    elif act < 0.65:
        answer = detach(engine, force="true")
    elif act < 0.85:
        answer = engine.client.post("/flush_cache", headers=ADMIN, params=options)
    else:
        answer = engine.client.put(
            "/hicache/storage-backend",
            headers=ADMIN,
            json={
                "hicache_storage_backend": "file",
                "hicache_write_policy": rng.choice(
                    ["write_through", "write_through_selective", "write_back"]
                ),
                "hicache_storage_prefetch_policy": rng.choice(
                    ["best_effort", "timeout", "wait_complete"]
                ),
                **options,
            },
        )
    assert answer.status_code in (200, 400, 409), answer.text
    return int(answer.status_code == 200)
