"""The seam between live sockets and pages: who renders the HTML fragments of a topic.

Pages register a renderer by topic kind (`fleet`, `engine`, `job`, `jobs`); the live consumer calls
`render`. Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any  # what a topic is read as

from console.access import Rights


@dataclass(frozen=True)
class Shown:
    """What a topic holds as it was read for these rights: nothing of it is read twice.

    `subject` is by kind a Job, an EngineView, a Page of jobs, a list of pending jobs, or, of the
    fleet, (views, how many there are in all). `parts`: of the console, each up or not.
    """

    rights: Rights
    subject: Any
    parts: Mapping[str, bool]


# (topic, what it holds) -> [(element id, inner or outer HTML)]; called in a thread, may read the
# database. It knows nothing else of who will see it: all with the same rights are sent the same.
Renderer = Callable[[str, Shown], list[tuple[str, str]]]

_renderers: dict[str, Renderer] = {}


def topic_kind(topic: str) -> str:
    """`job` for `job:…`."""
    return topic.partition(":")[0]


def register(kind: str, renderer: Renderer) -> None:
    """Let `renderer` make the fragments of topics of `kind`; a later one replaces it."""
    _renderers[kind] = renderer


def render(topic: str, shown: Shown) -> list[tuple[str, str]]:
    """The fragments of `topic`; none when no page shows it."""
    renderer = _renderers.get(topic_kind(topic))
    return renderer(topic, shown) if renderer else []
