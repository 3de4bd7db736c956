"""What is known of one engine, event by event. No sockets, no clock of its own, no rows."""

from __future__ import annotations

import msgspec

from engine.protocol import (
    EngineState,
    Event,
    OperationChanged,
    OperationEnded,
    RankStorage,
    StateChanged,
)

OFFLINE_AFTER_S = 2.0


def _tier(storage: RankStorage | None) -> object:
    """What of a rank's backend is no mere counter."""
    if storage is None:
        return None
    return (storage.backend, storage.config_id, storage.breaker, storage.drifts, storage.last_error)


class EngineMirror:
    """What is known of one engine, event by event. Pure: no sockets, no clock of its own."""

    def __init__(self) -> None:
        self.state: EngineState | None = None
        self.heard_at: float | None = None
        self.gaps = 0

    def snapshot(self, state: EngineState, now_s: float) -> None:
        """Start from a whole state, unless a newer one of this epoch is known."""
        known = self.state
        if known is not None and known.epoch == state.epoch and known.seq > state.seq:
            return
        self.state = state
        self.heard_at = now_s

    def apply(self, event: Event, now_s: float) -> bool:
        """Apply the next event; False when events before it are missing (then it was not)."""
        self.heard_at = now_s
        state = self.state
        if state is None or event.epoch != state.epoch:
            return False
        if event.seq <= state.seq:
            return True  # contained already
        if event.seq != state.seq + 1:
            return False
        match event.body:
            case StateChanged(state=news):
                self.state = msgspec.structs.replace(news, seq=event.seq)
            case OperationChanged(operation=view):
                self.state = msgspec.structs.replace(state, seq=event.seq, pending_operation=view)
            case OperationEnded(result=result):
                pending = state.pending_operation
                if pending is not None and pending.op_id == result.op_id:
                    pending = None
                self.state = msgspec.structs.replace(
                    state, seq=event.seq, pending_operation=pending
                )
        return True

    def is_online(self, now_s: float) -> bool:
        """News is fresh and at least one rank may be routed to."""
        fresh = self.heard_at is not None and now_s - self.heard_at <= OFFLINE_AFTER_S
        return fresh and self.state is not None and any(rank.proven for rank in self.state.ranks)

    def note(self, now_s: float) -> str:
        """Why it is not online, in a sentence; empty when it is."""
        if self.heard_at is None:
            return "the engine has not been heard since the relay started"
        if now_s - self.heard_at > OFFLINE_AFTER_S:
            return "the engine is silent"
        if self.state is not None and not any(rank.proven for rank in self.state.ranks):
            return "no rank is proven"
        return ""

    def key(self, now_s: float) -> object:
        """What must be shown at once when it changes."""
        state = self.state
        if state is None:
            return (self.is_online(now_s),)
        pending = state.pending_operation
        return (
            self.is_online(now_s),
            state.epoch,
            state.idle,
            tuple(
                (rank.online, rank.idle, rank.proven, rank.weight_version, rank.weight_checksum)
                for rank in state.ranks
            ),
            tuple(_tier(rank.storage) for rank in state.ranks),
            (state.storage, state.policies),
            (state.paused, tuple(state.released), state.needs_weights, state.weights),
            None
            if pending is None
            else (pending.op_id, pending.phase, pending.attempt, pending.mode),
        )
