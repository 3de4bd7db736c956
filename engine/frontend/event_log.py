"""Numbers events and remembers the newest ones, so that a subscriber can heal a gap. Pure."""

from __future__ import annotations

from collections import deque

from engine.protocol import Event
from engine.protocol.events import EventBody

_RING = 4096


class EventLog:
    """Events of one epoch; `seq` grows by one."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.seq = 0
        self._ring: deque[Event] = deque(maxlen=_RING)

    def next_seq(self) -> int:
        """Number that the next event will have."""
        return self.seq + 1

    def add(self, body: EventBody, clock_s: float) -> Event:
        """Number an event and keep it."""
        self.seq += 1
        event = Event(epoch=self.epoch, seq=self.seq, clock_s=clock_s, body=body)
        self._ring.append(event)
        return event

    def after(self, seq: int) -> tuple[list[Event], bool]:
        """Events after `seq`, and whether none of them is missing."""
        events = [event for event in self._ring if event.seq > seq]
        complete = seq >= self.seq or (bool(events) and events[0].seq == seq + 1)
        return events, complete
