"""Ways to an engine, by driver. `gateway_for` is the only thing that callers need."""

from console.gateways.base import Conversation, EngineSilent, Gateway, Greeting
from console.gateways.registry import gateway_for

__all__ = ["Conversation", "EngineSilent", "Gateway", "Greeting", "gateway_for"]
