"""POST /generate, in its smallest form; the whole surface follows."""

from __future__ import annotations

import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.frontend.completion import Completion
from engine.frontend.http_errors import json_response
from engine.frontend.requests import NewRequest
from engine.ipc.sampling import SamplingParams


async def generate(request: Request) -> Response:
    body = msgspec.json.decode(await request.body())
    frontend, tok = request.app.state.frontend, request.app.state.tokenizer
    sampling = msgspec.convert(body.get("sampling_params", {}), SamplingParams)
    ids = body.get("input_ids") or tok.encode(body["text"])
    new = NewRequest(
        rid=body.get("rid") or uuid.uuid4().hex,
        input_ids=ids,
        sampling=sampling,
        routed_dp_rank=body.get("routed_dp_rank"),
    )
    completion = Completion(frontend.requests, tok, new)
    text, out, piece = "", [], None
    async for piece in completion.pieces():
        text += piece.text
        out += piece.token_ids
    return json_response(
        {
            "text": text,
            "output_ids": out,
            "meta_info": {
                "id": new.rid,
                "cached_tokens": piece.cached_tokens,
                "finish_reason": msgspec.to_builtins(piece.finish),
                "dp_rank": completion.active.rank,
                "prompt_tokens": len(ids),
            },
        }
    )
