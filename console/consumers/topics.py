"""What a topic holds now: its version, its JSON and its HTML fragments. Called in a thread."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any  # JSON objects
from uuid import UUID

from django.utils import timezone

from console import fragments
from console.exceptions import NotFound
from console.models import User
from console.notify import FLEET, JOBS
from console.selectors.engines import engine_get, engine_list
from console.selectors.jobs import job_get, job_list
from console.selectors.payloads import engine_payload, is_final, job_payload

_ENGINE = re.compile(r"^engine:[a-z0-9][a-z0-9-]{0,62}$")
_JOB = re.compile(r"^job:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True)
class TopicState:
    """One reading. `is_final`: nothing will change any more, so it need not be read again."""

    version: int
    digest: bytes  # of `data`: fragments also tell the time, which is not news
    data: dict[str, Any]
    fragments: list[tuple[str, str]]
    is_final: bool = False


def topic_is_known(topic: object) -> bool:
    """True for a well-formed topic."""
    return isinstance(topic, str) and (
        topic in (FLEET, JOBS) or bool(_ENGINE.match(topic)) or bool(_JOB.match(topic))
    )


def topic_read(topic: str, user: User, known: bytes = b"") -> TopicState | None:
    """The topic as `user` may see it now; None when there is no such thing.

    Fragments are rendered only when the data is not that of the digest `known`.
    """
    kind, _, name = topic.partition(":")
    final = False
    try:
        match kind:
            case "job":
                job = job_get(job_id=UUID(name))
                version, data, final = job.version, job_payload(job), is_final(job)
            case "engine":
                view = engine_get(name=name)
                version, data = view.version, engine_payload(view)
            case "fleet":
                views = engine_list()
                version = max((view.version for view in views), default=0)
                data = {"items": [engine_payload(view) for view in views]}
            case _:
                page = job_list()
                newest = max((job.updated_at for job in page.items), default=timezone.now())
                version = int(newest.timestamp() * 1000)
                data = {
                    "items": [job_payload(job) for job in page.items],
                    "next_cursor": page.next_cursor,
                }
    except NotFound:
        return None
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()
    return TopicState(
        version=version,
        digest=digest,
        data=data,
        fragments=fragments.render(topic, user) if digest != known else [],
        is_final=final,
    )
