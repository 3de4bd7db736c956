"""Which weights an engine could load from disk: asked of the engine itself, in little time."""

from __future__ import annotations

from console.exceptions import EngineRefused, EngineUnreachable
from console.gateways import EngineSilent, gateway_for
from console.models import Engine
from engine.protocol import CheckpointList, Failure, ListCheckpoints, ProtocolError

ASK_S = 2.5


def checkpoints_ask(*, engine: Engine, path: str = "", timeout_s: float = ASK_S) -> CheckpointList:
    """The roots and the folders under them; with `path`, whether that folder could be loaded.

    Raises EngineUnreachable, EngineRefused.
    """
    try:
        with gateway_for(engine).converse(engine) as conversation:
            reply = conversation.call(ListCheckpoints(path=path), timeout_s=timeout_s)
    except (EngineSilent, ProtocolError) as error:
        raise EngineUnreachable(f"engine {engine.name} did not answer: {error}") from error
    if isinstance(reply, Failure):
        raise EngineRefused(
            f"engine {engine.name} refused: {reply.message}",
            facts={"engine_code": str(reply.code)},
        )
    if not isinstance(reply, CheckpointList):
        raise EngineUnreachable(f"engine {engine.name} answered {type(reply).__name__}")
    return reply
