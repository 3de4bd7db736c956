"""The messages that carry an operation to a rank, made from what the coordinator keeps. Pure."""

from __future__ import annotations

from engine.frontend.operation_state import Current
from engine.ipc.messages import Abort, Commit, Park, Prepare, Undo


def message_for(
    kind: type[Prepare | Park | Commit | Undo | Abort],
    current: Current,
    rank: int,
    *,
    epoch: int,
    lease_s: float,
) -> Prepare | Park | Commit | Undo | Abort:
    """What this rank is to hear now; `lease_s` is counted from its receipt."""
    inc, op, att = current.incs[rank], current.op, current.att
    if kind is Prepare:
        return Prepare(
            epoch=epoch,
            inc=inc,
            op=op,
            operation=current.operation,
            mode=current.mode,
            new=current.new,
            timeout_s=current.timeout_s,
            lease_s=lease_s,
        )
    if kind is Park:
        return Park(epoch=epoch, inc=inc, op=op, att=att, mode=current.mode, lease_s=lease_s)
    if kind is Commit:
        return Commit(epoch=epoch, inc=inc, op=op, att=att)
    if kind is Undo:
        return Undo(epoch=epoch, inc=inc, op=op, att=att)
    return Abort(epoch=epoch, inc=inc, op=op)
