"""Weights of a real two-rank engine, replaced over HTTP: what it then says is what a fresh engine
started on those weights says, and a bad update changes nothing at all."""

from __future__ import annotations

import random
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save

from tests.engine.weights.checkpoints import BAD, DOWN, checksum_of, weights_of, write
from tests.fakes.engine_process import ADMIN_KEY, Background, EngineProcess, events_of
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

PROMPT = [5, 17, 33, 2048, 9, 77, 4100, 12, 30000, 8, 1, 6, 90, 91, 92, 93, 94, 95, 96, 97]
RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """A weights root with three checkpoints of one shape."""
    root = tmp_path_factory.mktemp("weights") / "models"
    root.mkdir()
    for seed, name in enumerate(("base", "other", "third")):
        write(root / name, seed, smollm2_dir)
    return root


@pytest.fixture(scope="module")
def shared(root: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(root / "base", cpu_ext_dir)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.fixture
def engine(shared: EngineProcess, root: Path) -> EngineProcess:
    """The shared engine: idle, running, with the base weights and an empty cache."""
    shared.until_serving()
    info = shared.client.get("/model_info").json()
    if info["weight_version"] != "default" or "base" not in info["weights"]["path"]:
        done = update(shared, root / "base", mode="abort", weight_version="default")
        assert done.status_code == 200, done.text
    shared.until_idle()
    shared.flush(timeout=60)
    return shared


Told = list[tuple[list[int], list[float]]]


@pytest.fixture(scope="module")
def fresh(root: Path, cpu_ext_dir: Path) -> dict[str, Told]:
    """What engines say that were started on each checkpoint."""
    found = {}
    for name in ("base", "other", "third"):
        engine = EngineProcess(root / name, cpu_ext_dir, dp_size=1)
        try:
            found[name] = told(engine.start(), [0]) * 2  # as each of two ranks must say it
        finally:
            engine.stop()
    assert len({str(tokens) for tokens, _ in (t[0] for t in found.values())}) == 3
    return found


def told(engine: EngineProcess, ranks: Sequence[int] = (0, 1)) -> Told:
    """What each rank says to the prompt: tokens and log probabilities, none from a cache."""
    found = []
    for rank in ranks:
        body = engine.generate(
            PROMPT, 16, return_logprob=True, routed_dp_rank=rank, sampling={"ignore_eos": True}
        ).json()
        assert body["meta_info"]["cached_tokens"] == 0, body
        scores = [score for score, *_ in body["meta_info"]["output_token_logprobs"]]
        found.append((body["output_ids"], scores))
    return found


def assert_same(found: Told, expected: Told) -> None:
    for (tokens, scores), (wanted, wanted_scores) in zip(found, expected, strict=True):
        assert tokens == wanted
        assert max(abs(a - b) for a, b in zip(scores, wanted_scores, strict=True)) <= 1e-4


def update(engine: EngineProcess, path: Path | str, **more: Any) -> httpx.Response:
    return engine.admin("POST", "/update_weights_from_disk", json={"model_path": str(path), **more})


def checks(engine: EngineProcess) -> dict[str, Any]:
    answer = engine.admin("GET", "/weights_checker")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def push(engine: EngineProcess, tensors: dict[str, torch.Tensor], **query: Any) -> httpx.Response:
    return engine.admin(
        "POST", "/update_weights_from_tensor", content=save(tensors), headers=RAW, params=query
    )


def begin(engine: EngineProcess, **body: Any) -> None:
    assert engine.admin("POST", "/begin_weight_update", json=body).status_code == 200


# ---- what is said afterwards is what a fresh engine says ---------------------------------------


def test_from_disk_with_default_arguments_only(
    engine: EngineProcess, root: Path, fresh: dict[str, Told]
) -> None:
    """W01, W11."""
    assert_same(told(engine), fresh["base"])
    answer = update(engine, root / "other")
    assert answer.status_code == 200
    body = answer.json()
    assert body["message"] == "Succeeded to update model weights." and body["success"] is True
    assert body["num_paused_requests"] == 0
    assert [rank["state"] for rank in body["ranks"]] == ["succeeded", "succeeded"]
    assert_same(told(engine), fresh["other"])
    info = engine.client.get("/model_info").json()
    assert info["weights"]["checksum"] == body["weights"]["checksum"]
    assert info["weight_version"] == body["weights"]["checksum"][:12]
    assert (
        engine.client.get("/v1/models").json()["data"][0]["id"].endswith("base")
    )  # its name stays
    back = update(engine, root / "base", weight_version="v2").json()
    assert back["message"].endswith("Weight version updated to v2.")
    assert_same(told(engine), fresh["base"])


def test_what_was_cached_is_not_used_though_it_was_not_flushed(
    engine: EngineProcess, root: Path, fresh: dict[str, Told]
) -> None:
    """W09."""
    assert_same(told(engine), fresh["base"])
    assert update(engine, root / "other", flush_cache=False).status_code == 200
    assert_same(told(engine), fresh["other"])  # told() asserts that nothing came from a cache
    assert update(engine, root / "base", flush_cache=False).status_code == 200
    again = engine.generate(PROMPT, 16, routed_dp_rank=0, sampling={"ignore_eos": True}).json()
    assert again["meta_info"]["cached_tokens"] == 16  # the same weights: the same KV
    assert again["output_ids"] == fresh["base"][0][0]


def test_from_tensors_in_one_body(engine: EngineProcess, fresh: dict[str, Told]) -> None:
    answer = push(engine, weights_of(1), weight_version="pushed")
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"] == "Success Weight version updated to pushed."
    assert_same(told(engine), fresh["other"])


def test_from_tensors_in_files_of_a_form(engine: EngineProcess, fresh: dict[str, Told]) -> None:
    names = sorted(weights_of(1))
    files = [
        ("file", (f"{i}.safetensors", save({n: weights_of(1)[n] for n in names[i::3]})))
        for i in range(3)
    ]
    answer = engine.admin(
        "POST", "/update_weights_from_tensor", files=files, data={"weight_version": "form"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["weights"]["version"] == "form"
    assert_same(told(engine), fresh["other"])


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_from_tensors_in_parts_of_any_size_and_order(
    engine: EngineProcess, root: Path, fresh: dict[str, Told], parts: int
) -> None:
    """W15: fused and tied parameters among them; every checksum is a fresh load's."""
    assert update(engine, root / "other").status_code == 200
    wanted = checks(engine)["ranks"][0]["checksums"]
    assert update(engine, root / "base").status_code == 200
    tensors = weights_of(1)
    names = sorted(tensors)
    random.Random(parts).shuffle(names)
    begin(engine, owner="me")
    for some in (names[i::parts] for i in range(min(parts, len(names)))):
        answer = push(engine, {name: tensors[name] for name in some}, owner="me")
        assert answer.status_code == 200, answer.text
    assert_same(told(engine), fresh["base"])  # nothing is visible before the end
    answer = engine.admin("POST", "/end_weight_update", json={"owner": "me"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tensors_received"] == len(tensors)
    for rank in checks(engine)["ranks"]:
        assert rank["checksums"] == wanted
    assert_same(told(engine), fresh["other"])


# ---- a bad update changes nothing ------------------------------------------------------------


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_bad_folder_is_refused_and_named(
    engine: EngineProcess, root: Path, fresh: dict[str, Told], what: str
) -> None:
    spoil, reason = BAD[what]
    folder = root / "bad"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "third", folder)
    spoil(folder)
    before = engine.client.get("/model_info").json()
    answer = update(engine, folder)
    assert answer.status_code == 400
    assert answer.json()["success"] is False and reason in answer.json()["message"], answer.text
    assert engine.client.get("/model_info").json() == before
    assert checks(engine)["message"] == "all ranks hold the same weights"
    assert_same(told(engine), fresh["base"])
    shutil.rmtree(folder, ignore_errors=True)


def paths(root: Path) -> dict[str, str]:
    (root / "loop").unlink(missing_ok=True)
    (root / "loop").symlink_to(root / "loop")
    return {
        "empty": "",
        "relative": "models/other",
        "dots": str(root / "other" / ".." / ".." / "x"),
        "dots inside": str(root / ".." / root.name / "other"),
        "a file": str(root / "other" / "model.safetensors"),
        "nothing there": str(root / "nowhere"),
        "loop": str(root / "loop"),
        "url": "http://127.0.0.1:9/model",
        "nul": str(root) + "\0/other",
        "outside": "/etc",
        "hub name": "HuggingFaceTB/SmolLM2-135M",
    }


@pytest.mark.parametrize(
    "what",
    ["empty", "relative", "dots", "dots inside", "a file", "nothing there", "loop", "url", "nul",
     "outside", "hub name"],
)  # fmt: skip
def test_a_path_that_is_none_of_ours_is_refused(
    engine: EngineProcess, root: Path, what: str
) -> None:
    """I36."""
    before = engine.client.get("/model_info").json()
    answer = update(engine, paths(root)[what])
    assert answer.status_code == 400, answer.text
    assert answer.json()["success"] is False
    assert engine.client.get("/model_info").json() == before


def test_a_link_that_stays_under_the_root_is_followed(engine: EngineProcess, root: Path) -> None:
    (root / "latest").unlink(missing_ok=True)
    (root / "latest").symlink_to(root / "other")
    answer = update(engine, root / "latest")
    assert answer.status_code == 200
    assert answer.json()["weights"]["path"] == str(root / "other")


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("load_format", "zork", 400),
        ("load_format", "auto", 200),
        ("is_async", True, 400),
        ("is_async", False, 200),
        ("keep_pause", True, 400),
        ("token_step", 3, 400),
        ("token_step", 0, 200),
        ("manifest", {"a": 1}, 400),
        ("manifest", None, 200),
        ("zork", 1, 400),
        ("timeout", -1, 400),
        ("timeout", "5", 400),
        ("timeout", 1e9, 400),
        ("mode", "zork", 400),
        ("mode", "RETRACT", 400),
        ("weight_version", "", 400),
        ("flush_cache", "yes", 400),
        ("expected_checksum", "0" * 32, 400),
    ],
)
def test_fields_are_checked_by_name(
    engine: EngineProcess, root: Path, field: str, value: object, status: int
) -> None:
    answer = update(engine, root / "other", **{field: value})
    assert answer.status_code == status, answer.text
    if status == 400:
        assert field.partition("_")[0] in answer.text or "checksum" in answer.text
        assert engine.client.get("/model_info").json()["weight_version"] == "default"


def test_nan_is_taken_only_by_who_asks_for_it(engine: EngineProcess) -> None:
    tensors = weights_of(1)
    tensors[DOWN][0, 0] = float("inf")
    assert push(engine, tensors).status_code == 400
    assert push(engine, tensors, allow_nonfinite="true").status_code == 200


def test_the_pickled_form_is_refused_with_what_to_send_instead(engine: EngineProcess) -> None:
    answer = engine.admin(
        "POST", "/update_weights_from_tensor", json={"serialized_named_tensors": ["gASV"]}
    )
    assert answer.status_code == 400 and "safetensors bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: t.update({DOWN: t[DOWN].T.contiguous()}), "shape"),
        (lambda t: t.update({"zork": torch.zeros(1)}), "no use"),
        (lambda t: t.clear(), "no tensor"),
    ],
)
def test_a_bad_part_ends_its_session_and_is_in_nobodys_way(
    engine: EngineProcess, fresh: dict[str, Told], spoil: Any, reason: str
) -> None:
    """W05."""
    tensors = weights_of(1)
    names = sorted(tensors)
    chunks = [{name: tensors[name] for name in names[i::5]} for i in range(5)]
    begin(engine)
    assert push(engine, chunks[0]).status_code == 200
    assert push(engine, chunks[1]).status_code == 200
    bad = {DOWN: tensors[DOWN], **chunks[2]}
    spoil(bad)
    answer = push(engine, bad)
    assert answer.status_code == 400 and reason in answer.text
    assert_same(told(engine), fresh["base"])
    ended = engine.admin("POST", "/end_weight_update", json={})
    assert ended.status_code == 400 and "no weight-update session is open" in ended.text
    assert push(engine, tensors).status_code == 200
    assert_same(told(engine), fresh["other"])


def test_only_unknown_names_and_one_unknown_name(engine: EngineProcess) -> None:
    """W13."""
    before = checks(engine)["per_engine_checksum"]
    one = weights_of(1)[DOWN]
    for tensors in ({"a": one, "b": one + 1}, {DOWN: one, "b": one + 1}, {DOWN: one}):
        answer = push(engine, tensors)
        assert answer.status_code == 400, answer.text
    assert "missing" in answer.text
    assert checks(engine)["per_engine_checksum"] == before


def test_an_update_without_bytes_is_no_success(engine: EngineProcess) -> None:
    """W14."""
    begin(engine)
    answer = engine.admin("POST", "/end_weight_update", json={})
    assert answer.status_code == 400 and "nothing was received" in answer.text
    assert push(engine, {}).status_code == 400
    empty = engine.admin("POST", "/update_weights_from_tensor", content=b"", headers=RAW)
    assert empty.status_code == 400
    wrong = push(engine, weights_of(1), expected_checksum="0" * 32)
    assert wrong.status_code == 400 and "have checksum" in wrong.text
    right = checksum_of(weights_of(1), "float32")
    assert push(engine, weights_of(1), expected_checksum=right).status_code == 200
    assert checks(engine)["desired_checksum"] == right


def test_a_session_has_an_owner_and_an_end(engine: EngineProcess) -> None:
    begin(engine, owner="trainer-1", timeout=60)
    again = engine.admin("POST", "/begin_weight_update", json={})
    assert again.status_code == 400 and "already open" in again.text
    tensors = weights_of(1)
    assert push(engine, {DOWN: tensors[DOWN]}, owner="somebody").status_code == 400
    assert push(engine, {DOWN: tensors[DOWN]}, owner="trainer-1").status_code == 200
    assert push(engine, {DOWN: tensors[DOWN]}, owner="trainer-1").status_code == 400  # sent twice
    begin(engine, owner="trainer-1", timeout=0.6)
    time.sleep(1.0)
    late = push(engine, {DOWN: tensors[DOWN]}, owner="trainer-1")
    assert late.status_code == 400 and "missing" in late.text  # it has lapsed: this is no part
    ended = engine.admin("POST", "/end_weight_update", json={"owner": "trainer-1"})
    assert ended.status_code == 400 and "no weight-update session is open" in ended.text
    assert not list((engine.dir / "weights").glob("session-*"))


# ---- while it serves -------------------------------------------------------------------------


def streams(engine: EngineProcess, count: int, tokens: int) -> list[Background]:
    def run(number: int) -> Any:
        with engine.client.stream(
            "POST",
            "/generate",
            json={
                "input_ids": [number, *PROMPT],
                "sampling_params": {
                    "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True,
                },
                "stream": True,
            },
        ) as response:  # fmt: skip
            response.read()
            return events_of(response)

    return [Background(lambda number=number: run(number)) for number in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("mode", ["retract", "drain", "abort"])
def test_streams_live_through_an_update(engine: EngineProcess, root: Path, mode: str) -> None:
    tokens = 150 if mode == "drain" else 600
    work = streams(engine, 4, tokens)

    def num_begun() -> int:
        num_ended = sum(not stream.is_running for stream in work)  # on a busy machine: the first
        return num_ended + sum(load["num_running_reqs"] for load in engine.loads())

    wait_until(lambda: num_begun() >= 4)
    if mode != "drain":  # staging is niced: on a busy machine the streams would end before it
        engine.admin("POST", "/pause_generation", json={"mode": "in_place"}).raise_for_status()
    answer = update(engine, root / "other", mode=mode, timeout=120, weight_version="new")
    assert answer.status_code == 200, answer.text
    engine.admin("POST", "/continue_generation", json={}).raise_for_status()
    interrupted = answer.json()["num_paused_requests"]
    for stream in work:
        events = stream.result()
        last = events[-1]
        ids, meta = last["output_ids"], last["meta_info"]
        for event in events:  # nothing that was streamed is taken back
            assert ids[: len(event["output_ids"])] == event["output_ids"]
        if mode == "abort":
            assert meta["finish_reason"]["type"] == "abort" and len(ids) < tokens
        else:
            assert meta["finish_reason"]["type"] == "length" and len(ids) == tokens
        spans = meta["weight_versions"]
        if mode == "retract":
            assert [span["version"] for span in spans] == ["default", "new"]
            assert meta["num_retractions"] == 1
        assert spans[0]["start"] == 0 and spans[-1]["end"] == len(ids)
    assert interrupted == (0 if mode == "drain" else 4)


def test_an_update_waits_for_idle_until_its_deadline(engine: EngineProcess, root: Path) -> None:
    work = engine.busy(1500)
    # Staging is niced: on a busy machine it would end before that.
    engine.admin("POST", "/pause_generation", json={"mode": "in_place"}).raise_for_status()
    answer = update(engine, root / "other", timeout=1.0)
    assert answer.status_code == 400 and answer.json()["outcome"] == "expired"
    assert answer.json()["finished_clock_s"] - answer.json()["started_clock_s"] >= 1.0
    assert "running=1" in answer.json()["message"]
    refused = update(engine, root / "other")
    assert refused.status_code == 400 and "not idle" in refused.json()["message"]
    engine.admin("POST", "/continue_generation", json={}).raise_for_status()
    assert engine.end(work)["meta_info"]["weight_version"] == "default"


def test_a_second_update_is_refused_at_once_also_while_paused(
    engine: EngineProcess, root: Path
) -> None:
    """Where SGLang's server hangs and ends."""
    work = engine.busy(400)
    paused = engine.admin("POST", "/pause_generation", json={"mode": "in_place"})
    assert paused.status_code == 200
    first = Background(lambda: update(engine, root / "other", timeout=60, mode="wait"))
    wait_until(lambda: engine.operations()["open"])
    second = update(engine, root / "third")
    assert second.status_code == 409 and second.json()["success"] is False
    holder = engine.operations()["open"][0]["op_id"]
    assert second.json()["error"]["holder"] == holder
    assert first.is_running and work.is_running  # in place, what runs never ends
    assert engine.admin("POST", f"/operations/{holder}/cancel").status_code == 202
    assert first.result().status_code == 400
    assert update(engine, root / "other", mode="retract").status_code == 200
    assert engine.admin("POST", "/continue_generation", json={}).status_code == 200
    assert len(work.result()["output_ids"]) == 400


def test_the_allocators_cache_is_emptied_only_for_who_asks(
    engine: EngineProcess, root: Path
) -> None:
    def count() -> float:
        text = engine.client.get("/metrics").text
        lines = [line for line in text.splitlines() if "empty_cache_total{" in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    time.sleep(0.6)
    before = count()
    assert update(engine, root / "other").status_code == 200
    assert push(engine, weights_of(2)).status_code == 200
    time.sleep(0.6)
    assert count() == before
    assert update(engine, root / "other", torch_empty_cache=True).status_code == 200
    wait_until(lambda: count() > before + 1)
    assert count() == before + 2  # once a rank


# ---- names, reading back, pause, memory --------------------------------------------------------


def test_a_new_name_ends_nothing(engine: EngineProcess) -> None:
    work = engine.busy(400)
    answer = engine.admin("POST", "/update_weight_version", json={"new_version": "step-9"})
    assert answer.status_code == 200
    assert answer.json()["message"] == "Weight version updated to step-9"
    assert answer.json()["new_version"] == "step-9"
    body = work.result()
    assert len(body["output_ids"]) == 400 and body["meta_info"]["weight_version"] == "step-9"
    assert [s["version"] for s in body["meta_info"]["weight_versions"]] == ["default", "step-9"]


def test_tensors_are_read_back_as_they_are_served(engine: EngineProcess) -> None:
    for name, tensor in weights_of(0).items():
        if "layers.1" in name or "norm" in name:
            answer = engine.admin(
                "POST", "/get_weights_by_name", json={"name": name, "truncate_size": 50}
            )
            wanted = tensor[:50].float().tolist()  # rows, as SGLang cuts it
            assert answer.json() == [wanted, wanted], name
    large = {"name": "model.embed_tokens.weight", "truncate_size": 49152}
    refused = engine.admin("POST", "/get_weights_by_name", json=large)
    assert refused.status_code == 400 and "ask for fewer" in refused.text
    unknown = engine.admin("POST", "/get_weights_by_name", json={"name": "zork"})
    assert unknown.status_code == 400
    assert unknown.json()["error"]["message"] == "Get parameter by name failed"


@pytest.mark.parametrize("mode", ["wait", "", None, "IN_PLACE", "place", "in_place ", 3, ["abort"]])
def test_an_unknown_pause_mode_pauses_nothing(engine: EngineProcess, mode: object) -> None:
    """P01."""
    answer = engine.admin("POST", "/pause_generation", json={"mode": mode})
    assert answer.status_code == 400
    wait_until(lambda: engine.client.get("/ready").status_code == 200)  # else for ever 503


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_pause_holds_new_requests_until_it_ends(engine: EngineProcess, mode: str) -> None:
    work = engine.busy(500)
    for _ in range(2):  # repeats are harmless
        answer = engine.admin("POST", "/pause_generation", json={"mode": mode})
        assert answer.status_code == 200
        assert answer.json()["message"] == "Generation paused successfully."
        assert answer.json()["status"] == "ok"
    assert engine.client.get("/ready").status_code == 503
    wait_until(lambda: engine.client.get("/health").status_code == 200)
    assert engine.client.get("/server_info").json()["paused"] == mode
    late = Background(lambda: engine.generate(PROMPT, 4).json())
    time.sleep(0.5)
    assert late.is_running
    for _ in range(2):
        answer = engine.admin("POST", "/continue_generation", json={})
        assert answer.json()["message"] == "Generation continued successfully."
    assert len(late.result()["output_ids"]) == 4
    body = work.result()
    if mode == "abort":
        assert body["meta_info"]["finish_reason"]["type"] == "abort"
    else:
        assert len(body["output_ids"]) == 500
        assert body["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)


def test_memory_comes_back_only_with_weights(
    engine: EngineProcess, root: Path, fresh: dict[str, Told]
) -> None:
    assert engine.admin("POST", "/resume_memory_occupation", json={}).status_code == 400
    work = engine.busy(300)
    busy = engine.admin("POST", "/release_memory_occupation", json={})
    assert busy.status_code == 400 and "running=1" in busy.json()["message"]
    work.result()
    assert (
        engine.admin("POST", "/release_memory_occupation", json={"tags": ["zork"]}).status_code
        == 400
    )
    assert engine.admin("POST", "/release_memory_occupation", json={}).status_code == 200
    again = engine.admin("POST", "/release_memory_occupation", json={})
    assert again.status_code == 400 and "already released" in again.json()["message"]
    assert engine.generate(PROMPT, 1).status_code == 503
    assert (
        engine.admin("POST", "/resume_memory_occupation", json={"tags": ["weights"]}).status_code
        == 200
    )
    assert engine.generate(PROMPT, 1).status_code == 503
    assert update(engine, root / "other").status_code == 200
    assert engine.generate(PROMPT, 1).status_code == 503  # its KV cache is still released
    assert (
        engine.admin("POST", "/resume_memory_occupation", json={"tags": ["kv_cache"]}).status_code
        == 200
    )
    assert_same(told(engine), fresh["other"])


def test_an_abort_goes_through_while_an_update_waits(engine: EngineProcess, root: Path) -> None:
    work = engine.busy(1500)
    waiting = Background(lambda: update(engine, root / "other", timeout=120, mode="drain"))
    wait_until(lambda: engine.operations()["open"])
    answer = engine.admin("POST", "/abort_request", json={"abort_all": True})
    assert answer.json() == {"aborted": 1}
    assert waiting.result().status_code == 200
    assert work.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_id_stands_for_what_it_was_first_used_for(engine: EngineProcess, root: Path) -> None:
    first = update(engine, root / "other", op_id="same", weight_version="a")
    again = update(engine, root / "other", op_id="same", weight_version="a")
    assert first.status_code == again.status_code == 200
    assert first.json()["finished_clock_s"] == again.json()["finished_clock_s"]
    for answer in (
        update(engine, root / "third", op_id="same", weight_version="a"),
        update(engine, root / "other", op_id="same", weight_version="b"),
        engine.admin("POST", "/pause_generation", json={"op_id": "same"}),
        engine.flush(op_id="same"),
    ):
        assert answer.status_code == 400, answer.text
        assert "asked for something else" in answer.text
    assert engine.client.get("/model_info").json()["weight_version"] == "a"


def test_an_upload_is_the_operations_when_its_sender_leaves(
    engine: EngineProcess, fresh: dict[str, Told]
) -> None:
    """The files of weights that are served stay, and those that nobody serves go."""
    work = engine.busy(1900)
    data = save(weights_of(1))
    with socket.create_connection(("127.0.0.1", engine.port)) as raw:
        raw.sendall(
            b"POST /update_weights_from_tensor?op_id=left&mode=drain&timeout=120 HTTP/1.1\r\n"
            b"Host: x\r\nAuthorization: Bearer %s\r\n"
            % ADMIN_KEY.encode()
            + b"".join(b"%s: %s\r\n" % (k.encode(), v.encode()) for k, v in RAW.items())
            + b"Content-Length: %d\r\n\r\n" % len(data)
            + data
        )
        wait_until(lambda: engine.operations()["open"])
    engine.end(work)
    wait_until(lambda: not engine.operations()["open"])
    assert engine.admin("GET", "/operations/left").json()["outcome"] == "succeeded"
    engine.kill_rank(1)
    engine.until_serving()
    assert_same(told(engine), fresh["other"])
    kept = engine.client.get("/model_info").json()["weights"]["path"]
    again = push(engine, weights_of(1), op_id="left", mode="drain", timeout=120)
    assert again.status_code == 200  # the recorded result; this upload was not needed
    folders = {str(path) for path in (engine.dir / "weights").iterdir() if path.name[0] != "."}
    assert folders == {kept}


def test_pause_abort_update_continue(
    engine: EngineProcess, root: Path, fresh: dict[str, Told]
) -> None:
    """W08 c."""
    work = streams(engine, 8, 1500)
    wait_until(lambda: sum(r["num_running_reqs"] for r in engine.loads()) == 8)
    paused = engine.admin("POST", "/pause_generation", json={"mode": "abort"})
    assert paused.json()["interrupted"] == 8
    for stream in work:
        last = stream.result()[-1]
        assert last["meta_info"]["finish_reason"]["type"] == "abort" and last["output_ids"]
    assert update(engine, root / "other").status_code == 200
    assert engine.client.get("/ready").status_code == 503
    assert engine.admin("POST", "/continue_generation", json={}).status_code == 200
    assert_same(told(engine), fresh["other"])


def all_pages_are_free(engine: EngineProcess) -> bool:
    """By the ranks' newest reports, which come a moment after their answers."""
    states = engine.client.get("/server_info").json()["internal_states"]
    return all(state["kv"]["free_pages"] == state["kv"]["total_pages"] for state in states)


def test_a_paused_backlog_is_flushed_and_loses_nothing(engine: EngineProcess) -> None:
    """F05."""
    prompts = [[number, *PROMPT] for number in range(40)]
    alone = [engine.generate(prompt, 100).json()["output_ids"] for prompt in prompts[:4]]
    engine.flush(timeout=60)
    work = [
        Background(lambda prompt=prompt: engine.generate(prompt, 100).json())  # type: ignore[misc]
        for prompt in prompts
    ]
    wait_until(lambda: sum(r["num_running_reqs"] for r in engine.loads()) > 8)
    control = engine.flush()
    assert control.status_code == 400
    assert engine.admin("POST", "/pause_generation", json={"mode": "retract"}).status_code == 200
    for timeout in (0, 60):
        flushed = engine.flush(timeout=timeout)
        assert flushed.status_code == 200, flushed.text
    wait_until(lambda: all_pages_are_free(engine))
    assert engine.admin("POST", "/continue_generation", json={}).status_code == 200
    outputs = [one.result()["output_ids"] for one in work]
    assert all(len(ids) == 100 or ids[-1] == 2 for ids in outputs)
    assert outputs[:4] == alone


def test_a_request_that_never_steps_again_is_reaped(engine: EngineProcess) -> None:
    """F07: without another forward pass, whose pages are then free."""
    work = engine.busy(1500)
    assert engine.admin("POST", "/pause_generation", json={"mode": "in_place"}).status_code == 200
    stuck = engine.flush(timeout=1)
    assert stuck.status_code == 400 and stuck.json()["outcome"] == "expired"
    assert "running=1" in stuck.json()["message"]
    assert engine.admin("POST", "/abort_request", json={"abort_all": True}).json() == {"aborted": 1}
    assert work.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.flush(timeout=60).status_code == 200
    wait_until(lambda: all_pages_are_free(engine))
    assert engine.admin("POST", "/continue_generation", json={}).status_code == 200
