"""A step that is repeated beside its caller: begun when it is due, and not after it was stopped."""

from __future__ import annotations

import threading

from console import clock
from console.clock import every_s
from tests.fakes.waiting import PATIENCE_S, wait_until


def threads(name):
    return [one for one in threading.enumerate() if one.name == name]


def test_it_is_repeated_until_it_says_so():
    counts = []

    def step():
        counts.append(threading.current_thread().name)
        return len(counts) < 3

    ticks = every_s(0.01, step, name="three-times")
    wait_until(lambda: not threads("three-times") and len(counts) == 3)
    ticks.stop(within_s=PATIENCE_S)
    assert counts == ["three-times"] * 3


def test_one_that_is_stopped_before_it_is_due_has_no_thread():
    counts = []
    ticks = every_s(PATIENCE_S, lambda: counts.append(1) is None, name="never")
    assert not threads("never")
    ticks.stop(within_s=PATIENCE_S)
    ticks._begin()  # as it is told when it is due
    assert not threads("never")
    assert not counts


def test_a_stop_waits_for_the_step_that_is_being_done():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def step():
        begun.set()
        go_on.wait(PATIENCE_S)
        done.append(1)
        return True

    ticks = every_s(0.01, step, name="slow")
    assert begun.wait(PATIENCE_S)
    ticks.stop(within_s=0.01)
    assert not done, "but not for longer than it was told"
    go_on.set()
    ticks.stop(within_s=PATIENCE_S)
    assert done == [1]


def test_one_that_waits_holds_up_no_other():
    go_on, begun = threading.Event(), threading.Event()
    slow = every_s(0.01, lambda: go_on.wait(PATIENCE_S) and False, name="slow")
    quick = every_s(0.02, lambda: begun.set() is not None, name="quick")
    assert begun.wait(PATIENCE_S)
    go_on.set()
    for one in (slow, quick):
        one.stop(within_s=PATIENCE_S)


def test_an_earlier_one_is_not_kept_waiting_by_a_later_one():
    begun = threading.Event()
    later = every_s(PATIENCE_S, lambda: False, name="later")
    earlier = every_s(0.01, lambda: begun.set() is not None, name="earlier")
    assert begun.wait(PATIENCE_S / 2)
    for one in (later, earlier):
        one.stop(within_s=PATIENCE_S)


def test_a_thread_too_many_stops_no_other(monkeypatch):
    refused = threading.Event()
    every_s(0.01, lambda: False, name="first").stop(within_s=PATIENCE_S)

    class Refused(threading.Thread):
        def start(self):
            refused.set()
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(clock.threading, "Thread", Refused)
        one = clock._Thread(0.01, lambda: False, "refused")
        assert refused.wait(PATIENCE_S)
    one.stop(within_s=PATIENCE_S)
    begun = threading.Event()
    other = every_s(0.01, lambda: begun.set() is not None, name="other")
    assert begun.wait(PATIENCE_S)
    other.stop(within_s=PATIENCE_S)
