"""The official openai package against the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.fakes.engine_process import EngineProcess

pytestmark = pytest.mark.process
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.base}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def engine(smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """The real model: it knows the capital of France, and when it has said it all."""
    engine = EngineProcess(smollm2_dir, cpu_ext_dir, dp_size=1)
    try:
        yield engine.start()
    finally:
        engine.stop()


def test_models(client: openai.OpenAI, engine: EngineProcess) -> None:
    models = client.models.list().data
    assert len(models) == 1
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=QUESTION, temperature=0, max_completion_tokens=20
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="m", messages=QUESTION, temperature=0, max_tokens=20
    )
    stream = client.chat.completions.create(
        model="m",
        messages=QUESTION,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_completions_with_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="m",
        prompt="The capital of France is",
        max_tokens=3,
        temperature=0,
        logprobs=2,
        echo=True,
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The capital of France is Paris")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert "".join(choice.logprobs.tokens) == choice.text


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=QUESTION, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(item.top_logprobs) for item in logprobs.content] == [2, 2, 2]
    assert all(item.logprob <= 0 for item in logprobs.content)


def test_several_choices_and_stop(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="m",
        prompt=["The capital of France is", "Hello"],
        n=2,
        max_tokens=5,
        temperature=0,
        stop=["."],
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == " Paris"
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 100_000}, "maximum context"),
        ({"n": 0}, "n must be"),
        ({"messages": []}, "empty"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_bad_input_is_a_bad_request_error(
    client: openai.OpenAI, options: dict[str, object], word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        client.chat.completions.create(**{"model": "m", "messages": QUESTION, **options})  # type: ignore[call-overload]
