"""POST /v1/score on a real engine: the model's own next-token probabilities, and strict input."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.fakes.engine_process import Background, EngineProcess
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

QUERY = "Is this city the capital of France? "
ITEMS = ["Paris.", "London.", "A long item about the river Seine, its bridges and its boats."]
LABELS = [7042, 253, 1, 49151]


def post(engine: EngineProcess, **body: Any) -> httpx.Response:
    return engine.client.post(
        "/v1/score", json={"query": QUERY, "items": ITEMS, "label_token_ids": LABELS} | body
    )


def scores(engine: EngineProcess, **body: Any) -> list[list[float]]:
    answer = post(engine, **body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["scores"])


@pytest.mark.filterwarnings("default")  # transformers' own are none of ours
@pytest.mark.parametrize("item_first", [False, True])
def test_scores_are_transformers_next_token_probabilities(
    engine: EngineProcess, small_model: Path, smollm2_dir: Path, item_first: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    texts = [item + QUERY if item_first else QUERY + item for item in ITEMS]
    among_all, among_labels = [], []
    for text in texts:
        with torch.inference_mode():
            logits = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
        among_all.append(logits.softmax(0)[LABELS].tolist())
        among_labels.append(logits[LABELS].softmax(0).tolist())
    found = scores(engine, item_first=item_first)
    assert found == [pytest.approx(row, rel=1e-3, abs=1e-9) for row in among_all]
    found = scores(engine, item_first=item_first, apply_softmax=True)
    assert found == [pytest.approx(row, rel=1e-3, abs=1e-9) for row in among_labels]
    assert all(math.isclose(sum(row), 1.0) for row in found)


def test_the_reply_has_sglangs_shape(engine: EngineProcess) -> None:
    body = post(engine, model="mine").json()
    assert len(body["scores"]) == 3 and {len(row) for row in body["scores"]} == {4}
    assert (body["object"], body["model"]) == ("scoring", "mine")
    usage = body["usage"]
    assert usage["completion_tokens"] == 0 and usage["total_tokens"] == usage["prompt_tokens"] > 30
    assert body["metadata"]["weight_versions"] == ["default"] * 3


def test_text_and_token_ids_score_alike(engine: EngineProcess) -> None:
    by_text = scores(engine, query="The capital of", items=[" France is", " Italy is"])
    ids = [
        engine.client.post(
            "/generate",
            json={
                "text": text,
                "return_prompt_token_ids": True,
                "sampling_params": {"max_new_tokens": 0},
            },
        ).json()["prompt_token_ids"]
        for text in ("The capital of", " France is", " Italy is")
    ]
    assert scores(engine, query=ids[0], items=ids[1:]) == by_text
    assert scores(engine, query=ids[1], items=[ids[0]], item_first=True) == by_text[:1]
    assert scores(engine, query="The capital of", items=" France is") == by_text[:1]
    assert scores(engine, query="", items=["The capital of France is"]) == by_text[:1]
    assert scores(engine, query=[], items=[ids[0] + ids[1]]) == by_text[:1]


def test_labels_may_repeat_and_keep_their_order(engine: EngineProcess) -> None:
    a, b = scores(engine, items="Paris.", label_token_ids=[7042, 253])[0]
    assert scores(engine, items="Paris.", label_token_ids=[253, 7042, 253])[0] == [b, a, b]


def test_many_items_share_their_query_and_score_as_alone(engine: EngineProcess) -> None:
    query = [100 + i for i in range(256)]
    items = [[300 + i, 5, 7 * i + 11] for i in range(40)]
    together = post(engine, query=query, items=items).json()
    assert together["usage"]["prompt_tokens"] == 40 * 259
    again = post(engine, query=query, items=items).json()
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 20 * 256  # a rank that is balanced with computes the query anew
    assert again["scores"] == together["scores"]
    for index in (0, 17, 39):
        assert (
            scores(engine, query=query, items=items[index : index + 1])
            == (together["scores"][index : index + 1])
        )


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"items": []}, "items", "empty"),
    ({"query": "", "items": ["a", ""]}, "items", "empty"),
    ({"query": [], "items": [[]]}, "items", "empty"),
    ({"items": ["a", [1]]}, "items", "all text or all lists"),
    ({"items": [[1]]}, "items", "all text or all lists"),
    ({"query": [1]}, "items", "all text or all lists"),
    ({"query": [1], "items": "a"}, "items", "all text or all lists"),
    ({"query": [1], "items": [[49152]]}, "items", "token ids must be in [0, 49152)"),
    ({"query": [-1], "items": [[1]]}, "items", "token ids must be in"),
    ({"query": [5] * 2048, "items": [[1]]}, "items", "2049 tokens"),
    ({"items": ["a"] * 1025}, "items", "1024"),
    ({"items": None}, "items", "items"),
    ({"query": None}, "query", "query"),
    ({"items": [1]}, "items[0]", "items"),
    ({"label_token_ids": []}, "label_token_ids", "empty"),
    ({"label_token_ids": [49152]}, "label_token_ids", "[0, 49152)"),
    ({"label_token_ids": [-1]}, "label_token_ids", "[0, 49152)"),
    ({"label_token_ids": [1.5]}, "label_token_ids[0]", "int"),
    ({"label_token_ids": [True]}, "label_token_ids[0]", "int"),
    ({"label_token_ids": [1] * 5000, "items": ["a"] * 1000}, "label_token_ids", "4194304"),
    ({"apply_softmax": 1}, "apply_softmax", "bool"),
    ({"temperature": 2.0}, "temperature", "not implemented"),
    ({"bogus": 1}, "bogus", "bogus"),
]


@pytest.mark.parametrize(("changes", "param", "word"), BAD)
def test_a_bad_body_is_a_400_that_says_what(
    engine: EngineProcess, changes: dict[str, Any], param: str, word: str
) -> None:
    answer = post(engine, **changes)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["object"], body["param"]) == ("error", param)
    assert word in body["message"]


@pytest.mark.parametrize("name", ["query", "items", "label_token_ids"])
def test_what_is_missing_is_named(engine: EngineProcess, name: str) -> None:
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
    del body[name]
    answer = engine.client.post("/v1/score", json=body)
    assert answer.status_code == 400
    assert name in answer.json()["message"]


def test_a_score_may_fill_the_context_and_leaves_no_page(engine: EngineProcess) -> None:
    assert len(scores(engine, query=[5] * 2047, items=[[1], [2]])) == 2
    engine.until_no_page_is_used()


def test_an_aborted_item_is_an_error_and_no_score(engine: EngineProcess) -> None:
    items = [[(7 * i + j) % 40000 for j in range(1500)] for i in range(60)]
    work = Background(lambda: post(engine, query=[], items=items))
    wait_until(lambda: any(r["num_running_reqs"] for r in engine.loads()))
    assert engine.admin("POST", "/abort_request", json={"abort_all": True}).json()["aborted"] > 0
    answer = work.result()
    assert answer.status_code == 503, answer.text
    assert "Abort" in answer.json()["message"]
    engine.until_idle()
    assert len(scores(engine)) == 3


def test_a_client_that_leaves_ends_its_items(engine: EngineProcess) -> None:
    items = [[(7 * i + j) % 40000 for j in range(1500)] for i in range(60)]
    body = json.dumps({"query": [], "items": items, "label_token_ids": LABELS}).encode()
    with socket.create_connection(("127.0.0.1", engine.port)) as raw:
        raw.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        wait_until(lambda: any(r["num_running_reqs"] for r in engine.loads()))
    engine.until_no_page_is_used()


def test_scores_that_no_memory_should_hold_are_refused_on_generate_too(
    engine: EngineProcess,
) -> None:
    answer = engine.client.post(
        "/generate",
        json={
            "input_ids": [[5]] * 1024,
            "return_logprob": True,
            "token_ids_logprob": list(range(5000)),
            "sampling_params": {"max_new_tokens": 0},
        },
    )
    assert answer.status_code == 400
    assert "4194304" in answer.json()["error"]["message"]
