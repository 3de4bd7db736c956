"""A scheduler over all three tiers: FakeRunner, a real host pool, a store that follows a script."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engine.cache.attached import Opened
from engine.cache.storage.guard import Guard
from engine.cache.tiers import Tiers
from engine.ipc.messages import TierTokens
from engine.protocol import CachePolicies, PrefetchPolicy, StorageBackend, StorageView, WritePolicy
from engine.protocol.storage_configs import FileConfig
from engine.scheduler.scheduler import Scheduler
from tests.engine.scheduler.helpers import Seen, ask, make
from tests.fakes.runner import FakeRunner
from tests.fakes.storage import Script, ScriptedStorage, Shelf
from tests.fakes.waiting import PATIENCE_S

IDENTITY = b"identity-of-16-b"


MADE: list[Tiered] = []  # by the test that runs


class Tiered:
    """One rank. Time is real: copies and I/O run on threads of their own."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        host_pages: int = 128,
        page_size: int = 4,
        write: WritePolicy = WritePolicy.WRITE_THROUGH,
        prefetch: PrefetchPolicy = PrefetchPolicy.WAIT_COMPLETE,
        shelf: Shelf | None = None,
        **options: Any,
    ) -> None:
        self.runner = FakeRunner(
            num_pages=num_pages, page_size=page_size, context_len=num_pages * page_size
        )
        self.scheduler: Scheduler = make(self.runner, host_pages=host_pages, **options)
        assert self.scheduler.tiers is not None
        self.tiers: Tiers = self.scheduler.tiers
        self.tiers.set_policies(CachePolicies(write_policy=write, prefetch_policy=prefetch))
        self.shelf = shelf or Shelf()
        self.seen = Seen()
        self.number = 0
        MADE.append(self)

    def attach(self, script: Script | None = None, **config: Any) -> ScriptedStorage:
        """Attach a store over the shelf, as after a commit."""
        storage = ScriptedStorage(shelf=self.shelf, script=script)
        storage.open(time.monotonic() + PATIENCE_S)
        payload = self.tiers.host.pool.shape.payload_bytes
        settings = FileConfig(**{"prefetch_threshold": 1, "io_timeout": 60.0, **config})
        self.tiers.attach(
            Opened(
                view=StorageView(backend=StorageBackend.FILE),
                config=settings,
                config_hash="00000000",
                guard=Guard(storage, payload_bytes=payload),
                identity=IDENTITY,
            )
        )
        return storage

    def detach(self) -> str:
        """Detach and close, as after a release; returns why it could not be closed."""
        opened = self.tiers.detach()
        assert opened is not None and opened.worker is not None
        return opened.worker.close(time.monotonic() + PATIENCE_S)

    def ask(self, prompt: Sequence[int], max_new: int = 4, **options: Any) -> str:
        """Queue a request; returns its id."""
        self.number += 1
        rid = f"r{self.number}"
        ask(self.scheduler, rid, prompt, max_new, **options)
        return rid

    def step(self) -> None:
        """One step, the account checked."""
        self.scheduler.step(time.monotonic())
        self.seen.take(self.scheduler)
        self.check()

    def check(self) -> None:
        scheduler = self.scheduler
        idle = not scheduler.running and not self.tiers.host.is_copying
        assert scheduler.kv.violation(idle=idle) == ""
        assert self.tiers.violation() == ""

    def run(self) -> None:
        """Until every request has ended; copies and I/O may go on."""
        until = time.monotonic() + PATIENCE_S
        while self.scheduler.running or self.scheduler.waiting:
            assert time.monotonic() < until, f"stuck: {self.scheduler.places()}"
            self.step()
            if not self.scheduler.has_work:
                time.sleep(0.0005)

    def settle(self) -> None:
        """Until the rank is fully idle."""
        until = time.monotonic() + PATIENCE_S
        self.run()
        while not self.scheduler.places().is_idle:
            assert time.monotonic() < until, f"stuck: {self.scheduler.places()}"
            self.step()
            time.sleep(0.0005)
        self.step()

    def until_back(self) -> None:
        """Until calls to the store that were given up have come back too."""
        until = time.monotonic() + PATIENCE_S
        while self.tiers.uses_storage:
            assert time.monotonic() < until, "a call does not come back"
            self.step()
            time.sleep(0.0005)

    def generate(self, prompt: Sequence[int], max_new: int = 4, **options: Any) -> list[int]:
        """Ask and wait for the answer, and for all copies."""
        rid = self.ask(prompt, max_new, **options)
        self.settle()
        return self.seen.tokens(rid)

    def cached(self, rid: str | None = None) -> TierTokens:
        """Where the prompt of that request, or of the newest one, was found."""
        found = self.seen.items[rid or f"r{self.number}"][-1].cached
        assert found is not None
        return found

    def flush(self) -> None:
        self.scheduler.flush(empty_cache=False)
        self.check()
