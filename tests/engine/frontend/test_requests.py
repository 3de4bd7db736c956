"""Requests between HTTP and the ranks: held in order, sent once, finished once."""

from __future__ import annotations

import pytest

from engine.frontend.dp_router import DPRouter
from engine.frontend.requests import (
    Active,
    DuplicateRequestError,
    NewRequest,
    QueueFullError,
    RequestManager,
)
from engine.ipc.messages import AbortRequest, FinishReason, Generate, TokenOut
from engine.ipc.sampling import SamplingParams


class World:
    """Two ranks whose willingness tests change, and everything that was sent to them."""

    def __init__(self, **options: int) -> None:
        self.routable = {0: 10, 1: 11}
        self.holding = False
        self.sent: list[tuple[int, Generate | AbortRequest]] = []
        self.names: dict[str, str] = {}  # id on the wire → id that the client gave
        self.manager = RequestManager(
            router=DPRouter(2),
            page_size=4,
            max_held=options.get("max_held", 4),
            max_per_rank=options.get("max_per_rank", 100),
            routable=lambda: self.routable,
            is_holding=lambda: self.holding,
            send=lambda rank, message: self.sent.append((rank, message)),
            epoch=1,
        )

    def new(self, rid: str, rank: int | None = None) -> NewRequest:
        return NewRequest(
            rid=rid,
            input_ids=[1, 2, 3],
            sampling=SamplingParams(max_new_tokens=4),
            routed_dp_rank=rank,
        )

    def submit(self, rid: str, rank: int | None = None) -> Active:
        active = self.manager.submit(self.new(rid, rank))
        self.names[active.wire_id] = rid
        return active

    def rids(self, kind: type[Generate | AbortRequest] = Generate) -> list[str]:
        """Whose messages were sent, by the ids that clients gave."""
        return [self.names[message.rid] for _, message in self.sent if isinstance(message, kind)]

    def hear(self, active: Active, start: int, *, finish: str | None = None) -> None:
        """A token from the rank that has this request."""
        assert active.rank is not None
        self.manager.on_tokens(
            active.rank, active.inc, [token(active.wire_id, start, finish=finish)]
        )


def token(wire_id: str, start: int, *, finish: str | None = None) -> TokenOut:
    reason = FinishReason(type=finish) if finish else None
    return TokenOut(rid=wire_id, start=start, token_ids=[7], finish=reason)


def test_a_request_goes_to_a_rank_with_its_incarnation() -> None:
    world = World()
    active = world.submit("a")
    rank, message = world.sent[0]
    assert (message.inc, message.rid) == (world.routable[rank], active.wire_id)


def test_held_requests_are_released_in_order() -> None:
    world = World()
    world.holding = True
    for rid in "abcd":
        world.submit(rid)
    assert world.sent == []
    assert world.manager.num_held == 4
    world.holding = False
    world.manager.pump()
    assert world.rids() == list("abcd")
    assert world.manager.num_held == 0


def test_requests_wait_while_no_rank_is_open() -> None:
    world = World()
    world.routable = {}
    world.submit("a")
    assert world.sent == []
    world.routable = {1: 12}
    world.manager.pump()
    assert [(rank, m.inc) for rank, m in world.sent] == [(1, 12)]


def test_the_queue_is_bounded() -> None:
    world = World(max_held=2)
    world.holding = True
    world.submit("a")
    world.submit("b")
    with pytest.raises(QueueFullError):
        world.submit("c")
    assert not world.manager.has_room(1)


def test_a_request_for_one_rank_waits_for_it_and_lets_others_pass() -> None:
    world = World()
    world.routable = {0: 10}
    world.submit("one", rank=1)
    world.submit("any")
    assert world.rids() == ["any"]
    world.routable = {0: 10, 1: 11}
    world.manager.pump()
    assert world.sent[-1][0] == 1


def test_a_live_id_is_refused_and_free_again_at_its_end() -> None:
    world = World()
    active = world.submit("a")
    with pytest.raises(DuplicateRequestError):
        world.submit("a")
    world.hear(active, 0, finish="stop")
    world.submit("a")
    assert world.rids() == ["a", "a"]


def test_tokens_of_another_incarnation_or_of_nobody_change_nothing() -> None:
    world = World()
    active = world.submit("a")
    assert active.rank is not None
    world.manager.on_tokens(active.rank, active.inc + 5, [token(active.wire_id, 0)])
    world.manager.on_tokens(active.rank, active.inc, [token("nobody", 0)])
    assert active.queue.is_empty


def test_a_lost_rank_ends_its_requests_with_503_once() -> None:
    world = World()
    active = world.submit("a")
    assert active.rank is not None
    rank, inc = active.rank, active.inc
    world.routable = {}
    for _ in range(2):
        world.manager.on_processes({r: i for r, i in {0: 10, 1: 11}.items() if r != rank})
    item = active.queue.get_nowait()
    assert item.finish is not None
    assert (item.finish.type, item.finish.status_code) == ("abort", 503)
    assert active.queue.is_empty
    world.manager.on_tokens(rank, inc, [token(active.wire_id, 0, finish="stop")])
    assert active.queue.is_empty
    assert world.manager.num_active == 0


def test_a_client_that_leaves_is_forgotten_and_its_rank_told() -> None:
    world = World()
    routed = world.submit("a")
    world.holding = True
    held = world.submit("b")
    for active in (routed, held):
        world.manager.leave(active)
        world.manager.leave(active)
    assert world.rids(AbortRequest) == ["a"]
    assert world.manager.num_active == world.manager.num_held == 0
    assert world.manager.load_tokens(0) == world.manager.load_tokens(1) == 0


def test_leaving_late_does_not_end_a_later_request_of_the_same_id() -> None:
    world = World()
    first = world.submit("a")
    world.hear(first, 0, finish="stop")
    world.submit("a")
    world.manager.leave(first)
    assert world.manager.num_active == 1


def test_tokens_under_way_for_a_client_that_left_are_not_the_next_ones_of_its_id() -> None:
    world = World()
    gone = world.submit("a")
    world.hear(gone, 0)
    world.manager.leave(gone)
    again = world.submit("a")
    world.hear(gone, 1)  # sent before the rank heard of the end
    world.hear(gone, 2, finish="abort")
    assert again.queue.is_empty
    world.hear(again, 0, finish="length")
    assert again.queue.get_nowait().start == 0
    assert world.manager.num_active == 0


def test_aborting_a_held_request_answers_its_client_at_once() -> None:
    world = World()
    world.holding = True
    active = world.submit("a")
    assert world.manager.abort("a")
    item = active.queue.get_nowait()
    assert item.finish is not None
    assert item.finish.message == "Abort in waiting queue"
    assert not world.manager.abort("a")
    assert world.manager.abort_all() == 0


def test_latencies_are_counted_once_a_request() -> None:
    world = World()
    active = world.submit("a")
    world.hear(active, 0)
    world.hear(active, 1, finish="stop")
    registry = world.manager.latencies.registry
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert registry.get_sample_value(f"sglang:{name}_seconds_count") == 1, name


def test_a_full_rank_is_passed_over() -> None:
    world = World(max_per_rank=1)
    for rid in "abc":
        world.submit(rid)
    assert sorted(rank for rank, _ in world.sent) == [0, 1]
    assert world.manager.num_held == 1
