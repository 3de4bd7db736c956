"""Drive a Scheduler by hand: add requests, run to the end, collect what each client would see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.ipc.messages import Generate, TokenOut
from engine.ipc.sampling import SamplingParams
from engine.scheduler.scheduler import Scheduler
from tests.fakes.runner import ByteDecoder, FakeRunner


def make(runner: FakeRunner | None = None, **options: Any) -> Scheduler:
    """A scheduler over a FakeRunner that forgets freed pages."""
    return Scheduler(
        runner or FakeRunner(), decoder=ByteDecoder(), poison_freed_pages=True, **options
    )


def ask(
    scheduler: Scheduler, rid: str, prompt: Sequence[int], max_new: int = 8, **options: Any
) -> None:
    sampling = SamplingParams(max_new_tokens=max_new, temperature=0, **options.pop("sampling", {}))
    scheduler.add(
        Generate(epoch=1, inc=1, rid=rid, input_ids=list(prompt), sampling=sampling, **options), 0.0
    )


class Seen:
    """What the frontend heard of each request."""

    def __init__(self) -> None:
        self.items: dict[str, list[TokenOut]] = {}

    def take(self, scheduler: Scheduler) -> None:
        for item in scheduler.outputs:
            self.items.setdefault(item.rid, []).append(item)
        scheduler.outputs = []

    def tokens(self, rid: str) -> list[int]:
        return [token for item in self.items[rid] for token in item.token_ids]

    def finish(self, rid: str) -> str | None:
        reasons = [item.finish.type for item in self.items[rid] if item.finish]
        assert len(reasons) <= 1, f"{rid} finished {len(reasons)} times"
        return reasons[0] if reasons else None

    def cached(self, rid: str) -> int:
        return self.items[rid][-1].cached_tokens


def run(scheduler: Scheduler, seen: Seen | None = None, steps: int = 2000) -> Seen:
    """Step until nothing is left; the page account must balance at each step."""
    seen = seen or Seen()
    for _ in range(steps):
        if not scheduler.has_work:
            break
        scheduler.step(0.0)
        seen.take(scheduler)
        assert scheduler.kv.violation(idle=not scheduler.running) == ""
    seen.take(scheduler)
    return seen
