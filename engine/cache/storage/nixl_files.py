"""Pages as files, by NIXL's POSIX plugin: `<folder>/<model>-<identity>/<2 hex>/<key>`.

A page is written under a temporary name and renamed once all of it is there, since the plugin
leaves short files when a disk is full or a process ends. It has no cap; `min_free_space` stops it.
"""

from __future__ import annotations

import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from engine.cache.storage import allowed, folders
from engine.cache.storage.base import Site, Status, StorageError
from engine.cache.storage.nixl_transfer import Agent, TransferError, Way
from engine.protocol.storage_configs import NixlConfig

_APIS = {"uring": "use_uring", "aio": "use_aio", "posix_aio": "use_posix_aio"}
_STALE_S = 3600.0
_TEMPORARY = "tmp"


class NixlFiles:
    """Files beneath one folder, shared by all ranks."""

    def __init__(self, config: NixlConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._flags = ",direct" if config.use_direct_io else ""
        self._folder = Path()
        self._reads: Agent | None = None
        self._writes: Agent | None = None

    def open(self, deadline: float) -> None:
        root = allowed.made_folder(self._site, self._config.path, "path")
        self._folder = folders.of_model(self._site, root)
        folders.below(self._folder, _TEMPORARY)
        try:
            self._sweep()
        except OSError as error:
            raise StorageError(f"path cannot be used: {error.strerror}") from error
        self._start()

    def _sweep(self) -> None:
        """Remove what processes that were killed were writing."""
        for path in (self._folder / _TEMPORARY).iterdir():
            with suppress(FileNotFoundError):  # Another rank sweeps, too.
                if time.time() - path.lstat().st_mtime > _STALE_S:
                    path.unlink()

    def _start(self) -> None:
        """With the way of asking the kernel that works here; containers often forbid io_uring."""
        wanted = self._config.posix_api
        names = tuple(_APIS) if wanted == "auto" else (wanted,)
        for name in names:
            try:
                made = [Agent("POSIX", {_APIS[name]: "true"}, self._site.pool) for _ in range(2)]
                self._probe(made[0])
            except (TransferError, TimeoutError) as error:
                if name == names[-1]:
                    raise StorageError(f"path cannot be written with {name}: {error}") from error
                continue
            self._reads, self._writes = made
            return

    def _probe(self, agent: Agent) -> None:
        page = self._site.pool[: self._site.record_bytes]
        path = self._temporary()
        try:
            if self._has_room(1):  # A disk that is full can still be read.
                agent.move("WRITE", [f"rw,create{self._flags}:{path}"], [page], 5.0)
                agent.move("READ", [f"ro{self._flags}:{path}"], [page], 5.0)
        finally:
            path.unlink(missing_ok=True)

    def _temporary(self) -> Path:
        return self._folder / _TEMPORARY / secrets.token_hex(8)

    def _path(self, key: bytes) -> Path:
        return self._folder / key[-1:].hex() / key.hex()

    def _is_whole(self, path: Path) -> bool:
        """A file, and not a link, of a record's length: the plugin's own query says only that
        something is there."""
        try:
            found = path.lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == self._site.record_bytes

    def exist(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._is_whole(self._path(key)) for key in keys]

    def get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        assert self._reads is not None, "get before open"
        statuses = [Status.MISS] * len(keys)
        there = [i for i, key in enumerate(keys) if self._is_whole(self._path(key))]
        done = self._move(
            self._reads,
            "READ",
            [f"ro{self._flags}:{self._path(keys[i])}" for i in there],
            [buffers[i] for i in there],
        )
        for i, is_done in zip(there, done, strict=True):
            if is_done:
                statuses[i] = Status.OK
            elif self._is_whole(self._path(keys[i])):
                statuses[i] = Status.ERROR
        return statuses

    def put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        assert self._writes is not None, "put before open"
        statuses = [Status.OK] * len(keys)
        new = [i for i, key in enumerate(keys) if not self._is_whole(self._path(key))]
        if not self._has_room(len(new)):
            for i in new:
                statuses[i] = Status.FULL
            return statuses
        paths = [self._temporary() for _ in new]
        try:
            done = self._move(
                self._writes,
                "WRITE",
                [f"rw,create{self._flags}:{path}" for path in paths],
                [records[i] for i in new],
            )
            for i, path, is_done in zip(new, paths, done, strict=True):
                if is_done and self._is_whole(path):
                    self._publish(path, self._path(keys[i]))
                else:
                    statuses[i] = Status.ERROR if self._has_room(2) else Status.FULL
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
        return statuses

    @staticmethod
    def _publish(path: Path, target: Path) -> None:
        try:
            path.rename(target)
        except FileNotFoundError:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            path.rename(target)

    def _move(
        self, agent: Agent, way: Way, places: list[str], pages: list[memoryview]
    ) -> list[bool]:
        """Which were moved. One page that cannot be moved fails its batch, so then each is tried
        alone."""
        if not places:
            return []
        limit_s = self._config.io_timeout
        deadline = time.monotonic() + limit_s
        try:
            agent.move(way, places, pages, limit_s)
        except TransferError:
            if len(places) == 1:
                return [False]
            done = []
            for place, page in zip(places, pages, strict=True):
                try:
                    left_s = max(0.0, deadline - time.monotonic())
                    agent.move(way, [place], [page], left_s)
                except TransferError:
                    done.append(False)
                else:
                    done.append(True)
            return done
        return [True] * len(places)

    def _has_room(self, pages: int) -> bool:
        wanted_bytes = pages * self._site.record_bytes
        return folders.has_room(self._folder, wanted_bytes, self._config.min_free_space)

    def delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def clear(self, deadline: float) -> int:
        gone = 0
        for folder in _files_of(self._folder):
            if folder.name == _TEMPORARY or folder.is_symlink() or not folder.is_dir():
                continue
            for path in _files_of(folder):
                if time.monotonic() > deadline:
                    raise StorageError(f"{gone} pages were cleared, then the time was over")
                if len(path.name) == 96:
                    with suppress(FileNotFoundError):  # Another rank clears, too.
                        path.unlink()
                        gone += 1
            with suppress(OSError):  # not empty, or written to again
                folder.rmdir()
        return gone

    def close(self) -> None:
        self._reads = self._writes = None


def _files_of(folder: Path) -> list[Path]:
    """What is in a folder; nothing when another rank, which clears too, has removed it."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
