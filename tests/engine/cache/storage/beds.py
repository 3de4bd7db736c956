"""One test bed a backend: how it is set up, looked into, damaged and killed, for the common tests.

Every bed has an identity of its own, so a server may be shared by tests.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

from engine.cache.storage import records
from engine.cache.storage.base import KEY_BYTES, Site, Storage
from engine.cache.storage.file import FileStorage
from engine.protocol import HostLayout
from engine.protocol.storage_configs import FileConfig
from tests.engine.cache.storage.pages import Pages

Damage = Literal["cut", "flip"]


class Bed(ABC):
    """What the conformance tests need to know and do."""

    has_server = False  # one that `kill` and `freeze` stop
    keeps_after_close = True
    slots_when_full = 8  # pages that fit in `tiny()`, at most; 0: it cannot be made small
    is_bounded = True  # its client bounds its calls, so a frozen server may be tried
    longest_call_s = 3.0  # with a server that is dead or frozen
    quick_cycles = 50  # of open and close, for every run
    spare_fds = 0  # that a client keeps for ever, once
    spare_threads = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = secrets.token_bytes(16)
        self.pages = Pages()

    def site(self, dp_rank: int = 0, identity: bytes = b"") -> Site:
        return Site(
            model="SmolLM2-135M",
            identity=identity or self.identity,
            dp_rank=dp_rank,
            record_bytes=self.pages.record_bytes,
            layout=HostLayout.PAGE_FIRST,
            roots=(self.folder,),
            endpoints=("127.0.0.1:*", "localhost:*"),
            pool=self.pages.pool,
        )

    @abstractmethod
    def storage(self, dp_rank: int = 0, identity: bytes = b"") -> Storage:
        """Not open yet."""

    def tiny(self) -> Storage:
        """One that takes few pages."""
        raise NotImplementedError

    def damage(self, key: bytes, how: Damage) -> bool:
        """Cut what is kept under a key, or change a byte of it; False where tests cannot."""
        return False

    def start(self) -> None:
        """Start the server, where there is one."""
        assert not self.has_server, "a server that nobody starts"

    def kill(self) -> None:
        raise NotImplementedError

    def freeze(self) -> None:
        raise NotImplementedError

    def thaw(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server, where there is one."""
        assert not self.has_server, "a server that nobody stops"


class FileBed(Bed):
    def storage(self, dp_rank: int = 0, identity: bytes = b"", **config: object) -> FileStorage:
        settings = {"min_free_space": 0, **config}
        return FileStorage(FileConfig(**settings), self.site(dp_rank, identity))  # type: ignore[arg-type]

    def tiny(self) -> Storage:
        return self.storage(max_size=self.slots_when_full * self.pages.record_bytes)

    def segments(self) -> list[Path]:
        return sorted(self.folder.rglob("*.seg"))

    def damage(self, key: bytes, how: Damage) -> bool:
        for path in self.segments():
            content = bytearray(path.read_bytes())
            for at in range(0, len(content), self.pages.record_bytes):
                found = records.header_key(content[at : at + records.HEADER_BYTES])
                if found is not None and found[0] == key:
                    if how == "cut":
                        content = content[: at + self.pages.record_bytes // 2]
                    else:
                        content[at + self.pages.record_bytes // 2] ^= 0xFF
                    path.write_bytes(content)
                    return True
        raise AssertionError(f"no page under a key of {KEY_BYTES} bytes")


BEDS: dict[str, type[Bed]] = {"file": FileBed}
