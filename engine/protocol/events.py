"""What an engine publishes while it serves: numbered events of one epoch."""

from __future__ import annotations

from engine.protocol.base import Struct
from engine.protocol.storage import BackendView, CachePolicies, HostLayout, StorageRoot, StorageView
from engine.protocol.types import OperationResult, OperationView, RankView
from engine.protocol.weights import MemoryTag, PauseMode, WeightsRoot, WeightsView


class EngineState(Struct, frozen=True, kw_only=True):
    """Everything a page shows of an engine, at one moment."""

    engine_id: str
    epoch: str
    seq: int  # of the last event contained
    clock_s: float
    model: str
    version: str
    idle: bool  # every rank is fully idle
    ranks: list[RankView]
    pending_operation: OperationView | None
    held_requests: int
    http_address: str
    weights: WeightsView | None = None  # what every rank is to serve
    weights_roots: list[WeightsRoot] = []
    paused: PauseMode | None = None
    released: list[MemoryTag] = []
    storage: StorageView | None = None  # what every rank is to have attached; None: nothing
    policies: CachePolicies = CachePolicies()
    hierarchical: bool = False  # it has an L2, so that a backend can be attached
    host_layout: HostLayout = HostLayout.PAGE_FIRST
    storage_roots: list[StorageRoot] = []
    backends: list[BackendView] = []
    needs_weights: bool = False  # their memory is back, their contents are not: nothing is served


class StateChanged(Struct, frozen=True, kw_only=True, tag="state_changed"):
    """Sent at each change of a rank's or the engine's state, and as heartbeat every 0.5 s."""

    state: EngineState


class OperationChanged(Struct, frozen=True, kw_only=True, tag="operation_changed"):
    """An open operation moved: phase, attempt, deadline or a rank's part."""

    operation: OperationView


class OperationEnded(Struct, frozen=True, kw_only=True, tag="operation_ended"):
    """An operation ended; the same result as its Answer."""

    result: OperationResult


EventBody = StateChanged | OperationChanged | OperationEnded


class Event(Struct, frozen=True, kw_only=True):
    """One frame of the event stream. `seq` grows by one within an epoch: a gap is a loss."""

    epoch: str
    seq: int
    clock_s: float
    body: EventBody
