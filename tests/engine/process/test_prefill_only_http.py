"""Scoring and generating requests merged on a small real model (handed case E01)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.demo.tiny_model import write_tiny_model
from tests.fakes.engine_process import EngineProcess

pytestmark = pytest.mark.process

ARCHITECTURES = ["LlamaForCausalLM", "Qwen3ForCausalLM"]
LABELS = [7, 100]
SAME = 1e-4  # of log probabilities, should this machine run on torch operators


def tiny_engine(folder: Path, architecture: str, kernels: Path) -> EngineProcess:
    """One rank whose pool holds 26 pages of 16 tokens, and prompts come in chunks of 24."""
    return EngineProcess(
        write_tiny_model(folder / "tiny", architectures=[architecture]),
        kernels,
        dp_size=1,
        max_total_tokens=26 * 16,
        context_length=400,
        chunked_prefill_size=24,
    )


@pytest.fixture(scope="module", params=ARCHITECTURES)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cpu_ext_dir: Path
) -> Iterator[EngineProcess]:
    engine = tiny_engine(tmp_path_factory.mktemp("model"), request.param, cpu_ext_dir)
    try:
        yield engine.start()
    finally:
        engine.stop()


def prompts(seed: int, count: int, longest: int = 70) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(2, longest))] for _ in range(count)]


def ask(engine: EngineProcess, asked: list[tuple[str, list[int]]], new: int) -> list[Any]:
    """All in one call, so that they are merged in this order: "p" scores, "g" generates."""
    answer = engine.client.post(
        "/generate",
        json={
            "input_ids": [ids for _, ids in asked],
            "return_logprob": True,
            "logprob_start_len": 0,
            "token_ids_logprob": LABELS,
            "sampling_params": [
                {"max_new_tokens": new * (kind == "g"), "temperature": 0, "ignore_eos": True}
                for kind, _ in asked
            ],
        },
    )
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def logprobs(entries: list[Any]) -> list[tuple[float, int]]:
    return [(0.0 if logprob is None else logprob, token) for logprob, token, _ in entries]


def assert_same(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert found["output_ids"] == alone["output_ids"]
    one, other = found["meta_info"], alone["meta_info"]
    for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
        assert one[name] == other[name]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        assert len(one[name]) == len(other[name])
        for a, b in zip(logprobs(one[name]), logprobs(other[name]), strict=True):
            assert a == pytest.approx(b, abs=SAME)
    for name in ("input_token_ids_logprobs", "output_token_ids_logprobs"):
        assert len(one[name]) == len(other[name])
        for row, expected in zip(one[name], other[name], strict=True):
            assert (row is None) is (expected is None)
            for a, b in zip(logprobs(row or []), logprobs(expected or []), strict=True):
                assert a == pytest.approx(b, abs=SAME)


def check(engine: EngineProcess, order: str, ids: list[list[int]], new: int) -> list[Any]:
    """Each member of a merged batch is answered as alone, and no page stays held."""
    engine.flush(timeout=60)
    asked = list(zip(order, ids, strict=True))
    alone = [ask(engine, [one], new)[0] for one in asked]
    engine.flush(timeout=60)
    together = ask(engine, asked, new)
    for kind, (one, other) in zip(order, zip(together, alone, strict=True), strict=True):
        assert_same(one, other)
        assert len(one["output_ids"]) == (new if kind == "g" else 0)
        assert one["meta_info"]["finish_reason"]["type"] == "length"
        assert len(one["meta_info"]["output_token_ids_logprobs"]) == (new if kind == "g" else 1)
    engine.until_no_page_is_used()
    text = engine.client.get("/metrics").text
    (line,) = [row for row in text.splitlines() if row.startswith("sglang:kv_account_violations_")]
    assert float(line.split()[-1]) == 0
    assert engine.flush(timeout=0).json()["outcome"] == "succeeded"
    return together


@pytest.mark.parametrize("order", ["pg", "gp", "pgpgpg", "gpgpgp", "pppggg", "gggppp"])
def test_each_of_a_merged_batch_is_answered_as_alone(tiny: EngineProcess, order: str) -> None:
    check(tiny, order, prompts(len(order), len(order), longest=60), 8)


# What is taken back and asked again is the scheduler's matter, whatever the model.
@pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES[1:])],
)
def test_so_it_is_over_retractions(tmp_path: Path, cpu_ext_dir: Path, architecture: str) -> None:
    """On an engine of its own: one that has seen retractions learns to avoid them."""
    engine, retractions = tiny_engine(tmp_path, architecture, cpu_ext_dir), 0
    try:
        engine.start()
        for seed in range(3):
            order = "".join(random.Random(seed).sample("pg" * 8, 16))
            found = check(engine, order, prompts(seed, 16), 60)
            retractions += sum(item["meta_info"]["num_retractions"] for item in found)
    finally:
        engine.stop()
    assert retractions > 0
