"""What the outside is shown: rank views, the engine's state, a pending operation. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.frontend.operation_state import Current
from engine.frontend.rank_table import RankTable
from engine.ipc.messages import RankStats
from engine.protocol import (
    OperationView,
    Phase,
    Places,
    RankResult,
    RankState,
    RankStorage,
    RankView,
    StorageView,
)


def rank_view(
    table: RankTable,
    rank: int,
    stats: RankStats | None,
    *,
    now: float,
    online_s: float,
    config_hash: str = "",
) -> RankView:
    """One rank, as the frontend knows it."""
    seen = table.seen.get(rank)
    age_s = now - seen.at if seen else 0.0
    alive = seen is not None and table.lives(rank, seen.inc)
    places = stats.places if stats else Places()
    online = alive and age_s < online_s
    state = seen.view.state if seen else None
    return RankView(
        dp_rank=rank,
        incarnation=table.alive.get(rank, seen.inc if seen else 0),
        online=online,
        proven=table.is_proven(rank),
        idle=online and places.is_idle,
        places=places,
        weight_version=state.weights.version if state else "",
        weight_checksum=state.weights.checksum if state else "",
        condition="" if table.is_proven(rank) else table.why_unproven(rank),
        note=seen.view.note if seen else "",
        prefill_tokens_per_s=stats.prefill_tokens_per_s if stats else None,
        staging=stats.staging if stats else None,
        storage_backend=(
            state.storage_backend.backend.value if state and state.storage_backend else None
        ),
        host=stats.host if stats else None,
        storage=_storage(stats, state.storage_backend, config_hash) if state else None,
        kv=stats.kv if stats else None,
        hit_rate=stats.hit_rate if stats else None,
        decode_tokens_per_s=stats.decode_tokens_per_s if stats else 0.0,
        running=places.running + places.chunked_prefill,
        waiting=places.waiting,
        age_s=max(0.0, age_s),
        violations=stats.violations_total if stats else 0,
    )


def _storage(
    stats: RankStats | None, now: StorageView | None, config_hash: str
) -> RankStorage | None:
    """None until the rank tells counters of what it has now: its state is told before them."""
    if stats is None or stats.storage is None or now is None:
        return None
    if stats.storage.config_id != now.config_id:
        return None
    drifts = bool(config_hash) and stats.storage.config_hash != config_hash
    return msgspec.structs.replace(stats.storage, drifts=drifts)


def operation_view(
    current: Current, stats: Mapping[int, RankStats], *, now: float, held: int
) -> OperationView:
    """The pending operation; `awaited_ranks` are those that keep it waiting."""
    ranks = [_progress(current, rank, stats.get(rank)) for rank in sorted(current.incs)]
    return OperationView(
        op_id=current.op_id,
        kind=current.operation.kind,
        mode=current.mode,
        phase=current.phase,
        attempt=current.att,
        timeout_s=current.timeout_s,
        started_clock_s=current.started_at,
        deadline_clock_s=current.deadline,
        remaining_s=max(0.0, current.deadline - now),
        held_requests=held,
        awaited_ranks=[r.dp_rank for r in ranks if r.state is RankState.WAITING],
        ranks=ranks,
        requested_by=current.requested_by,
        held_since_clock_s=current.held_since,
        staged_clock_s=current.prepared_at if current.stages else None,
        weights=(
            current.new.weights if current.has_inverse and not current.changes_tiers else None
        ),
        storage=current.new.storage_backend if current.changes_tiers else None,
    )


def _progress(current: Current, rank: int, stats: RankStats | None) -> RankResult:
    places = stats.places if stats else None
    if current.phase is Phase.PREPARING:
        state = RankState.NOT_STARTED
    elif rank in current.parked or current.phase is not Phase.WAITING_FOR_IDLE:
        state = RankState.PARKED
    else:
        state = RankState.WAITING
    message = current.messages.get(rank, "")
    if state is RankState.WAITING and places is not None and not places.is_idle:
        message = str(places)
    return RankResult(
        dp_rank=rank,
        state=state,
        message=message,
        places=places,
        interrupted=current.interrupted.get(rank, 0),
        staging=current.staging.get(rank) or (stats.staging if stats and current.stages else None),
        effect_s=current.effect_s.get(rank),
    )
