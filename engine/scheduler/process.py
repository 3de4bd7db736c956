"""One rank process: loads the model, then loops receive → decide → step → send.

The only module of the scheduler that has a clock and a socket. An exception here ends the process:
`launch` starts another one, which converges before it serves.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.cache.keeper import StorageKeeper
from engine.cache.opening import Settings
from engine.cache.storage.base import Site
from engine.cache.storage.keys import identity
from engine.cache.storage.settings import SettingsFolder
from engine.config import CANNOT_START, EngineConfig, read
from engine.ipc.messages import (
    AbortRequest,
    Answered,
    Ask,
    Generate,
    Loading,
    Ready,
    Report,
    Said,
    Tokens,
    ToRankMessage,
)
from engine.log import get_logger, setup
from engine.memory.available import available_bytes
from engine.memory.device_memory import default_kv_bytes, device_of_rank
from engine.models.errors import ModelError
from engine.protocol import Places, StorageView
from engine.runner.model_runner import ModelRunner
from engine.scheduler.control import RankHost
from engine.scheduler.effect_log import EffectLog, NoteEffect, nothing_recorded
from engine.scheduler.mailbox import Mailbox
from engine.scheduler.participant import Participant
from engine.scheduler.questions import Questions
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.stats import rank_stats
from engine.tokens.tokenizer import Tokenizer, TokenizerError
from engine.weights.background import Background
from engine.weights.group import TrainerGroups
from engine.weights.keeper import WeightKeeper

log = get_logger()

_IDLE_POLL_S = 0.1
_BUSY_POLL_S = 0.01  # while something runs beside serving
_STAGING_REPORT_S = 0.25
_DEFAULT_KV_SHARE = 0.08  # of the machine's memory, over all ranks
_MAX_DEFAULT_KV_BYTES = 2 << 30
_MAX_HOST_SHARE = 0.8  # of the memory that is left, over all ranks


class RankProcess:
    """Everything one rank holds."""

    def __init__(self, config: EngineConfig, *, rank: int, inc: int) -> None:
        self._config, self._rank, self._inc = config, rank, inc
        self._mailbox = Mailbox(config.ranks_address, rank=rank, inc=inc)
        self._n = 0
        self._loading("loading the model", 0.1)
        runner = self._runner = make_runner(config, rank)
        self._loading("ready", 1.0)
        self._scheduler = Scheduler(
            runner,
            chunked_prefill_tokens=config.chunked_prefill_tokens,
            max_running=config.max_running_requests,
            decoder=Tokenizer(config.model_path),
            poison_freed_pages=config.poison_freed_pages,
            host_pages=_host_pages(config, runner),
            host_layout=config.host_layout,
            wake=self._mailbox.wake,
            is_open=lambda: self._participant.is_open,
            is_stopped=lambda: self._participant.is_stopped,
        )
        self._background = Background()
        groups = TrainerGroups(rank)
        self._weights = WeightKeeper(
            runner,
            self._background,
            groups,
            start_dir=Path(config.model_path),
            own_dir=Path(config.weights_dir),
            roots=[Path(root) for root in config.weights_roots],
        )
        self._questions = Questions(runner, self._background, groups, self._answer)
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._storage = self._make_storage(runner)
        host = RankHost(self._scheduler, self._weights, self._storage, _record(config, rank, inc))
        self._start_weights = runner.weights
        self._participant = Participant(
            rank=rank, inc=inc, host=host, times=config.times, say=self._say
        )
        host.participant = self._participant
        self._reported_at = 0.0
        self._reported: tuple[Places | None, object] = (None, None)
        self._epoch = 0
        log.info(
            "rank ready", num_pages=runner.num_pages, kernels=runner.kernels, dtype=config.dtype
        )

    def run(self) -> None:
        """Serve until the process is ended."""
        times, scheduler, mailbox = self._config.times, self._scheduler, self._mailbox
        while True:
            now = time.monotonic()
            for message in mailbox.receive():
                self._take(message, now)
            self._background.poll()
            self._poll_storage()
            self._participant.tick(now)
            self._step(now)
            self._send_outputs()
            self._participant.tick(now)  # what was in flight is out: perhaps the rank is idle
            if not scheduler.running:
                scheduler.check_invariants()
            self._report_if_due(time.monotonic(), times.heartbeat_s)
            mailbox.flush()
            if not scheduler.has_work:
                is_busy = self._background.is_busy or bool(scheduler.waiting)
                poll_s = _BUSY_POLL_S if is_busy else _IDLE_POLL_S
                mailbox.wait(min(poll_s, times.heartbeat_s))

    def _make_storage(self, runner: ModelRunner) -> StorageKeeper:
        config = self._config
        roots = tuple(Path(root) for root in config.storage_roots)
        folder = SettingsFolder(Path(config.storage_dir), roots, config.storage_endpoints)

        def site() -> Site:
            tiers = self._scheduler.tiers
            assert tiers is not None
            pool = tiers.host.pool
            return Site(
                model=safe_name(config.model_name),
                identity=identity(
                    model=safe_name(config.model_name),
                    dtype=config.dtype,
                    layout=config.host_layout,
                    kernel_layout=runner.kv_kind,
                    page_size=runner.page_size,
                    page_bytes=pool.shape.payload_bytes,
                ),
                dp_rank=self._rank,
                record_bytes=pool.record_bytes,
                layout=config.host_layout,
                roots=roots,
                endpoints=config.storage_endpoints,
                pool=pool.memory,
            )

        def read(view: StorageView) -> Settings:
            settings, config_hash = folder.read(view, self._rank)
            return Settings(view, settings, config_hash)

        return StorageKeeper(self._scheduler.tiers, site, read, self._tell)

    def _tell(self, told: Callable[[], None]) -> None:
        """From any thread: run this on the scheduler's."""
        self._told.put(told)
        self._mailbox.wake()

    def _poll_storage(self) -> None:
        while not self._told.empty():
            self._told.get_nowait()()
        if self._participant.op is None:  # an operation has the keeper to itself
            self._storage.tick()

    def _step(self, now: float) -> None:
        self._scheduler.step(now)
        prefilled = self._scheduler.last_prefill_tokens
        if prefilled:
            self._scheduler.metrics.prefilled(prefilled, time.monotonic() - now)

    def _take(self, message: ToRankMessage, now: float) -> None:
        participant = self._participant
        if isinstance(message, Ask):
            if message.inc == self._inc and message.epoch == participant.epoch:
                self._questions.take(message)
            return
        if isinstance(message, Generate | AbortRequest):
            if message.inc != self._inc or message.epoch != participant.epoch:
                return
            if isinstance(message, AbortRequest):
                self._scheduler.abort(message.rid, message.message)
            elif participant.fenced:
                self._scheduler.add(message, now)
                self._scheduler.abort(message.rid, "fenced")
            else:
                self._scheduler.add(message, now)
            return
        participant.handle(message, now)
        if participant.epoch != self._epoch:
            self._epoch = participant.epoch
            self._mailbox.forget()
            self._questions.forget()
            self._send_ready()

    def _say(self, said: Said) -> None:
        self._send_outputs()  # what an operation ended is heard before its answer
        self._mailbox.send(said)

    def _send_outputs(self) -> None:
        items, self._scheduler.outputs = self._scheduler.outputs, []
        if items:
            self._mailbox.send(
                Tokens(
                    rank=self._rank,
                    inc=self._inc,
                    epoch=self._participant.epoch,
                    n=self._participant.next_n(),
                    items=items,
                )
            )

    def _report_if_due(self, now: float, heartbeat_s: float) -> None:
        places, view = self._scheduler.places(), self._participant.view()
        before, before_view = self._reported
        changed = view != before_view or before is None or before.is_idle != places.is_idle
        staging = self._weights.staging()
        every_s = (
            _STAGING_REPORT_S if staging is not None and staging.what != "ready" else heartbeat_s
        )
        due = self._participant.report_due or now - self._reported_at >= min(every_s, heartbeat_s)
        if not changed and not due:
            return
        self._participant.report_due = False
        self._reported, self._reported_at = (places, view), now
        self._mailbox.send_if_heard(
            Report(
                rank=self._rank,
                inc=self._inc,
                epoch=self._participant.epoch,
                n=self._participant.next_n(),
                view=view,
                lease_left_s=self._participant.lease_left_s(now),
                stats=msgspec.structs.replace(
                    rank_stats(self._scheduler, now),
                    staging=staging,
                    storage=self._storage.report(),
                ),
            )
        )

    def _answer(self, call: int, facts: dict[str, Any]) -> None:  # Any: the fields of Answered
        self._mailbox.send(
            Answered(
                rank=self._rank,
                inc=self._inc,
                epoch=self._participant.epoch,
                n=self._participant.next_n(),
                call=call,
                **facts,
            )
        )

    def _loading(self, what: str, share: float) -> None:
        self._n += 1
        self._mailbox.send_if_heard(
            Loading(rank=self._rank, inc=self._inc, epoch=0, n=self._n, what=what, share=share)
        )

    def _send_ready(self) -> None:
        runner = self._runner
        shapes = runner.digest.shapes if runner.digest is not None else {}
        self._mailbox.send(
            Ready(
                rank=self._rank,
                inc=self._inc,
                epoch=self._participant.epoch,
                n=self._participant.next_n(),
                num_pages=runner.num_pages,
                page_size_tokens=runner.page_size,
                context_len_tokens=runner.context_len,
                vocab_size=runner.vocab_size,
                eos_ids=sorted(runner.eos_ids),
                device=self._config.device,
                dtype=self._config.dtype,
                weights=self._start_weights,
                tensors=[(name, list(shape)) for name, shape in shapes.items()],
            )
        )


def make_runner(config: EngineConfig, rank: int) -> ModelRunner:
    """The model, on this rank's share of the machine."""
    cores = len(os.sched_getaffinity(0))
    device = device_of_rank(config.device, rank)
    num_pages = config.max_total_tokens // config.page_size or None
    budget = None if num_pages else config.kv_bytes or _default_kv_bytes(device, config.dp_size)
    return ModelRunner(
        Path(config.model_path),
        device=device,
        dtype=config.dtype,
        num_pages=num_pages,
        kv_budget_bytes=budget,
        page_size=config.page_size,
        context_len=config.context_len or None,
        threads=config.threads or max(1, cores // config.dp_size),
        ext_dir=Path(config.ext_cache_dir),
        is_poisoning=config.poison_freed_pages,
    )


def _record(config: EngineConfig, rank: int, inc: int) -> NoteEffect:
    """Where effects are written down."""
    if not config.effect_log:
        return nothing_recorded
    return EffectLog(config.effect_log, rank=rank, inc=inc).record


def _host_pages(config: EngineConfig, runner: ModelRunner) -> int:
    """Pages of the host pool: as asked, but not more than a share of what memory is left."""
    if not config.hierarchical:
        return 0
    page_bytes = runner.kv_pool.page_bytes()
    wanted = config.hicache_size_bytes // page_bytes or int(runner.num_pages * config.hicache_ratio)
    left = available_bytes()
    if left is not None:
        share = int(left * _MAX_HOST_SHARE) // config.dp_size // page_bytes
        if wanted > share:
            log.warning("host pool is smaller than asked for", pages=share, asked=wanted)
            wanted = share
    return max(1, wanted)


def safe_name(text: str) -> str:
    """The last part of a model's name, as a name for folders and keys."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", Path(text).name)[:64].lstrip(".") or "model"


def _default_kv_bytes(device: str, dp_size: int) -> int:
    if device != "cpu":
        return default_kv_bytes(torch.device(device), dp_size)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_MAX_DEFAULT_KV_BYTES, int(memory * _DEFAULT_KV_SHARE)) // dp_size


def main(config_path: str, rank: int, inc: int) -> None:
    """Entry point of `python -m engine rank`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for `launch`, which ends us in order
    config = read(config_path)
    setup(f"rank {rank}", config.log_level)
    try:
        process = RankProcess(config, rank=rank, inc=inc)
    except (ModelError, TokenizerError) as error:
        log.error("cannot load the model", reason=str(error))
        sys.exit(CANNOT_START)
    process.run()
