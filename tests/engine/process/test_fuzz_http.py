"""Bodies made field by field from the structs that read them: answered or refused, no fault."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from engine.frontend.generate_input import GenerateInput
from engine.frontend.openai_input import ChatInput, CompletionInput
from engine.frontend.sampling import SamplingInput
from engine.frontend.score_input import ScoreInput
from tests.fakes import plain_http
from tests.fakes.engine_process import ADMIN_KEY, EngineProcess

pytestmark = pytest.mark.process

PROMPTS: list[Any] = ["Hi", "The capital of France is", "x\0y", "é" * 40, "🙂 <|im_end|>", "\u2028"]
IDS: list[Any] = [[1], [0, 2, 49151], [5] * 40, [[1, 2], [3]], [[7]]]
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.0, 0.5),
    *(1e-300, 1e308, -1e308, 5e-324, 1.0, 2.0, 100.5, "", "a", " ", "\0", "stop", "🙂", "9" * 5000),
    *([], {}, [None], [[]], [0], [-1], [49151], [49152], ["a"], ["", "b"], [1.5], [[1], [2]]),
    *({"1": 1}, {"49151": -100}, {"a": "b"}, {"1": None}, {"type": "text"}, [{}], [{"a": 1}]),
    *("x" * 2000, [0] * 1200, ["s"] * 70, {str(i): 1 for i in range(1100)}),
]
GOOD: dict[str, list[Any]] = {
    "text": [*PROMPTS, PROMPTS[:3]],
    "input_ids": IDS,
    "prompt": [*PROMPTS, PROMPTS[:2], *IDS],
    "query": ["Is it ", "", [1], [5] * 40],
    "items": ["a", PROMPTS[:3], [[1], [2, 3]], [[7]]],
    "label_token_ids": [[0], [2, 49151, 2]],
    "messages": [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "a"}, {"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "assistant", "content": ""}, {"role": "tool", "content": "x", "name": "n"}],
    ],
    "temperature": [0, 0.01, 1, 100, 1e6],
    "top_p": [1e-9, 0.5, 1],
    "top_k": [1, 2, 50000, -1],
    "min_p": [0, 0.5, 1],
    "frequency_penalty": [-2, 2],
    "presence_penalty": [-2, 2],
    "repetition_penalty": [1e-9, 0.5, 2],
    "min_new_tokens": [0, 1, 3],
    "min_tokens": [0, 1, 3],
    "logit_bias": [{"0": 100}, {"5": -100}, {str(i): -100 for i in range(1000)}],
    "sampling_seed": [0, -1, 2**62],
    "seed": [0, -1, 2**62],
    "stop": ["a", " ", ["\n", "e"], ["aaaa" * 200] * 60],
    "stop_token_ids": [[0], [2, 49151], list(range(500))],
    "n": [1, 2, 3],
    "return_logprob": [True, False],
    "logprob_start_len": [-1, 0, 1, 2],
    "top_logprobs_num": [0, 1, 128],
    "token_ids_logprob": [[0], [2, 49151], [0] * 50],
    "logprobs": [True, 0, 1, 5],
    "top_logprobs": [0, 1, 20],
    "echo": [True, False],
    "stream": [True, False],
    "stream_options": [{"include_usage": True}, {"include_usage": None}],
    "routed_dp_rank": [0, 1],
    "extra_key": ["k", ""],
    "chat_template_kwargs": [{}, {"a": 1}, {"bos_token": None}, {"messages": []}],
}
LENGTHS = ("max_new_tokens", "max_tokens", "max_completion_tokens")


class Maker:
    """Bodies of one route."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, name: str) -> Any:
        good = GOOD.get(name)
        if name in LENGTHS:
            good = [0, 1, 2, 4, 6]
        return self.rng.choice(good if good and self.rng.random() < 0.85 else ODD)

    def struct(self, kind: type[msgspec.Struct], always: tuple[str, ...]) -> dict[str, Any]:
        names = [field.encode_name for field in msgspec.structs.fields(kind)]
        names = [name for name in names if name not in (*always, *LENGTHS, "sampling_params")]
        chosen = self.rng.sample(names, self.rng.randint(0, min(4, len(names))))
        return {name: self.value(name) for name in (*always, *chosen)}

    def native(self) -> dict[str, Any]:
        body = self.struct(GenerateInput, (self.rng.choice(["text", "input_ids"]),))
        if body.keys() >= {"text", "input_ids"} and self.rng.random() < 0.9:
            del body["text"]
        body["sampling_params"] = self.struct(SamplingInput, ()) | {
            "max_new_tokens": self.value("max_new_tokens")
        }
        return body

    def completion(self) -> dict[str, Any]:
        return self.struct(CompletionInput, ("prompt",)) | {"max_tokens": self.value("max_tokens")}

    def chat(self) -> dict[str, Any]:
        return self.struct(ChatInput, ("messages",)) | {"max_tokens": self.value("max_tokens")}

    def score(self) -> dict[str, Any]:
        return self.struct(ScoreInput, ("query", "items", "label_token_ids"))

    def abort(self) -> dict[str, Any]:
        return {self.rng.choice(["rid", "abort_message"]): self.rng.choice(ODD)}

    def extend(self) -> dict[str, Any]:
        return {"by_s": self.rng.choice(ODD)}


ROUTES = {
    "/generate": Maker.native,
    "/v1/completions": Maker.completion,
    "/v1/chat/completions": Maker.chat,
    "/v1/score": Maker.score,
    "/abort_request": Maker.abort,
    "/operations/x/extend": Maker.extend,
}
WEIGHTS = (50, 20, 20, 10, 5, 5)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} in a reply")


def send_all(engine: EngineProcess, seed: int, count: int) -> dict[int, int]:
    """Send so many bodies on one connection; how often each status came."""
    maker, seen = Maker(random.Random(seed)), dict[int, int]()
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with plain_http.client(base_url=engine.base, headers=headers) as client:
        for _ in range(count):
            path = maker.rng.choices(list(ROUTES), WEIGHTS)[0]
            body = ROUTES[path](maker)
            answer = client.post(path, json=body)
            shown = (path, json.dumps(body)[:600], answer.text[:300])
            assert answer.status_code in (200, 400, 404, 503), shown
            if answer.headers["content-type"] == "application/json":
                json.loads(answer.text, parse_constant=_no_constant)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
    return seen


def check(engine: EngineProcess, count: int) -> None:
    canary = "The capital of France is"
    before = engine.generate(canary, 12).json()["output_ids"]
    pids = [engine.pids(child) for child in ("frontend", "rank 0", "rank 1")]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seed: send_all(engine, seed, count // 4), range(4)))
    assert all(seen[200] > count // 40 and seen[400] > count // 40 for seen in results), results
    engine.until_idle()
    assert [engine.pids(child) for child in ("frontend", "rank 0", "rank 1")] == pids
    assert engine.generate(canary, 12).json()["output_ids"] == before
    engine.until_idle()  # a report of the rank may lag behind its reply
    for load in engine.loads():
        kv = load["memory"]["kv"]
        assert (kv["locked_pages"], kv["held_pages"]) == (0, 0)
    for name in ("request failed", "Traceback", "level='error'"):
        assert name not in engine.log()[-200_000:]


def test_bodies_of_any_kind_are_answered_or_refused(engine: EngineProcess) -> None:
    check(engine, 400)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_bodies_are_answered_or_refused(engine: EngineProcess) -> None:
    check(engine, 10_000)
