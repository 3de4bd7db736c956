"""What a socket was refused is in the audit log too; of many equal refusals one a minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # an ASGI scope holds anything

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from console.actors import Actor
from console.choices import Via
from console.models import User
from console.services.attempts import Coalesced, attempt_note

log = structlog.get_logger(__name__)

_coalesced = Coalesced()


async def socket_refused(scope: Mapping[str, Any], *, asked: str, code: str) -> None:
    """Note that `asked` was refused with `code`; a log that cannot be written changes nothing."""
    user, client = scope.get("user"), scope.get("client")
    source_ip = str(client[0])[:45] if client else ""
    is_person = isinstance(user, User)
    name = user.get_username() if is_person else "anonymous"
    left_out = _coalesced.left_out((name if is_person else source_ip, asked, code))
    if left_out is None:
        return
    actor = Actor(user.pk if is_person else None, name, Via.UI, source_ip=source_ip)

    def note() -> None:
        attempt_note(
            action="request.denied",
            result="denied",
            actor=actor,
            facts={"object": f"socket {asked}"[:200], "code": code, "left_out": left_out},
        )

    try:
        await database_sync_to_async(note)()
    except DatabaseError as error:
        log.error("a refusal of a socket could not be recorded", error=repr(error))
