"""What a topic holds now: its version, its JSON and its HTML fragments. Called in a thread.

What is shown depends on the topic and the rights only, never on who else asks or by which socket:
that is why one reading may be sent to all with the same rights.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any  # JSON objects
from uuid import UUID

from django.utils import timezone

from console import fragments
from console.access import Rights
from console.exceptions import Forbidden, NotFound
from console.models import Job
from console.notify import JOBS, PENDING, fleet_page_of
from console.selectors.access import rights_of_people
from console.selectors.audit import audit_head
from console.selectors.engines import engine_get, engine_page
from console.selectors.health import parts_lately
from console.selectors.jobs import job_get, job_list, jobs_pending
from console.selectors.moment import one_moment
from console.selectors.payloads import engine_payload, is_final, job_payload

_ENGINE = re.compile(r"^engine:[a-z0-9][a-z0-9-]{0,62}$")
_FLEET = re.compile(r"^fleet(:[a-z0-9-]{0,63}:[a-z0-9-]{0,63})?$")
_JOB = re.compile(r"^job:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


@dataclass(frozen=True)
class TopicState:
    """One reading. `is_final`: nothing will change any more, so it need not be read again."""

    version: int
    digest: bytes  # of what is told; fragments also tell the time, which is not news
    data: dict[str, Any]
    fragments: list[tuple[str, str]]
    seq: int  # of the audit log, before it was read: GET /events goes on from there
    is_final: bool = False


@dataclass(frozen=True)
class Reading:
    """One reading for all with the same rights; `state` is None when it is not there for them."""

    rights: Rights
    state: TopicState | None
    message: str = ""  # JSON of the update, but for its opening brace; "" when nothing is new


def topic_is_known(topic: object) -> bool:
    """True for a well-formed topic."""
    return isinstance(topic, str) and (
        topic in (JOBS, PENDING) or any(one.match(topic) for one in (_FLEET, _ENGINE, _JOB))
    )


def _version_of(jobs: list[Job]) -> int:
    newest = max((job.updated_at for job in jobs), default=timezone.now())
    return int(newest.timestamp() * 1000)


def topic_read(topic: str, rights: Rights, known: bytes = b"") -> TopicState | None:
    """The topic as one with `rights` may see it now; None when there is no such thing for them.

    Fragments are rendered only when the data is not that of the digest `known`.
    """
    kind, _, name = topic.partition(":")
    final, seq = False, audit_head()
    subject: Any
    try:
        match kind:
            case "job":
                subject = job = job_get(job_id=UUID(name), rights=rights)
                version, data, final = job.version, job_payload(job), is_final(job)
            case "engine":
                subject = view = engine_get(name=name, rights=rights)
                version, data = view.version, engine_payload(view)
            case "fleet":
                after, q = fleet_page_of(topic)
                views, total, _ = engine_page(rights=rights, after=after, q=q)
                subject = views, total
                version = max((view.version for view in views), default=0)
                data = {"items": [engine_payload(view) for view in views]}
            case "pending":
                subject = jobs = jobs_pending(rights=rights)
                version = int(timezone.now().timestamp() * 1000)  # jobs leave: none may be newest
                data = {"items": [job_payload(job) for job in jobs]}
            case _:
                subject = page = job_list(rights=rights)
                version = _version_of(page.items)
                data = {
                    "items": [job_payload(job) for job in page.items],
                    "next_cursor": page.next_cursor,
                }
    except (NotFound, Forbidden):
        return None
    # Pages also say which part of the console is down: that is news, though no topic's data.
    parts = parts_lately()
    digest = hashlib.sha256(json.dumps([data, parts], sort_keys=True).encode()).digest()
    shown = fragments.Shown(rights, subject, parts)
    return TopicState(
        version=version,
        digest=digest,
        data=data,
        fragments=fragments.render(topic, shown) if digest != known else [],
        seq=seq,
        is_final=final,
    )


def topic_read_for(
    topic: str, user_ids: Collection[int], known: Mapping[Rights, bytes]
) -> dict[int, Reading]:
    """The topic as each of these people may see it now: read once for all with the same rights.

    Their rights are read with it, each time, as of one moment. `known`: by rights, the digest that
    all with them have been sent; what is not news is not rendered. One who is gone sees nothing.
    """
    with one_moment():
        return _read_for(topic, user_ids, known)


def _read_for(
    topic: str, user_ids: Collection[int], known: Mapping[Rights, bytes]
) -> dict[int, Reading]:
    found: dict[Rights, Reading] = {}
    people = rights_of_people(user_ids)
    seen: dict[int, Reading] = {}
    for user_id in user_ids:
        rights = people[user_id].without_person()
        if rights not in found:
            found[rights] = _reading(topic, rights, known.get(rights, b""))
        seen[user_id] = found[rights]
    return seen


def _reading(topic: str, rights: Rights, known: bytes) -> Reading:
    state = topic_read(topic, rights, known)
    if state is None or state.digest == known:
        return Reading(rights, state)
    update = {
        "type": "update",
        "topic": topic,
        "version": state.version,
        "seq": state.seq,
        "data": state.data,
        "fragments": state.fragments,
    }
    return Reading(rights, state, json.dumps(update)[1:])
