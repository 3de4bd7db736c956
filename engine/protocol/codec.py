"""Wire form: one msgpack frame a message, bounded in size, decoded only into its own type.

Raises ProtocolError(BAD_MESSAGE) for anything else; msgspec may raise RecursionError on hostile
nesting, which is caught here too.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from engine.protocol.commands import Request
from engine.protocol.errors import ErrorCode, ProtocolError
from engine.protocol.events import Event
from engine.protocol.replies import Response

MAX_CONTROL_BYTES = 1 << 20
MAX_EVENT_BYTES = 1 << 18

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_responses = msgspec.msgpack.Decoder(Response)
_events = msgspec.msgpack.Decoder(Event)


def _decode(decoder: msgspec.msgpack.Decoder[_T], frame: bytes, limit_bytes: int) -> _T:
    if len(frame) > limit_bytes:
        raise ProtocolError(
            ErrorCode.BAD_MESSAGE, f"message of {len(frame)} bytes; the limit is {limit_bytes}"
        )
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(ErrorCode.BAD_MESSAGE, str(error) or type(error).__name__) from error


def encode_request(request: Request) -> bytes:
    """One control frame."""
    return _encoder.encode(request)


def decode_request(frame: bytes) -> Request:
    """The request in `frame`. Raises ProtocolError(BAD_MESSAGE)."""
    return _decode(_requests, frame, MAX_CONTROL_BYTES)


def encode_response(response: Response) -> bytes:
    """One control frame."""
    return _encoder.encode(response)


def decode_response(frame: bytes) -> Response:
    """The response in `frame`. Raises ProtocolError(BAD_MESSAGE)."""
    return _decode(_responses, frame, MAX_CONTROL_BYTES)


def encode_event(event: Event) -> bytes:
    """One frame of the event stream."""
    return _encoder.encode(event)


def decode_event(frame: bytes) -> Event:
    """The event in `frame`. Raises ProtocolError(BAD_MESSAGE)."""
    return _decode(_events, frame, MAX_EVENT_BYTES)
