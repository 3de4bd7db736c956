"""The sender of a live socket: it never dies quietly, and a reader who left is no fault."""

from __future__ import annotations

import asyncio

import pytest

from console.consumers.live import TRY_LATER, LiveConsumer


class Consumer(LiveConsumer):
    """One dirty topic whose reading raises `fault`; what is sent is kept."""

    def __init__(self, fault, *, is_gone=False):
        super().__init__()
        self._topics = {"engine:x": (-1, b"")}
        self._final, self._dirty, self._wake = set(), {"engine:x"}, asyncio.Event()
        self._wake.set()
        self.fault, self.is_gone, self.sent = fault, is_gone, []

    async def _read(self, topic, known):
        raise self.fault

    async def base_send(self, message):
        if self.is_gone:
            raise OSError("disconnected")
        self.sent.append(message)


@pytest.mark.parametrize("fault", [KeyError("x"), OSError("broken pipe")])
async def test_a_fault_closes_the_socket_so_that_the_page_asks_anew(fault):
    consumer = Consumer(fault)
    await consumer._send_until_gone()
    assert [one["code"] for one in consumer.sent] == [TRY_LATER]


async def test_a_reader_who_left_ends_the_sender_without_a_complaint(caplog):
    await Consumer(OSError("disconnected"), is_gone=True)._send_until_gone()
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]
