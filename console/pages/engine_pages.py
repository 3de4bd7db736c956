"""Lists of engines a page at a time: which part of the fleet, and the topic that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest

from console.exceptions import Invalid
from console.notify import fleet_topic
from console.requests import rights_in
from console.selectors.engines import NAME_PART, EngineView, engine_page


@dataclass(frozen=True)
class Slice:
    """The engines of one page of a list."""

    views: list[EngineView]
    total: int  # of all that fit
    after: str
    q: str
    next_after: str

    @property
    def topic(self) -> str:
        """What follows this page."""
        return fleet_topic(self.after, self.q)

    @property
    def is_part(self) -> bool:
        """True when it is not the whole fleet that one may see."""
        return bool(self.after or self.next_after or self.q)

    @property
    def next_query(self) -> str:
        """The link to the next page; empty at the end."""
        if not self.next_after:
            return ""
        return "?" + urlencode({"after": self.next_after, **({"q": self.q} if self.q else {})})


def slice_of(request: HttpRequest) -> Slice:
    """As the query asks: behind an engine's name, of those whose names hold `q`. Raises Invalid."""
    after, q = request.GET.get("after", ""), request.GET.get("q", "").strip().lower()
    for name, value in (("after", after), ("q", q)):
        if not NAME_PART.fullmatch(value):
            raise Invalid(
                f"{name} must be part of an engine's name: small letters, digits, hyphens"
            )
    views, total, next_after = engine_page(rights=rights_in(request), after=after, q=q)
    return Slice(views, total, after, q, next_after)
