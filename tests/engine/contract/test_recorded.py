"""Exchanges recorded from a real SGLang server, replayed against our engine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.engine.contract import scenes, storage_scenes
from tests.engine.contract.replay import RECORDED, compare, compare_streams, is_greedy, replay
from tests.engine.contract.verdicts import BETTER, OUT_PATHS, OUT_PREFIXES, SAME, STORY
from tests.fakes.engine_process import EngineProcess

ROOT = Path(__file__).parents[3]


def is_out(name: str) -> bool:
    path = RECORDED[name].get("path") or ""
    return name.startswith(OUT_PREFIXES) or path.startswith(OUT_PATHS) or not path


def test_each_recorded_exchange_has_exactly_one_verdict() -> None:
    for same in (SAME, scenes.SAME, storage_scenes.SAME):
        assert len(same) == len(set(same))
    told = (scenes.SAME, scenes.BETTER, storage_scenes.SAME, storage_scenes.BETTER)
    verdicts: tuple[Collection[str], ...] = (SAME, BETTER, STORY, *told)
    for name in RECORDED:
        given = [name in names for names in verdicts]
        if not any(given):
            given.append(is_out(name))
        assert sum(given) == 1, f"{name}: {given}"
    unknown = {name for names in verdicts for name in names} - set(RECORDED)
    assert not unknown


def test_each_story_is_told_by_a_test_that_exists() -> None:
    for test in set(STORY.values()):
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), test


@pytest.fixture(scope="module")
def recorded_like(smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[EngineProcess]:
    """One rank and a context of 1024 tokens, as the recording had."""
    engine = EngineProcess(smollm2_dir, cpu_ext_dir, dp_size=1, context_length=1024)
    try:
        yield engine.start()
    finally:
        engine.stop()


@pytest.mark.process
@pytest.mark.parametrize("name", SAME)
def test_answered_like_the_real_server(recorded_like: EngineProcess, name: str) -> None:
    row = RECORDED[name]
    answer = replay(recorded_like, row)
    assert answer.status_code == row["status"], answer.text
    if row.get("sse_lines"):
        compare_streams(row, answer)
    elif row.get("body_text"):
        if row["method"] in ("GET", "POST") and "flush" in row["path"]:
            assert answer.text == row["body_text"]
    elif row.get("body") is not None:
        compare(row["body"], answer.json(), greedy=is_greedy(row))


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(BETTER))
def test_answered_better_than_the_real_server(recorded_like: EngineProcess, name: str) -> None:
    status, why = BETTER[name]
    answer = replay(recorded_like, RECORDED[name])
    assert answer.status_code == status, f"{why}: {answer.text}"
    if status == 400 and not RECORDED[name]["path"].startswith("/flush"):
        body = answer.json()
        assert body.get("message") or body["error"]["message"]
    assert recorded_like.text("The capital of France is", 1) == " Paris"
