"""A completion of an engine, streamed: its HTTP `/generate`, as deltas. No Django, no database.

One connection, closed when the reader goes away, which makes the engine abort the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any  # the engine's JSON
from urllib.parse import urlsplit

import httptools

MAX_PROMPT_CHARS = 16_000
MAX_NEW_TOKENS = 256
CONNECT_S = 2.0
SILENCE_S = 60.0  # a held request may wait for an operation's deadline
TOTAL_S = 180.0
MAX_LINE_BYTES = 1 << 20


class EngineSaid(Exception):
    """The engine refused, or went away; the message is shown as it is."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


@dataclass(frozen=True)
class Piece:
    """New text, and the usage so far."""

    text: str
    usage: dict[str, Any]


class _Reader:
    """httptools' callbacks: status, body bytes, end."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.is_done = False

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.is_done = True


@dataclass(frozen=True)
class Asked:
    """What to send. `as_chat` puts the model's chat template around the prompt, as its users do."""

    prompt: str
    max_new_tokens: int
    as_chat: bool = True


def _request_bytes(host: str, asked: Asked) -> bytes:
    if asked.as_chat:
        path = "/v1/chat/completions"
        document: dict[str, Any] = {
            "messages": [{"role": "user", "content": asked.prompt}],
            "temperature": 0,
            "max_tokens": asked.max_new_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    else:
        path = "/generate"
        sampling = {"temperature": 0, "max_new_tokens": asked.max_new_tokens}
        document = {"text": asked.prompt, "sampling_params": sampling, "stream": True}
    body = json.dumps(document).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _body(
    reader: asyncio.StreamReader, parser: httptools.HttpResponseParser, sink: _Reader
) -> AsyncIterator[bytes]:
    """Chunks of the answer's body until its end."""
    while True:
        while sink.chunks:
            yield sink.chunks.popleft()
        if sink.is_done:
            return
        data = await asyncio.wait_for(reader.read(1 << 16), SILENCE_S)
        if not data:
            return
        parser.feed_data(data)


def _error_text(raw: bytes) -> str:
    text = raw.decode(errors="replace").strip()
    try:
        body = json.loads(text)
        return str(body["error"]["message"] if "error" in body else body["message"])
    except (ValueError, KeyError, TypeError):
        return text


def _usage(meta: dict[str, Any], first_s: float) -> dict[str, Any]:
    finish = meta.get("finish_reason")
    return {
        "prompt_tokens": meta.get("prompt_tokens"),
        "cached_tokens": meta.get("cached_tokens"),
        "completion_tokens": meta.get("completion_tokens"),
        "dp_rank": meta.get("dp_rank"),
        "weight_version": meta.get("weight_version"),
        "ttft_ms": round(1000 * first_s),
        "finish_reason": finish.get("type") if isinstance(finish, dict) else finish,
    }


def _chat_piece(body: dict[str, Any], first_s: float) -> Piece:
    """One event of a chat: text as it comes; numbers, and where it ran, with the last."""
    text, finish = "", None
    for choice in body["choices"]:
        text += (choice.get("delta") or {}).get("content") or ""
        finish = choice.get("finish_reason")
    usage, metadata = body.get("usage") or {}, body.get("metadata") or {}
    if not usage:
        return Piece(text, {"finish_reason": finish} if finish else {})
    details = usage.get("prompt_tokens_details") or {}
    meta = {**usage, **metadata, "cached_tokens": details.get("cached_tokens")}
    found = _usage(meta, first_s)
    del found["finish_reason"]  # came with the text's end
    return Piece(text, found)


async def complete(address: str, asked: Asked) -> AsyncIterator[Piece]:
    """Pieces of the engine's answer. Raises EngineSaid; closes the connection however it ends."""
    url = urlsplit(address if "://" in address else f"http://{address}")
    host, port = url.hostname or "", url.port or 80
    started = time.monotonic()
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise EngineSaid(f"{address} does not answer: {error or 'timed out'}") from error
    try:
        writer.write(_request_bytes(url.netloc, asked))
        async with asyncio.timeout(TOTAL_S):
            await writer.drain()
            async for piece in _pieces(reader, started):
                yield piece
    except TimeoutError as error:
        raise EngineSaid("the engine stopped answering; nothing more is awaited") from error
    except (OSError, httptools.HttpParserError) as error:
        raise EngineSaid(f"the engine’s answer broke off: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pieces(reader: asyncio.StreamReader, started: float) -> AsyncIterator[Piece]:
    sink = _Reader()
    parser = httptools.HttpResponseParser(sink)
    shown, first_s, buffer = "", 0.0, b""
    is_whole = False
    async for chunk in _body(reader, parser, sink):
        buffer += chunk
        if parser.get_status_code() != 200:
            continue
        if len(buffer) > MAX_LINE_BYTES:
            raise EngineSaid("the engine sent a line that is too long")
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                is_whole = True
                continue
            body = json.loads(data)
            if "error" in body:
                raise EngineSaid(str(body["error"].get("message", body["error"])))
            first_s = first_s or time.monotonic() - started
            if "choices" in body:
                yield _chat_piece(body, first_s)
                continue
            text = str(body.get("text", ""))
            yield Piece(text[len(shown) :], _usage(body.get("meta_info", {}), first_s))
            shown = text
    status = parser.get_status_code()
    if status != 200:
        raise EngineSaid(_error_text(buffer) or f"status {status}", status)
    if not is_whole:
        raise EngineSaid("the engine’s answer broke off before its end")
