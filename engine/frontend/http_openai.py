"""POST /v1/completions and /v1/chat/completions, whole or streamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.frontend import unimplemented
from engine.frontend.completion import Completion, Piece
from engine.frontend.http_errors import error_body, json_response
from engine.frontend.http_json import read_json
from engine.frontend.limits import limits_of
from engine.frontend.openai_input import (
    ChatInput,
    CommonInput,
    CompletionInput,
    chat_requests,
    completion_requests,
)
from engine.frontend.openai_output import Choice, chat_logprobs, completion_logprobs, usage
from engine.frontend.streams import DONE, EventStream, event, merged, submit_all, unless_gone
from engine.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reply:
    """What all events of one reply share, and how its choices look."""

    id: str
    kind: str
    created: int
    model: str
    n: int
    whole: Callable[[Choice], dict[str, Any]]
    part: Callable[[Choice, Piece], dict[str, Any]]
    first: Callable[[Choice], dict[str, Any]] | None = None

    def head(self, *, chunk: bool) -> dict[str, Any]:
        """Fields before the choices."""
        suffix = ".chunk" if chunk and self.kind == "chat.completion" else ""
        return {
            "id": self.id,
            "object": self.kind + suffix,
            "created": self.created,
            "model": self.model,
        }


async def completions(request: Request) -> Response:
    """Answer a completion."""
    state = request.app.state
    given = await read_json(request, CompletionInput, unimplemented.COMPLETION)
    requests = await completion_requests(given, state.tokenizer, limits_of(state.frontend))
    tokenizer: Tokenizer = state.tokenizer

    def whole(choice: Choice) -> dict[str, Any]:
        text, entries = choice.text, choice.logprobs
        if given.echo:
            prompt = tokenizer.decode(choice.new.input_ids)
            text, entries = prompt + text, choice.prompt_logprobs + entries
        logprobs = completion_logprobs(entries, tokenizer) if given.logprobs is not None else None
        return {"index": choice.index, "text": text, "logprobs": logprobs, **choice.ending()}

    def part(choice: Choice, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if given.logprobs is not None:
            logprobs = completion_logprobs(piece.logprobs, tokenizer, len(choice.text))
        return {
            "index": choice.index,
            "text": piece.text,
            "logprobs": logprobs,
            **choice.ending(),
        }

    def first(choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": tokenizer.decode(choice.new.input_ids),
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }

    reply = _reply(given, "text_completion", whole, part, first if given.echo else None)
    return await _answer(request, given, reply, submit_all(state.frontend, tokenizer, requests))


async def chat_completions(request: Request) -> Response:
    """Answer a chat."""
    state = request.app.state
    given = await read_json(request, ChatInput, unimplemented.CHAT)
    tokenizer: Tokenizer = state.tokenizer
    requests = await chat_requests(given, tokenizer, limits_of(state.frontend))

    def whole(choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "reasoning_content": None}
        logprobs = chat_logprobs(choice.logprobs, tokenizer) if given.logprobs else None
        return {"index": choice.index, "message": message, "logprobs": logprobs} | choice.ending()

    def part(choice: Choice, piece: Piece) -> dict[str, Any]:
        logprobs = chat_logprobs(piece.logprobs, tokenizer) if given.logprobs else None
        delta = {"content": piece.text, "reasoning_content": None}
        return {"index": choice.index, "delta": delta, "logprobs": logprobs} | choice.ending()

    def first(choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "delta": {"role": "assistant", "content": "", "reasoning_content": None},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }

    reply = _reply(given, "chat.completion", whole, part, first)
    return await _answer(request, given, reply, submit_all(state.frontend, tokenizer, requests))


def _reply(
    given: CommonInput,
    kind: str,
    whole: Callable[[Choice], dict[str, Any]],
    part: Callable[[Choice, Piece], dict[str, Any]],
    first: Callable[[Choice], dict[str, Any]] | None,
) -> Reply:
    return Reply(
        id=uuid.uuid4().hex,
        kind=kind,
        created=int(time.time()),
        model=given.model,
        n=1 if given.n is None else given.n,
        whole=whole,
        part=part,
        first=first,
    )


async def _answer(
    request: Request, given: CommonInput, reply: Reply, submitted: list[Completion]
) -> Response:
    choices = [Choice(index, completion) for index, completion in enumerate(submitted)]
    if given.stream:
        return EventStream(_events(given, reply, submitted, choices), submitted)
    if await unless_gone(request, _gather(submitted, choices)) is None:
        return Response(status_code=499)  # nobody is left to read it
    for choice in choices:
        error = choice.error()
        if error is not None:
            raise error
    body = reply.head(chunk=False)
    body["choices"] = [reply.whole(choice) for choice in choices]
    body["usage"] = usage(choices, reply.n)
    body["metadata"] = _metadata(choices[0])
    return json_response(body)


def _metadata(choice: Choice) -> dict[str, Any]:
    """Which weights made the answer, and where."""
    return {
        "weight_version": choice.weight_version,
        "weight_versions": choice.weight_versions,
        "dp_rank": choice.dp_rank,
    }


async def _gather(submitted: list[Completion], choices: list[Choice]) -> bool:
    async for index, piece in merged(submitted):
        choices[index].add(piece)
    return True


async def _events(
    given: CommonInput, reply: Reply, submitted: list[Completion], choices: list[Choice]
) -> AsyncIterator[bytes]:
    head = reply.head(chunk=True)
    if reply.kind == "text_completion":
        head["usage"] = None
    started: set[int] = set()
    async for index, piece in merged(submitted):
        choice = choices[index]
        if reply.first is not None and index not in started:
            started.add(index)
            yield event(head | {"choices": [reply.first(choice)]})
        choice.finish = piece.finish
        part = reply.part(choice, piece)
        choice.add(piece)
        error = choice.error()
        if error is not None:
            yield event({"error": error_body(error, "openai")})
            break
        if piece.text or piece.finish is not None or piece.logprobs:
            yield event(head | {"choices": [part]})
    if given.includes_usage:
        told = {"usage": usage(choices, reply.n), "metadata": _metadata(choices[0])}
        yield event(head | {"choices": []} | told)
    yield DONE
