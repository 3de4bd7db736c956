"""POST /generate: one prompt or a batch, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from engine.frontend import unimplemented
from engine.frontend.completion import Completion
from engine.frontend.generate_input import Asked, GenerateInput, requests_of
from engine.frontend.http_errors import json_response
from engine.frontend.http_json import read_json
from engine.frontend.limits import limits_of
from engine.frontend.native_output import NativeOutput
from engine.frontend.streams import (
    DONE,
    EventStream,
    event,
    merged,
    submit_all,
    unless_gone,
)
from engine.tokens.tokenizer import Tokenizer


async def generate(request: Request) -> Response:
    """Answer a native request."""
    state = request.app.state
    given = await read_json(request, GenerateInput, unimplemented.GENERATE)
    asked = await requests_of(given, state.tokenizer, limits_of(state.frontend))
    completions = submit_all(state.frontend, state.tokenizer, asked.requests)
    outputs = [_output(asked, completion, state.tokenizer) for completion in completions]
    if given.stream:
        return EventStream(_events(asked, completions, outputs), completions)
    if await unless_gone(request, _gather(completions, outputs)) is None:
        return Response(status_code=499)  # nobody is left to read it
    if asked.is_single:
        error = outputs[0].error()
        if error is not None:
            raise error
        return json_response(outputs[0].body())
    return json_response([output.body() for output in outputs])


def _output(asked: Asked, completion: Completion, tokenizer: Tokenizer) -> NativeOutput:
    token_text: Callable[[int], str] | None = None
    if asked.input.return_text_in_logprobs:

        def token_text(token_id: int) -> str:
            return tokenizer.decode([token_id], skip_special_tokens=False)

    return NativeOutput(
        completion,
        token_text=token_text,
        with_prompt_ids=asked.input.return_prompt_token_ids,
    )


async def _gather(completions: list[Completion], outputs: list[NativeOutput]) -> bool:
    async for index, piece in merged(completions):
        outputs[index].add(piece)
    return True


async def _events(
    asked: Asked, completions: list[Completion], outputs: list[NativeOutput]
) -> AsyncIterator[bytes]:
    async for index, piece in merged(completions):
        output = outputs[index]
        output.add(piece)
        if not output.is_due():
            continue
        error = output.error()
        body: dict[str, Any] = output.body()
        if error is not None:
            kind = "service_unavailable" if error.status == 503 else "internal_error"
            retryable = error.status == 503
            body = {
                "error": {
                    "message": error.message,
                    "type": kind,
                    "code": error.status,
                    "retryable": retryable,
                }
            }
        if not asked.is_single:
            body["index"] = index
        yield event(body)
    yield DONE
