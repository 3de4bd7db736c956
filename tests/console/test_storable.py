"""Engines may say anything; what is stored of it, every database takes."""

from __future__ import annotations

import pytest

from console.gateways.storable import storable
from engine.protocol import (
    Answer,
    Failure,
    Mode,
    OperationKind,
    OperationResult,
    Outcome,
    RankResult,
    RankState,
    Response,
)
from engine.protocol.errors import ErrorCode


def answer(text: str) -> Response:
    rank = RankResult(dp_rank=0, state=RankState.FAILED, message=text)
    result = OperationResult(
        op_id="1", kind=OperationKind.FLUSH_CACHE, mode=Mode.WAIT, outcome=Outcome.FAILED,
        message=text, ranks=[rank], started_clock_s=0.0, finished_clock_s=1.0, epoch="1-x",
    )  # fmt: skip
    return Response(id="1", body=Answer(result=result))


@pytest.mark.parametrize("text", ["plain", "caf\u00e9", "a\nb", "\u202e"])
def test_what_can_be_stored_is_the_same_object(text: str) -> None:
    said = answer(text)
    assert storable(said) is said


def test_a_nul_is_marked_wherever_it_stands() -> None:
    assert storable(answer("a\0b\0")) == answer("a\ufffdb\ufffd")
    refused = Failure(code=ErrorCode.INTERNAL, message="\0", retryable=False)
    assert storable(refused).message == "\ufffd"
