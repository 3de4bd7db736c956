"""Requests over HTTP on a real engine: ids, disconnects, odd input, and the engine stays alive."""

from __future__ import annotations

import itertools
import json
import socket
import time
from typing import Any

import httpx
import pytest

from tests.fakes.engine_process import CANARY, Background, EngineProcess, events_of
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process


def post(engine: EngineProcess, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return engine.client.post(
        "/generate", content=content, headers={"Content-Type": "application/json"}
    )


BAD: list[tuple[object, str]] = [
    ({"text": ""}, "empty"),
    ({"text": [""]}, "empty"),
    ({"text": []}, "empty"),
    ({"input_ids": []}, "empty"),
    ({"input_ids": [[]]}, "empty"),
    ({}, "should be provided"),
    ({"text": "a", "input_ids": [1]}, "not both"),
    ({"input_ids": [1, -3]}, "token ids must be in"),
    ({"input_ids": [49152]}, "token ids must be in"),
    ({"input_ids": [1, [2]]}, "mixes"),
    ({"text": "a", "bogus": 1}, "bogus"),
    ({"text": "a", "routed_dp_rank": 3}, "out of range"),
    ({"text": "a", "routed_dp_rank": -1}, "out of range"),
    ({"text": "a", "lora_path": "x"}, "lora_path"),
    ({"text": "a", "rid": ""}, "rid"),
    ({"text": ["a", "b"], "rid": ["same", "same"]}, "Duplicate"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [99999999]}, "token_ids_logprob"),
    (b"[", "JSON"),
    (b"[]", "object"),
    (b'{"text": NaN}', "NaN"),
    (b'{"text": "a", "sampling_params": {"temperature": Infinity}}', "Infinity"),
    (b'{"text": "a", "sampling_params": {"max_new_tokens": ' + b"9" * 5000 + b"}}", "JSON"),
    (b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", "deep"),
    (b'{"text": "a", "text": "b"}', "duplicate key"),
    (b'{"text": "\xff\xfe"}', "JSON"),
]
SAMPLING: list[tuple[dict[str, Any], int]] = [
    ({"temperature": -1}, 400),
    ({"temperature": "hot"}, 400),
    ({"top_p": 0}, 400),
    ({"top_p": 1}, 200),
    ({"top_p": 1.0001}, 400),
    ({"top_p": -0.1}, 400),
    ({"min_p": 2}, 400),
    ({"repetition_penalty": 0}, 400),
    ({"repetition_penalty": 2}, 200),
    ({"repetition_penalty": 2.01}, 400),
    ({"frequency_penalty": -2}, 200),
    ({"frequency_penalty": 2.1}, 400),
    ({"presence_penalty": -2.1}, 400),
    ({"repetition_penalty": None, "frequency_penalty": None, "presence_penalty": None}, 200),
    ({"max_new_tokens": -1}, 400),
    ({"max_new_tokens": 10**9}, 400),
    ({"max_new_tokens": "8"}, 400),
    ({"min_new_tokens": 20}, 400),
    ({"stop": 1}, 400),
    ({"stop_token_ids": ["x"]}, 400),
    ({"stop_token_ids": [999999]}, 400),
    ({"bogus": 1}, 400),
    ({"n": 0}, 400),
    ({"n": -1}, 400),
    ({"n": 10**9}, 400),
    ({"logit_bias": {"49152": 1}}, 400),
    ({"logit_bias": {"-1": 1}}, 400),
    ({"logit_bias": {"abc": 1}}, 400),
    ({"logit_bias": {"1.5": 1}}, 400),
    ({"logit_bias": {"": 1}}, 400),
    ({"logit_bias": {"1": None}}, 400),
    ({"logit_bias": {"1": 101}}, 400),
    ({"logit_bias": {"1": 100}}, 200),
    ({"regex": "[unclosed"}, 400),
    ({"regex": "a+"}, 400),
    ({"json_schema": "{"}, 400),
    ({"json_schema": "{}", "regex": "a"}, 400),
    ({"ebnf": "root ::= x"}, 400),
]


@pytest.mark.parametrize(("body", "word"), BAD)
def test_a_bad_body_is_a_400_that_says_what(
    engine: EngineProcess, body: object, word: str
) -> None:  # I12, I26
    answer = post(engine, body)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]["message"]
    assert engine.is_itself()


@pytest.mark.parametrize(("sampling", "status"), SAMPLING)
def test_sampling_values_are_bounded(
    engine: EngineProcess, sampling: dict[str, Any], status: int
) -> None:  # A03, I18, I20, I21, I24
    answer = engine.generate("Hi", 2, sampling=sampling)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"].startswith("sampling_params") or any(
            name in answer.json()["error"]["message"] for name in sampling
        )


def test_a_refused_request_disturbs_no_running_one(engine: EngineProcess) -> None:  # A03
    alone = engine.text("Once upon a time", 100, sampling={"ignore_eos": True})
    work = engine.busy(100)
    for body, _ in BAD:
        assert post(engine, body).status_code == 400
    assert engine.generate("x", 2, sampling={"json_schema": "{"}).status_code == 400
    assert work.result()["text"] == alone


def test_a_body_that_is_too_large_is_refused_without_reading_it(engine: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", engine.port)) as raw:
        raw.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 209715200\r\n\r\n"
        )
        raw.settimeout(10)
        assert b"413" in raw.recv(100)


def test_other_content_types_are_refused(engine: EngineProcess) -> None:
    answer = engine.client.post("/generate", content=b'{"text":"a"}')
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]


def test_the_context_is_a_hard_bound(engine: EngineProcess) -> None:  # I15
    context = 2048
    cases = [(2047, 1, 200), (2047, 2, 400), (2048, 0, 200), (2048, 1, 400), (2049, 0, 400)]
    for prompt, new, status in cases:
        answer = engine.generate([5] * prompt, new)
        assert answer.status_code == status, (prompt, new, answer.text)
        if status == 400:
            assert str(context) in answer.json()["error"]["message"]
            assert str(prompt) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": -0.0},
        {"temperature": 1e-7},
        {"temperature": 5.0, "top_k": 1, "sampling_seed": 3},
    ],
)
def test_four_ways_to_be_greedy_agree(
    engine: EngineProcess, sampling: dict[str, Any]
) -> None:  # I16
    assert engine.text("The capital of France is", 8, sampling=sampling) == engine.text(
        "The capital of France is", 8
    )


def test_samples_are_grouped_by_prompt_in_order(engine: EngineProcess) -> None:  # I24
    single = engine.generate("Hi", 3, sampling={"n": 3}).json()
    assert len({item["text"] for item in single}) == 1
    batch = engine.client.post(
        "/generate",
        json={
            "text": ["The capital of France is", "Hello", "One two"],
            "sampling_params": {"temperature": 0, "max_new_tokens": 2, "n": 2},
        },
    ).json()
    assert len(batch) == 6
    for index in (0, 2, 4):
        assert batch[index]["text"] == batch[index + 1]["text"]
    assert batch[0]["text"] == engine.text(CANARY, 2)


def test_one_bad_member_refuses_the_whole_batch(engine: EngineProcess) -> None:  # I32
    answer = engine.client.post(
        "/generate",
        json={
            "text": ["a", "b"],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": -1}],
        },
    )
    assert answer.status_code == 400
    assert all(load["num_running_reqs"] == 0 for load in engine.loads())


def test_seeds_repeat_and_do_not_depend_on_company(engine: EngineProcess) -> None:
    ask = {"temperature": 1.0, "sampling_seed": 11}
    alone = engine.text("Once upon a time", 20, sampling=ask)
    work = engine.busy(60)
    assert engine.text("Once upon a time", 20, sampling=ask) == alone
    assert engine.text("Once upon a time", 20, sampling=ask | {"sampling_seed": 12}) != alone
    work.result()


def test_a_live_id_is_refused_and_a_finished_or_aborted_one_is_free(
    engine: EngineProcess,
) -> None:  # E05, I23
    work = engine.busy(400, rid="y")
    second = engine.generate("x", 2, rid="y")
    assert second.status_code == 400
    assert "Duplicate request ID" in second.json()["error"]["message"]
    assert engine.admin("POST", "/abort_request", json={"rid": "y"}).json() == {"aborted": 1}
    assert work.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.generate("x", 2, rid="y").status_code == 200
    assert engine.generate("x", 2, rid="y").status_code == 200


def test_abort_takes_exact_ids_and_says_how_many(engine: EngineProcess) -> None:
    """A real server aborts "ab" when asked to abort "a"."""
    work = engine.busy(200, rid="ab")
    assert engine.admin("POST", "/abort_request", json={"rid": "a"}).json() == {"aborted": 0}
    assert engine.admin("POST", "/abort_request", json={"rid": ""}).json() == {"aborted": 0}
    assert work.is_running
    assert engine.admin("POST", "/abort_request", json={"abort_all": True}).json() == {"aborted": 1}
    assert work.result()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_slot_and_pages(
    engine: EngineProcess, stream: bool
) -> None:  # E07
    body = json.dumps(
        {
            "text": "Once upon a time",
            "stream": stream,
            "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0},
        }
    ).encode()
    before = engine.generated()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", engine.port)) as raw:
            raw.sendall(
                b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            if stream:
                raw.recv(200)
            else:
                wait_until(lambda: any(r["num_running_reqs"] for r in engine.loads()))
    engine.until_no_page_is_used()
    assert engine.generated() < before + 2 * 2000
    assert engine.is_itself()


def test_a_stream_that_ends_normally_aborts_nothing(engine: EngineProcess) -> None:
    def aborted() -> float:
        lines = engine.client.get("/metrics").text.splitlines()
        name = "sglang:num_aborted_requests_total{"
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = aborted()
    for _ in range(5):
        engine.client.post(
            "/generate",
            json={"text": "Hi", "stream": True, "sampling_params": {"max_new_tokens": 3}},
        )
    time.sleep(1.0)
    assert aborted() == before


def test_streams_are_cumulative_and_end_with_done(engine: EngineProcess) -> None:
    answer = engine.client.post(
        "/generate",
        json={
            "text": "The capital of France is",
            "stream": True,
            "sampling_params": {"max_new_tokens": 6, "temperature": 0},
        },
    )
    events = events_of(answer)
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert texts[-1] == engine.text("The capital of France is", 6)


def test_log_probabilities_are_strict_json_everywhere(engine: EngineProcess) -> None:  # A05
    def strict(text: str) -> Any:
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the body"))

    sampling = {"logit_bias": {"7042": -100}, "temperature": 0.01, "top_k": 1}
    native = {
        "text": "The capital of France is",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 5,
        "sampling_params": {"max_new_tokens": 3, **sampling},
    }
    openai = {
        "model": "m",
        "max_tokens": 3,
        "logit_bias": {"7042": -100},
        "temperature": 0.01,
    }
    for stream in (False, True):
        for path, body in (
            ("/generate", native),
            ("/v1/completions", {**openai, "prompt": "The capital of France is", "logprobs": 5}),
            (
                "/v1/chat/completions",
                {
                    **openai,
                    "messages": [{"role": "user", "content": "Hi"}],
                    "logprobs": True,
                    "top_logprobs": 5,
                },
            ),
        ):
            answer = engine.client.post(path, json={**body, "stream": stream})
            assert answer.status_code == 200, answer.text
            if stream:
                for line in answer.text.splitlines():
                    if line.startswith("data: {"):
                        strict(line[6:])
            else:
                assert strict(answer.text)


def test_many_requests_at_once_give_each_its_own_text(engine: EngineProcess) -> None:
    prompts = [f"Item {index}. The capital of France is" for index in range(24)]
    alone = [engine.text(prompt, 10) for prompt in prompts]
    engine.flush()
    together = [Background(lambda p=prompt: engine.text(p, 10)) for prompt in prompts]
    assert [work.result() for work in together] == alone
