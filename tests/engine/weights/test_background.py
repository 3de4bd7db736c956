"""What is large is let go of beside serving, and whoever waits for its memory hears when."""

from __future__ import annotations

import threading
import weakref

from engine.weights.background import Background
from tests.fakes.waiting import PATIENCE_S


class Large:
    """Can be watched."""


def test_what_follows_a_drop_comes_when_the_thing_is_gone() -> None:
    things: list[object] = [Large()]
    watched = weakref.ref(things[0])
    is_gone: list[bool] = []
    called = threading.Event()

    def then() -> None:
        is_gone.append(watched() is None)
        called.set()

    Background().drop(things, then=then)
    assert called.wait(PATIENCE_S)
    assert is_gone == [True]
    assert things == []


def test_nothing_to_drop_is_followed_by_nothing() -> None:
    Background().drop([], then=lambda: (_ for _ in ()).throw(AssertionError("called")))
