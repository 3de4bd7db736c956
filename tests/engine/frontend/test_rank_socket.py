"""The socket to the ranks: everything is heard, also while much is sent; no fault is swallowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.frontend.rank_socket import RankSocket

COUNT = 3000


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[RankSocket]:
    made = RankSocket(f"ipc://{tmp_path}/r")
    yield made
    made.close()


class Rank:
    """A rank's process: answers nothing, says `count` things, and counts what it is told."""

    def __init__(self, address: str, name: bytes, count: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(address, name, count))
        self.num_heard = 0

    def __enter__(self) -> Rank:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join()

    def _run(self, address: str, name: bytes, count: int) -> None:
        context = zmq.Context()
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.IDENTITY, name)
            dealer.setsockopt(zmq.LINGER, 5000)
            dealer.connect(address)
            for number in range(count):
                dealer.send(b"%s %d" % (name, number))
            while dealer.poll(2000):
                if dealer.recv() == b"end":
                    break
                self.num_heard += 1
        context.term()


async def test_all_is_heard_in_order_while_each_message_is_answered(
    socket: RankSocket, tmp_path: Path
) -> None:
    """Sending may take the news of what came away from who reads: nothing may be left lying."""
    names = (b"rank-0-1", b"rank-1-1")
    heard: dict[bytes, list[int]] = {name: [] for name in names}
    done = asyncio.Event()

    def take(frame: bytes) -> None:
        name, _, number = frame.partition(b" ")
        heard[name].append(int(number))
        for other in names:
            socket.send(other, b"x")
        if all(len(numbers) == COUNT for numbers in heard.values()):
            done.set()

    with (
        Rank(f"ipc://{tmp_path}/r", names[0], COUNT) as one,
        Rank(f"ipc://{tmp_path}/r", names[1], COUNT) as other,
    ):
        running = asyncio.create_task(socket.run(take))
        await done.wait()
        for name in names:
            assert socket.send(name, b"end")
    assert heard == {name: list(range(COUNT)) for name in names}
    assert one.num_heard + other.num_heard > COUNT
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_came_before_anybody_listened_is_heard(
    socket: RankSocket, tmp_path: Path
) -> None:
    with Rank(f"ipc://{tmp_path}/r", b"rank-0-1", 5):
        while not socket.send(b"rank-0-1", b"are you there?"):
            await asyncio.sleep(0.01)
        heard: list[bytes] = []
        running = asyncio.create_task(socket.run(heard.append))
        while len(heard) < 5:
            await asyncio.sleep(0.01)
        socket.send(b"rank-0-1", b"end")
    running.cancel()


async def test_nobody_of_that_name_is_told(socket: RankSocket) -> None:
    assert not socket.send(b"rank-7-1", b"x")


async def test_a_fault_in_who_listens_ends_the_frontend(socket: RankSocket, tmp_path: Path) -> None:
    def take(frame: bytes) -> None:
        raise ValueError(frame.decode())

    with (
        Rank(f"ipc://{tmp_path}/r", b"rank-0-1", 1),
        pytest.raises(ValueError, match="rank-0-1 0"),
    ):
        try:
            await socket.run(take)
        finally:
            socket.send(b"rank-0-1", b"end")


async def test_a_socket_that_is_closed_ends_who_listens(tmp_path: Path) -> None:
    socket = RankSocket(f"ipc://{tmp_path}/c")
    running = asyncio.create_task(socket.run(lambda frame: None))
    await asyncio.sleep(0)
    socket.close()
    await running
