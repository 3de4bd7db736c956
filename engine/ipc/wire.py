"""Encode and decode private messages: one msgpack frame each, only into the expected union.

A frame that does not decode is a fault of ours (same code on both ends), so it raises.
"""

from __future__ import annotations

import msgspec

from engine.ipc.messages import (
    FromRankMessage,
    Processes,
    ToLaunchMessage,
    ToRankMessage,
)

encode = msgspec.msgpack.Encoder().encode
_to_rank = msgspec.msgpack.Decoder(ToRankMessage)
_from_rank = msgspec.msgpack.Decoder(FromRankMessage)
_to_launch = msgspec.msgpack.Decoder(ToLaunchMessage)
_processes = msgspec.msgpack.Decoder(Processes)


def decode_to_rank(frame: bytes) -> ToRankMessage:
    """What a rank received. Raises msgspec.DecodeError."""
    return _to_rank.decode(frame)


def decode_from_rank(frame: bytes) -> FromRankMessage:
    """What the frontend received from a rank. Raises msgspec.DecodeError."""
    return _from_rank.decode(frame)


def decode_to_launch(frame: bytes) -> ToLaunchMessage:
    """What `launch` received. Raises msgspec.DecodeError."""
    return _to_launch.decode(frame)


def decode_processes(frame: bytes) -> Processes:
    """What the frontend received from `launch`. Raises msgspec.DecodeError."""
    return _processes.decode(frame)
