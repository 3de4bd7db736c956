"""A reader gets every token once, in order, however late it asks."""

from __future__ import annotations

import asyncio

import pytest

from engine.frontend.token_queue import TokenQueue
from engine.ipc.messages import FinishReason, LogprobEntry, TokenOut


def out(start: int, *, version: str = "v1", finish: str | None = None) -> TokenOut:
    return TokenOut(
        rid="1",
        start=start,
        token_ids=[] if finish == "abort" else [start],
        logprobs=[] if finish == "abort" else [LogprobEntry(token_id=start, logprob=-1.0)],
        cached_tokens=0 if finish == "abort" else 16,
        weight_version="" if finish == "abort" else version,
        finish=FinishReason(type=finish) if finish else None,
    )


def test_a_prompt_reader_gets_each_step() -> None:
    async def main() -> None:
        queue = TokenQueue()
        for index in range(3):
            queue.put(out(index))
            assert (await queue.get()).token_ids == [index]
        assert queue.is_empty

    asyncio.run(main())


def test_what_waits_is_joined_in_order() -> None:
    queue = TokenQueue()
    for index in range(5):
        queue.put(out(index))
    queue.put(out(5, finish="length"))
    item = queue.get_nowait()
    assert (item.start, item.token_ids) == (0, [0, 1, 2, 3, 4, 5])
    assert [entry.token_id for entry in item.logprobs] == item.token_ids
    assert item.finish is not None
    assert queue.is_empty
    with pytest.raises(IndexError):
        queue.get_nowait()


def test_tokens_of_other_weights_are_not_joined() -> None:
    queue = TokenQueue()
    for index, version in enumerate(["v1", "v1", "v2"]):
        queue.put(out(index, version=version))
    queue.put(out(3, finish="abort"))
    first, second = queue.get_nowait(), queue.get_nowait()
    assert (first.token_ids, first.weight_version) == ([0, 1], "v1")
    assert (second.token_ids, second.weight_version) == ([2], "v2")
    assert second.cached_tokens == 16
    assert second.finish is not None


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> None:
        queue = TokenQueue()
        reader = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        assert not reader.done()
        queue.put(out(0))
        assert (await reader).token_ids == [0]

    asyncio.run(main())
