"""Operations on an engine that are not ours: asked over its HTTP port, or by another console.

The relay's snapshot says cheaply that one may be there; the engine itself confirms it.
"""

from __future__ import annotations

from console.exceptions import ConsoleKeyUnusable
from console.gateways import EngineSilent, gateway_for
from console.models import Engine
from console.selectors.engines import own_job
from console.snapshots import snapshots_get
from engine.protocol import ListOperations, OperationList, OperationView, ProtocolError

CONFIRM_S = 0.3


def foreign_holder(*, engine: Engine) -> OperationView | None:
    """The open operation of a stranger, or None; at most CONFIRM_S, and not inside a transaction.

    An engine that does not answer counts as free: the job will say what became of it.
    """
    snapshot = snapshots_get([engine.name]).get(engine.name)
    if snapshot is None or snapshot.state is None or snapshot.state.pending_operation is None:
        return None
    if own_job(snapshot.state.pending_operation.op_id) is not None:
        return None
    return foreign_confirm(engine=engine)


def foreign_confirm(*, engine: Engine, timeout_s: float = CONFIRM_S) -> OperationView | None:
    """Ask the engine for a stranger's open operation. Silence counts as none."""
    try:
        with gateway_for(engine).converse(engine) as conversation:
            reply = conversation.call(ListOperations(limit=1), timeout_s=timeout_s)
    except (EngineSilent, ConsoleKeyUnusable, ProtocolError):
        return None
    if not isinstance(reply, OperationList):
        return None
    return next((view for view in reply.open if own_job(view.op_id) is None), None)
