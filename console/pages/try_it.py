"""Try it: one completion at a time a person, streamed from the engine as lines of JSON.

Tokens pass through this response only: no Celery, no Channels, no database while they do.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator

import redis
from asgiref.sync import sync_to_async
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.db import connection
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST

from console.access import Act
from console.exceptions import ConsoleError
from console.models import User
from console.pages.completion import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_CHARS,
    Asked,
    EngineSaid,
    complete,
)
from console.selectors.access import rights_of
from console.selectors.engines import engine_get
from console.snapshots import redis_client

HELD_S = 15  # longer than a renewal is apart; a web process that dies frees its people by then
RENEW_S = 5.0

_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


def _refused(status: int, message: str, field: str = "") -> JsonResponse:
    return JsonResponse({"error": message, "field": field}, status=status)


class _Turn:
    """The one turn that a person has, over all web processes: a key that expires by itself."""

    def __init__(self, user_id: int) -> None:
        self._key = f"quiesce:try:{user_id}"
        self._mark = secrets.token_hex(8)
        self._renewed_at = 0.0

    def take(self) -> bool:
        """False when another completion of the same person runs. Raises redis.RedisError."""
        self._renewed_at = time.monotonic()
        return bool(redis_client().set(self._key, self._mark, nx=True, ex=HELD_S))

    async def keep(self) -> None:
        """Renew it now and then."""
        if time.monotonic() - self._renewed_at < RENEW_S:
            return
        self._renewed_at = time.monotonic()
        await sync_to_async(self._renew)()

    def _renew(self) -> None:
        try:
            redis_client().expire(self._key, HELD_S)
        except redis.RedisError:
            self._renewed_at = time.monotonic()  # Redis is away: the stream goes on

    def give(self) -> None:
        """Give it back, if it is still ours."""
        try:
            redis_client().eval(_RELEASE, 1, self._key, self._mark)
        except redis.RedisError:
            return  # it expires by itself


def _asked(request: HttpRequest) -> Asked | JsonResponse:
    prompt = request.POST.get("prompt", "")
    if not prompt.strip():
        return _refused(422, "Write a prompt.", "prompt")
    if len(prompt) > MAX_PROMPT_CHARS:
        return _refused(
            422, f"A prompt may have at most {MAX_PROMPT_CHARS:,} characters here.", "prompt"
        )
    text = request.POST.get("max_tokens", "")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_NEW_TOKENS:
        return _refused(422, f"max_tokens must be from 1 to {MAX_NEW_TOKENS}.", "max_tokens")
    return Asked(prompt, int(text), as_chat=request.POST.get("as_chat") == "on")


def _address(name: str, user: User) -> str:
    """Where the engine's HTTP is. Gives the connection back.

    Raises EngineNotFound, Forbidden, EngineSaid.
    """
    try:
        rights = rights_of(user)
        view = engine_get(name=name, rights=rights)
        rights.require(Act.TRY, view.labels)
    finally:
        if not connection.in_atomic_block:
            connection.close()  # else held for as long as the stream runs
    if not view.online or view.state is None:
        raise EngineSaid(f"{name} does not answer: {view.note}")
    return view.state.http_address


@require_POST
async def try_it(request: HttpRequest, name: str) -> HttpResponseBase:
    """Stream a completion; refusals are JSON with a status, later faults a line of the stream."""
    user = await request.auser()
    if not isinstance(user, User):
        return JsonResponse(
            {
                "error": "Your log-in has ended.",
                "login": f"/login?{REDIRECT_FIELD_NAME}=/engines/{name}",
            },
            status=401,
        )
    asked = _asked(request)
    if isinstance(asked, JsonResponse):
        return asked
    try:
        address = await sync_to_async(_address)(name, user)
    except EngineSaid as error:
        return _refused(503, error.message)
    except ConsoleError as error:
        return _refused(error.status, error.message)
    turn = _Turn(user.pk)
    try:
        is_ours = await sync_to_async(turn.take)()
    except redis.RedisError:
        return _refused(503, "Redis is away, so turns cannot be kept; nothing was sent.")
    if not is_ours:
        return _refused(409, "A completion of yours is still running. One at a time.")
    response = StreamingHttpResponse(
        _lines(turn, address, asked), content_type="application/x-ndjson; charset=utf-8"
    )
    response["X-Accel-Buffering"] = "no"
    return response


async def _lines(turn: _Turn, address: str, asked: Asked) -> AsyncIterator[bytes]:
    pieces = complete(address, asked)
    try:
        async for piece in pieces:
            yield _line({"text": piece.text, "usage": piece.usage})
            await turn.keep()
        yield _line({"done": True})
    except EngineSaid as error:
        yield _line({"error": error.message, "status": error.status})
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]  # an async generator
        await asyncio.shield(sync_to_async(turn.give)())


def _line(body: dict[str, object]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode() + b"\n"
