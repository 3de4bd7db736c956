"""A client of /v1/completions that costs little: the engine and it share two cores.

One connection a request; when each piece came is noted, and the answer is read to its end.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Token ids in, `max_tokens` out, greedy, whatever the model wants to say.

    Several prompts in one call only for who cannot join them itself.
    """

    prompt: list[int] | list[list[int]]
    max_tokens: int
    is_streamed: bool = False

    def body(self, model: str) -> bytes:
        """As each engine takes it."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.is_streamed,
        }
        if self.is_streamed:
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()


@dataclass(slots=True)
class Told:
    """What came back, by `time.perf_counter`."""

    sent_at: float
    pieces_at: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    num_tokens: int = 0

    @property
    def first_s(self) -> float:
        """Until the first piece."""
        return self.pieces_at[0] - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces."""
        return [b - a for a, b in zip(self.pieces_at, self.pieces_at[1:], strict=False)]


async def complete(port: int, model: str, asked: Asked) -> Told:
    """Ask and wait for the end. Raises AssertionError for anything but all the tokens."""
    return await asyncio.wait_for(_complete(port, model, asked), ANSWER_TIMEOUT_S)


async def _complete(port: int, model: str, asked: Asked) -> Told:
    body = asked.body(model)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        told = Told(time.perf_counter())
        writer.write(head.encode() + body)
        status = await reader.readline()
        data = bytearray()
        while piece := await reader.read(1 << 16):
            if asked.is_streamed and b'"text"' in piece:
                told.pieces_at.append(time.perf_counter())
            data += piece
        told.ended_at = time.perf_counter()
    finally:
        writer.close()
    assert b" 200 " in status, bytes(data[-500:])
    told.num_tokens = _completion_tokens(bytes(data))
    assert told.num_tokens == asked.max_tokens, f"{told.num_tokens} of {asked.max_tokens} tokens"
    return told


def _completion_tokens(data: bytes) -> int:
    """The last count in an answer, whole or streamed."""
    _, _, rest = data.rpartition(b'"completion_tokens":')
    digits = rest.lstrip()[:10].split(b",")[0].split(b"}")[0]
    return int(digits)


async def all_at_once(port: int, model: str, asked: list[Asked]) -> float:
    """Seconds until the last of them is answered."""
    start = time.perf_counter()
    await asyncio.gather(*(complete(port, model, one) for one in asked))
    return time.perf_counter() - start
