"""Sessions of weight updates: while a part comes, nothing lapses and nobody gets in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.frontend.rank_calls import RankCalls
from engine.frontend.weight_files import WeightFiles
from engine.frontend.weight_sessions import WeightSessions
from engine.ipc.messages import Answered, Ask, ReceiveTensors
from engine.protocol import OperationKind, ProtocolError

UPLOAD = OperationKind.UPDATE_WEIGHTS_FROM_TENSOR
BROADCAST = OperationKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED
LAPSE_S = 0.05


def made(folder: Path) -> tuple[WeightSessions, list[Ask]]:
    """Sessions of an engine with one rank, and what that rank is asked."""
    config = EngineConfig(
        model_path="m", run_dir="r", journal_path="j", ext_cache_dir="e", weights_dir=str(folder)
    )
    asked: list[Ask] = []
    calls = RankCalls(epoch=1, send=lambda rank, ask: asked.append(ask), alive=lambda: {0: 1})
    return WeightSessions(WeightFiles(config), calls), asked


async def test_a_session_does_not_lapse_while_its_part_comes(tmp_path: Path) -> None:
    sessions, _ = made(tmp_path)
    session = sessions.begin("", LAPSE_S)
    assert sessions.part_of(UPLOAD, "") is session
    await asyncio.sleep(3 * LAPSE_S)
    assert sessions.current is session
    sessions.kept(session)
    await asyncio.sleep(3 * LAPSE_S)
    assert sessions.current is None


async def test_nobody_gets_in_between_while_a_part_comes(tmp_path: Path) -> None:
    sessions, _ = made(tmp_path)
    session = sessions.begin("", 60)
    sessions.part_of(UPLOAD, "")
    for act in (lambda: sessions.part_of(UPLOAD, ""), lambda: sessions.close("")):
        with pytest.raises(ProtocolError) as refused:
            act()
        assert "still coming" in refused.value.message
    sessions.kept(session)
    assert sessions.part_of(UPLOAD, "") is session
    sessions.kept(session)
    assert sessions.close("") is session


async def test_a_refused_part_changes_nothing(tmp_path: Path) -> None:
    sessions, _ = made(tmp_path)
    session = sessions.begin("me", 60)
    sessions.part_of(UPLOAD, "me")
    sessions.kept(session)
    for kind, owner in ((UPLOAD, "you"), (BROADCAST, "me")):
        with pytest.raises(ProtocolError):
            sessions.part_of(kind, owner)
    assert sessions.current is session and session.timer is not None
    sessions.abandon(session)


async def test_a_broadcast_may_take_longer_than_a_session_waits(tmp_path: Path) -> None:
    sessions, asked = made(tmp_path)
    session = sessions.begin("", LAPSE_S)
    sessions.part_of(BROADCAST, "")
    question = ReceiveTensors(
        session=session.id, group_name="g", names=["a"], dtypes=["bfloat16"], shapes=[[1]]
    )
    receiving = asyncio.create_task(sessions.receive(session, question, 1, 60.0))
    await asyncio.sleep(3 * LAPSE_S)
    answer: dict[str, Any] = {"rank": 0, "inc": 1, "epoch": 1, "n": 0, "call": asked[0].call}
    sessions.calls.answered(Answered(**answer, tensors=1, bytes=2))
    assert await receiving == ""
    assert sessions.current is session and (session.num_parts, session.bytes) == (1, 2)
    await asyncio.sleep(3 * LAPSE_S)
    assert sessions.current is None
