"""Which driver serves which engine."""

from __future__ import annotations

from console.exceptions import Unavailable
from console.gateways.base import Gateway
from console.gateways.zmq import ZMQGateway
from console.models import Engine

DRIVERS: dict[str, Gateway] = {"quiesce": ZMQGateway()}


def gateway_for(engine: Engine) -> Gateway:
    """The gateway of `engine`. Raises Unavailable for a driver that this release does not have."""
    gateway = DRIVERS.get(engine.driver)
    if gateway is None:
        raise Unavailable(f"this console has no driver {engine.driver!r}")
    return gateway
