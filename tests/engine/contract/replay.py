"""Recorded exchanges: how one is sent to our engine, and what of the answer must be alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import plain_http
from tests.fakes.engine_process import ADMIN_KEY, EngineProcess

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, Any]] = {
    row["name"]: row for row in map(json.loads, (HERE / "recorded.jsonl").read_text().splitlines())
}


def replay(engine: EngineProcess, row: dict[str, Any]) -> httpx.Response:
    """Send it: body, key and content type as they were recorded."""
    keys = {"admin": ADMIN_KEY, "wrong": "wrong", None: ""}
    headers = {}
    if keys[row["auth"]]:
        headers["Authorization"] = f"Bearer {keys[row['auth']]}"
    request, content = row.get("request"), None
    if isinstance(request, dict) and "raw" in request:
        content = request["raw"].encode()
    elif request is not None:
        content = json.dumps(expanded(request)).encode()
    if content is not None and not row["name"].endswith("_ct"):
        headers["Content-Type"] = "application/json"
    if row["name"].endswith("_ct"):
        headers["Content-Type"] = "text/plain"
    return plain_http.request(
        row["method"],
        engine.base + row["path"],
        headers=headers,
        content=content,
    )


def expanded(value: Any) -> Any:
    """The recording shortened long lists; this makes them whole again."""
    if isinstance(value, dict):
        return {key: expanded(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[-1], str):
        found = re.fullmatch(r"\.\.\.\((\d+) items\)", value[-1])
        if found:
            return value[:1] * int(found.group(1))
    if isinstance(value, list):
        return [expanded(item) for item in value]
    return value


# The real server ran in bf16 and broke these ties the other way.
NEAR_TIES = ("chat_normal", "chat_logprobs", "gen_rid_reuse_after")


def is_greedy(row: dict[str, Any]) -> bool:
    if row["name"] in NEAR_TIES:
        return False
    request = row.get("request") or {}
    sampling = request.get("sampling_params", request)
    if isinstance(sampling, list):
        return all(item.get("temperature") == 0 for item in sampling)
    return bool(sampling.get("temperature") == 0)


def compare_streams(row: dict[str, Any], answer: httpx.Response) -> None:
    recorded = [line for line in row["sse_lines"] if line.startswith("data: ")]
    if not recorded:  # an error, answered as plain JSON
        compare(json.loads(row["sse_lines"][0]), answer.json(), greedy=False)
        return
    ours = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert ours[-1] == "data: [DONE]"
    if row["name"] == "gen_stream_logprob":  # the recording cut its long lines
        return
    first, mine = json.loads(recorded[0][6:]), json.loads(ours[0][6:])
    compare(first, mine, greedy=False)
    assert answer.headers["content-type"] == row["headers"]["content-type"]
    if "text" in first and is_greedy(row):
        last = json.loads([line for line in recorded if line != "data: [DONE]"][-1][6:])
        texts = [json.loads(line[6:]) for line in ours[:-1]]
        assert [t["text"] for t in texts if t.get("index", 0) == last.get("index", 0)][-1] == (
            last["text"]
        )


# Fields of a real server that describe its own machinery.
MACHINERY = {
    "storage_prefetch_wait", "storage_staging_wait", "forward_entry_time", "prefill_finished_time",
    "queue_time", "request_received_ts", "api_server_dispatch_finish_ts", "request_finished_ts",
    "decode_throughput", "response_sent_to_client_ts", "first_token_latency", "embedding", "cache",
    "num_prealloc_ready_tokens", "total_prefill_uncached_tokens", "total_prefill_busy_us",
    "decode_moments", "disaggregation", "weight_gb", "kv_cache_gb", "graph_gb", "paused",
    "prealloc_ready", "param", "prompt_token_logprobs",
}  # fmt: skip
GREEDY_EXACT = ("text", "output_ids", "finish_reason", "matched_stop", "content", "prompt_tokens",
                "completion_tokens", "prompt_token_ids")  # fmt: skip


def compare(theirs: Any, ours: Any, *, greedy: bool, key: str = "") -> None:
    """Ours has all that theirs has; equal where that is the contract."""
    if isinstance(theirs, dict):
        compare_objects(theirs, ours, greedy=greedy, key=key)
    elif isinstance(theirs, list) and theirs and isinstance(theirs[0], dict):
        assert len(ours) == len(theirs), key
        for one, other in zip(theirs, ours, strict=True):
            compare(one, other, greedy=greedy, key=key)
    elif key == "message" and isinstance(theirs, str):
        assert ours == theirs or "out of range" in theirs
    elif key == "scores":
        assert ours == [pytest.approx(row, abs=0.01) for row in theirs]
    elif greedy and key in GREEDY_EXACT:
        assert ours == theirs, key
    elif greedy and key.endswith("_token_logprobs"):
        compare_logprobs(theirs, ours)


def compare_objects(theirs: dict[str, Any], ours: Any, *, greedy: bool, key: str) -> None:
    assert isinstance(ours, dict), (key, ours)
    if key == "finish_reason" and not greedy:
        return
    if "model_path" in theirs and len(theirs) > 30:
        return  # server_info: settings of another program
    if theirs.get("object") == "error":
        assert ours["object"] == "error"
        assert ours["code"] == theirs["code"]
        return
    for name, value in theirs.items():
        if name not in MACHINERY:
            assert name in ours, f"{key}.{name} is missing"
            compare(value, ours[name], greedy=greedy, key=name)


def compare_logprobs(theirs: list[list[Any]], ours: list[list[Any]]) -> None:
    assert [entry[1:] for entry in ours] == [entry[1:] for entry in theirs]
    for one, other in zip(theirs, ours, strict=True):
        assert (other[0] is None) is (one[0] is None)
        if one[0] is not None:
            assert other[0] == pytest.approx(one[0], abs=0.35)


def holds(wanted: Any, found: Any, words: dict[str, str]) -> bool:
    """`found` has all that `wanted` names; `{word}` in a text stands for one of `words`."""
    if isinstance(wanted, dict):
        return all(holds(value, found[key], words) for key, value in wanted.items())
    if isinstance(wanted, list):
        return all(holds(one, other, words) for one, other in zip(wanted, found, strict=True))
    if isinstance(wanted, re.Pattern):
        return bool(wanted.search(str(found)))
    return bool(found == (wanted.format(**words) if isinstance(wanted, str) else wanted))
