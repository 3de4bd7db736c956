"""Who does something, and from where: what every service takes and every audit entry keeps."""

from __future__ import annotations

from dataclasses import dataclass

from console.access import EVERYTHING, NOTHING, Rights
from console.choices import Via


@dataclass(frozen=True)
class Actor:
    """A person, a person's token, or a part of the console. Names are frozen at the time."""

    user_id: int | None
    name: str
    via: Via
    token_prefix: str = ""
    source_ip: str = ""
    request_id: str = ""
    rights: Rights = NOTHING

    @staticmethod
    def system(part: str) -> Actor:
        """A part of the console that acts by itself, such as the reconciler."""
        return Actor(user_id=None, name=f"system:{part}", via=Via.SYSTEM, rights=EVERYTHING)

    @property
    def key(self) -> str:
        """What an idempotency key is unique within: the person, or the part."""
        return f"user:{self.user_id}" if self.user_id is not None else self.name
