"""The seam between live sockets and pages: who renders the HTML fragments of a topic.

Pages register a renderer by topic kind (`fleet`, `engine`, `job`, `jobs`); the live consumer calls
`render`. Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable

from console.access import Rights

# (topic, rights) -> [(element id, inner or outer HTML)]; called in a thread, may read the database.
Renderer = Callable[[str, Rights], list[tuple[str, str]]]

_renderers: dict[str, Renderer] = {}


def topic_kind(topic: str) -> str:
    """`job` for `job:…`."""
    return topic.partition(":")[0]


def register(kind: str, renderer: Renderer) -> None:
    """Let `renderer` make the fragments of topics of `kind`; a later one replaces it."""
    _renderers[kind] = renderer


def render(topic: str, rights: Rights) -> list[tuple[str, str]]:
    """The fragments of `topic` as one with `rights` may see them; none when no page shows it."""
    renderer = _renderers.get(topic_kind(topic))
    return renderer(topic, rights) if renderer else []
