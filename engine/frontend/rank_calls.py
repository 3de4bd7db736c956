"""Questions to ranks beside operations: asked of each, answered by each, with an end in time.

Pure but for its futures; all calls come from one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.ipc.messages import Answered, Ask, Question

_GRACE_S = 2.0  # for the answer of a rank that used all the time it had


@dataclass(slots=True)
class _Call:
    rank: int
    inc: int
    future: asyncio.Future[Answered]


class RankCalls:
    """`send` hands a message to a rank, `alive` says which incarnations live."""

    def __init__(
        self,
        *,
        epoch: int,
        send: Callable[[int, Ask], None],
        alive: Callable[[], Mapping[int, int]],
    ) -> None:
        self._epoch = epoch
        self._send = send
        self._alive = alive
        self._numbers = itertools.count(1)
        self._open: dict[int, _Call] = {}

    async def ask(
        self, question: Question, *, timeout_s: float, grace_s: float = _GRACE_S
    ) -> dict[int, Answered]:
        """Every living rank's answer. One that dies, or is silent, answers with an error.

        `grace_s` is what a rank may take beyond the time that it is given.
        """
        calls = [
            self._ask(rank, inc, question, timeout_s, grace_s)
            for rank, inc in self._alive().items()
        ]
        answers = await asyncio.gather(*calls)
        return {answer.rank: answer for answer in answers}

    async def _ask(
        self, rank: int, inc: int, question: Question, timeout_s: float, grace_s: float
    ) -> Answered:
        number = next(self._numbers)
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._open[number] = _Call(rank, inc, future)
        self._send(
            rank,
            Ask(epoch=self._epoch, inc=inc, call=number, question=question, timeout_s=timeout_s),
        )
        try:
            async with asyncio.timeout(timeout_s + grace_s):
                return await future
        except TimeoutError:
            return self._without(rank, inc, number, f"rank {rank} did not answer in time")
        finally:
            self._open.pop(number, None)

    def _without(self, rank: int, inc: int, number: int, error: str) -> Answered:
        return Answered(rank=rank, inc=inc, epoch=self._epoch, n=0, call=number, error=error)

    def answered(self, message: Answered) -> None:
        """A rank's answer; one that nobody waits for is dropped."""
        call = self._open.get(message.call)
        fits = call is not None and (call.rank, call.inc) == (message.rank, message.inc)
        if call is not None and fits and not call.future.done():
            call.future.set_result(message)

    def on_processes(self, alive: Mapping[int, int]) -> None:
        """A rank that is gone answers nothing more."""
        for number, call in self._open.items():
            if alive.get(call.rank) != call.inc and not call.future.done():
                call.future.set_result(
                    self._without(call.rank, call.inc, number, f"rank {call.rank} died")
                )
