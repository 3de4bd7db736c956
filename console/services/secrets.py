"""Hand the secrets of a request to its engine before there is a job: the console keeps none.

What comes back are fingerprints. Nothing is written here, and no error repeats a value.
"""

from __future__ import annotations

import structlog

from console.exceptions import EngineDisabled, EngineRefused, EngineUnreachable
from console.gateways import EngineSilent, gateway_for
from console.models import Engine
from console.params import JobParams
from engine.protocol import Failure, KeepSecrets, ProtocolError, Reply, SecretsKept

log = structlog.get_logger(__name__)

KEEP_S = 2.5


def _ask(engine: Engine, command: KeepSecrets) -> Reply:
    if not engine.enabled:
        raise EngineDisabled(f"engine {engine.name} is disabled")
    why = ""
    try:
        with gateway_for(engine).converse(engine) as conversation:
            return conversation.call(command, timeout_s=KEEP_S)
    except EngineSilent as error:
        why = str(error)
    except ProtocolError as error:
        why = error.message
    # Outside of the handler: no traceback of this error leads to the command.
    raise EngineUnreachable(
        f"engine {engine.name} did not take the secrets: {_without(why, command)}; "
        "nothing was stored"
    )


def _without(text: str, command: KeepSecrets) -> str:
    """The text, a mark in the place of every secret."""
    for value in sorted(command.values.values(), key=len, reverse=True):
        text = text.replace(value, "…")
    return text


def secrets_keep(*, engine: Engine, params: JobParams, name: str) -> JobParams:
    """The parameters with fingerprints, once the engine keeps their secrets under `name`.

    At most KEEP_S, and not inside a transaction. Raises EngineDisabled,
    EngineUnreachable, EngineRefused.
    """
    command = KeepSecrets(name=name, values=params.secret_values)
    reply = _ask(engine, command)
    if isinstance(reply, Failure):
        kind = EngineUnreachable if reply.retryable else EngineRefused
        raise kind(
            f"engine {engine.name} refused the secrets: {_without(reply.message, command)}; "
            "nothing was stored",
            facts={"engine_code": str(reply.code)},
        )
    if not isinstance(reply, SecretsKept) or set(reply.fingerprints) != set(command.values):
        raise EngineUnreachable(
            f"engine {engine.name} gave no fingerprint of each secret; nothing was stored"
        )
    log.info("secrets kept by the engine", engine=engine.name, name=name, count=len(command.values))
    return params.with_kept(name, reply.fingerprints)
