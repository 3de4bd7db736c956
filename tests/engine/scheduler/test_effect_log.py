"""The effect log has each commit and each undo of each rank, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.ipc.messages import Said, Word
from engine.protocol import Outcome
from tests.engine.frontend.engine_in_memory import Engine


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def done(path: Path) -> list[tuple[object, ...]]:
    return [(line["what"], line["kind"], line["rank"], line["op"]) for line in lines(path)]


def test_each_rank_notes_its_commit_once(tmp_path: Path) -> None:
    path = tmp_path / "effects"
    engine = Engine(dp_size=2, effect_log=path)
    engine.flush("one")
    engine.settle()
    engine.flush("one")  # asked for again: answered from memory
    engine.settle()
    assert engine.results["one"].outcome is Outcome.SUCCEEDED
    assert done(path) == [("commit", "flush_cache", 0, 1), ("commit", "flush_cache", 1, 1)]
    assert [line["inc"] for line in lines(path)] == [rank.inc for rank in engine.ranks]


def test_what_did_not_happen_is_not_noted(tmp_path: Path) -> None:
    path = tmp_path / "effects"
    engine = Engine(dp_size=2, effect_log=path)
    engine.busy(1)
    engine.flush("refused")
    engine.settle()
    assert engine.results["refused"].outcome is Outcome.FAILED
    assert done(path) == []


def test_a_commit_that_is_taken_back_is_noted_twice(tmp_path: Path) -> None:
    path = tmp_path / "effects"
    engine = Engine(dp_size=2, effect_log=path)
    engine.ranks[1].weights.commit_error = "scripted"
    result = engine.update("op")
    assert result is not None and result.outcome is Outcome.FAILED
    kind = "update_weights_from_disk"
    assert done(path) == [("commit", kind, 0, 1), ("undo", kind, 0, 1)]


def test_what_cannot_be_noted_is_not_told() -> None:
    """The rank's process ends there, as with any state that it cannot prove."""
    engine = Engine(dp_size=1, effect_log=Path("/dev/full"))
    with pytest.raises(OSError, match="No space"):
        engine.flush("one")
        engine.settle()
    words = [message.word for message in engine.inbox if isinstance(message, Said)]
    assert Word.COMMITTED not in words
    assert engine.results == {}
