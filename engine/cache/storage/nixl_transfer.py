"""One NIXL agent: moves pages between the host pool and files or objects, a batch at a time.

An agent is used by one thread; its transfers and registrations end before a call returns.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # read when the library is loaded

from nixl_cu12._api import nixl_agent, nixl_agent_config
from nixl_cu12._bindings import nixlBackendError

from engine.cache.storage.addresses import address_of, addresses_in

Way = Literal["READ", "WRITE"]
_POLL_S = 0.0001
# Device numbers must differ between registrations of one process.
_numbers = itertools.count(1)


class TransferError(Exception):
    """NIXL said no. It does not say why."""


class Agent:
    """A backend of NIXL with the host pool registered. Raises TransferError when it has none."""

    def __init__(
        self, plugin: Literal["POSIX", "OBJ"], params: dict[str, str], pool: memoryview
    ) -> None:
        self._memory_type = "FILE" if plugin == "POSIX" else "OBJ"
        self._plugin, self._pool = plugin, pool
        self._name = f"quiesce-{next(_numbers)}"
        try:
            self._agent: Any = nixl_agent(self._name, nixl_agent_config(backends=[]))
            self._agent.create_backend(plugin, params)
            self._host = self._agent.register_memory([(address_of(pool), len(pool), 0, "")], "DRAM")
        except nixlBackendError as error:
            raise TransferError(f"NIXL's {plugin} does not start: {error}") from error

    def move(
        self,
        way: Way,
        places: Sequence[str],
        pages: Sequence[memoryview],
        limit_s: float,
    ) -> None:
        """Move all of them. Raises TransferError when one failed: then none counts.

        Raises TimeoutError after `limit_s`: the transfer may still be going on.
        """
        starts = addresses_in(self._pool, pages)
        deadline = time.monotonic() + limit_s
        agent, registered, handle = self._agent, None, None
        try:
            items = [
                (0, len(page), next(_numbers), place)
                for page, place in zip(pages, places, strict=True)
            ]
            registered = agent.register_memory(agent.get_reg_descs(items, self._memory_type))
            host = agent.get_xfer_descs(
                [(at, len(page), 0) for at, page in zip(starts, pages, strict=True)], "DRAM"
            )
            handle = agent.initialize_xfer(way, host, registered.trim(), self._name)
            state = agent.transfer(handle)
            while state == "PROC":
                if time.monotonic() > deadline:
                    raise TimeoutError(f"NIXL's {self._plugin} did not answer in time")
                time.sleep(_POLL_S)
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise TransferError(f"a transfer of NIXL's {self._plugin} ended as {state}")
        except nixlBackendError as error:
            raise TransferError(f"a transfer of NIXL's {self._plugin} failed: {error}") from error
        finally:
            if handle is not None:
                agent.release_xfer_handle(handle)
            if registered is not None:
                agent.deregister_memory(registered)

    def are_there(self, places: Sequence[str]) -> list[bool]:
        """Which exist. Raises TransferError."""
        asked = [(0, 0, 0, place) for place in places]
        try:
            found = self._agent.query_memory(asked, self._plugin, mem_type=self._memory_type)
        except nixlBackendError as error:
            raise TransferError(f"a query of NIXL's {self._plugin} failed: {error}") from error
        return [answer is not None for answer in found]
