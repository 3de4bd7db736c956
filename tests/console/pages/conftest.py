"""A logged-in client, engines with a snapshot, and jobs in any state."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta

import pytest
from playwright.sync_api import Browser

from console.choices import JobPhase, JobState
from console.clock import db_now
from console.models import Job, JobRankResult
from console.snapshots import StoredSnapshot, redis_client, snapshot_put
from engine.protocol import (
    EngineState,
    HostLayout,
    HostUsage,
    KVUsage,
    Mode,
    OperationKind,
    OperationView,
    Phase,
    Places,
    RankResult,
    RankStorage,
    RankView,
    StorageBackend,
    StorageView,
    WeightSource,
    WeightsRoot,
    WeightsView,
)
from engine.protocol import RankState as EngineRankState
from tests.console.pages.chromium import Seat, chromium, seat
from tests.fakes.stack import Stack

__all__ = ["chromium"]

MARKUP = "<img src=x onerror=alert(1)> & “quoted”"


@pytest.fixture(scope="module")
def tab(stack: Stack, chromium: Browser) -> Seat:
    """A wide tab of the shared stack, logged in."""
    return seat(chromium, stack.url).log_in(stack.password)


@pytest.fixture(autouse=True)
def _redis(valkey):
    redis_client().flushdb()


@pytest.fixture
def page(client, user):
    """A client that is logged in as ana."""
    client.force_login(user)
    return client


def served(version: str = "v7", **more) -> WeightsView:
    """Weights as an engine names them, from a folder if not told otherwise."""
    return WeightsView(
        **{
            "version": version,
            "checksum": hashlib.sha256(version.encode()).hexdigest()[:32],
            "source": WeightSource.DISK,
            "path": f"/srv/models/{version}",
            "label": f"models:{version}",
            "bytes": 271_000_000,
            "num_tensors": 272,
            **more,
        }
    )


def rank_view(
    rank: int, *, running: int = 0, proven: bool = True, version: str = "v7", **more
) -> RankView:
    return RankView(
        dp_rank=rank,
        incarnation=1,
        online=True,
        proven=proven,
        idle=not running,
        places=Places(running=running),
        weight_version=version,
        weight_checksum=served(version).checksum,
        storage_backend=None,
        kv=KVUsage(
            total_pages=100,
            free_pages=60,
            evictable_pages=30,
            locked_pages=10,
            held_pages=0,
            page_size_tokens=16,
        ),
        hit_rate=0.25,
        decode_tokens_per_s=12.0,
        running=running,
        waiting=0,
        age_s=0.1,
        **more,
    )


CONFIG_ID = "c41d77e0a1b2c3d4"


def attached(backend: str = "valkey", **more) -> StorageView:
    """A storage backend as an engine names it; a secret by its fingerprint."""
    return StorageView(
        **{
            "backend": StorageBackend(backend),
            "config": '{"url": "valkey://kv:6379/0", "password": "hmac:4f0ca17b4f0ca17b"}',
            "config_id": CONFIG_ID,
            **more,
        }
    )


def rank_storage(backend: str = "valkey", **more) -> RankStorage:
    """What a rank says of it."""
    return RankStorage(
        **{
            "backend": StorageBackend(backend),
            "config_id": CONFIG_ID,
            "config_hash": "77e90b1477e90b14",
            "hit_rate": 0.23,
            "read_bytes_per_s": 171e6,
            "write_bytes_per_s": 70e6,
            "used_bytes": 1_800_000_000,
            "stored_pages": 900,
            **more,
        }
    )


def host_usage() -> HostUsage:
    """A rank's L2."""
    return HostUsage(
        total_pages=400,
        free_pages=220,
        evictable_pages=170,
        locked_pages=10,
        held_pages=0,
        page_bytes=1 << 20,
        layout=HostLayout.PAGE_FIRST,
    )


def stored_rank(rank: int, backend: str = "valkey", **more) -> RankView:
    """A rank with all three tiers."""
    return rank_view(
        rank,
        host=host_usage(),
        storage=rank_storage(backend, **more),
    )


def operation_view(op_id: str, *, running: int = 1) -> OperationView:
    return OperationView(
        op_id=op_id,
        kind=OperationKind.FLUSH_CACHE,
        mode=Mode.WAIT,
        phase=Phase.WAITING_FOR_IDLE,
        attempt=1,
        timeout_s=60.0,
        started_clock_s=100.0,
        deadline_clock_s=160.0,
        remaining_s=50.0,
        held_requests=0,
        awaited_ranks=[0],
        ranks=[
            RankResult(dp_rank=0, state=EngineRankState.WAITING, places=Places(running=running)),
            RankResult(dp_rank=1, state=EngineRankState.PARKED, places=Places()),
        ],
        requested_by="ana",
    )


@pytest.fixture
def seen(engine):
    """Let the relay have seen `engine` in some state."""

    def see(
        *,
        running=0,
        age_s=0.0,
        online=True,
        op_id="",
        proven=True,
        name="",
        model="m",
        ranks=None,
        weights=None,
        **more,
    ):
        state = EngineState(
            engine_id="e",
            epoch="1-abc",
            seq=1,
            clock_s=110.0,
            model=model,
            version="0.1.0",
            idle=not running,
            ranks=ranks or [rank_view(0, running=running, proven=proven), rank_view(1)],
            pending_operation=operation_view(op_id) if op_id else None,
            held_requests=0,
            http_address="http://127.0.0.1:1",
            weights=weights or served(),
            weights_roots=[WeightsRoot(label="models", path="/srv/models")],
            **more,
        )
        snapshot_put(
            name or engine.name,
            StoredSnapshot(
                online=online, observed_at=time.time() - age_s, rev=1, state=state, note=""
            ),
        )
        put.append(True)

    put: list[bool] = []
    yield see
    if put:  # the next test's engine of that name was never seen
        redis_client().flushdb()


@pytest.fixture
def in_state(ask):
    """A job moved to a state, as the services would have left it."""

    def make(
        state: JobState,
        *,
        phase: str | None = None,
        ranks=(),
        error=None,
        note="",
        job=None,
        **fields,
    ):
        job = job or ask(timeout_s=60.0)
        now = db_now()
        ended = state not in (
            JobState.ACCEPTED,
            JobState.CLAIMED,
            JobState.DISPATCHED,
            JobState.RECONCILING,
        )
        values = {
            "state": state,
            "phase": None if ended else phase or JobPhase.QUEUED,
            "finished_at": now + timedelta(seconds=3) if ended else None,
            "dispatched_at": None if state == JobState.ACCEPTED else now,
            "error": error,
            "note": note,
            **fields,
        }
        Job.objects.filter(pk=job.pk).update(**values)
        for rank, rank_state in enumerate(ranks):
            JobRankResult.objects.create(
                job=job, dp_rank=rank, state=rank_state, message="", places=None
            )
        return Job.objects.get(pk=job.pk)

    return make
