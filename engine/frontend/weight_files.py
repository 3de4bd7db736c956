"""Files of weights as the frontend handles them: what could be loaded, what is being uploaded.

Reads headers, writes uploads in the engine's own folder, and clears away what nothing refers to.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.protocol import CheckpointView, ErrorCode, ProtocolError, WeightsRoot
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.folder import open_folder, read_text
from engine.tensorfiles.paths import resolve_beneath
from engine.tensorfiles.text import is_name, plain

_MAX_DEPTH = 2
_MAX_FOLDERS = 200
_PART = ".part"
_TRASH = ".trash-"
_OF_HTTP = ("session-", "upload-", _TRASH)
_OLD_S = 3600.0  # an upload that nobody went on with


class WeightFiles:
    """The roots of one engine, and its own folder."""

    def __init__(self, config: EngineConfig) -> None:
        self._roots = [Path(root) for root in config.weights_roots]
        self._own = Path(config.weights_dir)
        self._max_bytes = config.max_upload_bytes

    # ---- what could be loaded ------------------------------------------------------------------

    def roots(self) -> list[WeightsRoot]:
        """Where weights may come from, for people."""
        return [WeightsRoot(label=root.name, path=str(root)) for root in self._roots]

    def checkpoints(self) -> list[CheckpointView]:
        """The folders under the roots that look like checkpoints, by name."""
        found = []
        for root in self._roots:
            for folder in _folders(root.resolve(), _MAX_DEPTH):
                found.append(self._view(root.resolve(), folder))
        return found[:_MAX_FOLDERS]

    def check(self, path: str) -> CheckpointView:
        """One folder, with what is wrong with it as far as its headers tell."""
        try:
            root, folder = resolve_beneath(path, self._roots)
        except TensorFileError as error:
            return CheckpointView(root="", name="", path=plain(path), problem=plain(error.reason))
        return self._view(root, folder)

    def _view(self, root: Path, folder: Path) -> CheckpointView:
        name = str(folder.relative_to(root))
        view = CheckpointView(root=root.name, name=name, path=str(folder))
        try:
            json.loads(read_text(folder / "config.json", self._roots))
            with open_folder(folder, self._roots) as opened:
                return msgspec.structs.replace(
                    view,
                    bytes=opened.size_bytes,
                    num_files=opened.num_files,
                    num_tensors=len(opened.places),
                )
        except (TensorFileError, ValueError) as error:
            return msgspec.structs.replace(view, problem=plain(str(error)))

    # ---- uploads -------------------------------------------------------------------------------

    def folder(self, upload_id: str) -> Path:
        """Where the files of an upload lie."""
        return self._own / upload_id

    def write(self, upload_id: str, name: str, offset: int, data: bytes, total_bytes: int) -> int:
        """Add bytes to a file; returns how many of it have come. Whole, it gets its name.

        Raises ProtocolError: too large, a gap, or no room.
        """
        folder = self.folder(upload_id)
        if total_bytes > self._max_bytes or offset + len(data) > total_bytes:
            raise ProtocolError(
                ErrorCode.INVALID_ARGUMENT,
                f"an upload has at most {self._max_bytes} bytes, and no more than it announces",
            )
        target, part = folder / name, folder / (name + _PART)
        if target.exists():
            return target.stat().st_size
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                have = os.fstat(fd).st_size
                if offset > have:
                    return have  # the sender goes on from there
                os.pwrite(fd, data, offset)
                have = max(have, offset + len(data))
                if have == total_bytes:
                    os.fsync(fd)
                    part.replace(target)
            finally:
                os.close(fd)
        except OSError as error:
            raise ProtocolError(
                ErrorCode.JOURNAL_UNAVAILABLE, f"cannot keep the upload: {error.strerror}"
            ) from error
        return have

    def drop(self, upload_id: str) -> None:
        """Forget an upload."""
        self._remove(self.folder(upload_id))

    def dropped_unless(self, upload_id: str, keep: Collection[Path]) -> None:
        """The operation that took an upload has ended: it is served now, or nobody wants it."""
        if self.folder(upload_id) not in keep:
            self.drop(upload_id)

    def replaced(self, path: str) -> None:
        """Pushed weights that no rank will have to load again; any other folder stays."""
        if path and Path(path).parent == self._own:
            self._remove(Path(path))

    def _remove(self, folder: Path) -> None:
        """Gone at once; its blocks are given back on a thread of their own, which may take long."""
        trash = self._own / f"{_TRASH}{secrets.token_hex(8)}"
        with suppress(OSError):
            folder.rename(trash)
            remove = threading.Thread(target=shutil.rmtree, args=(trash, True), daemon=True)
            remove.start()

    def begin(self, keep: Collection[Path]) -> None:
        """At a start of the frontend: nobody goes on with what came over HTTP before."""
        self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._own.chmod(0o700)
        kept = {path.resolve() for path in keep}
        for folder in self._own.iterdir():
            if folder.name.startswith(_OF_HTTP) and folder.resolve() not in kept:
                self._remove(folder)
        self.clear(keep)

    def clear(self, keep: Collection[Path], now: float | None = None) -> None:
        """Remove what nothing refers to: pushed weights that were replaced, old uploads."""
        now = time.time() if now is None else now
        kept = {path.resolve() for path in keep}
        with suppress(FileNotFoundError):
            for folder in self._own.iterdir():
                if folder.resolve() in kept:
                    continue
                is_upload = not folder.name.startswith("trainer-")
                if is_upload and now - folder.stat().st_mtime < _OLD_S:
                    continue
                self._remove(folder)


def _folders(root: Path, depth: int) -> list[Path]:
    """Folders with a config.json, links not followed."""
    found: list[Path] = []
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return found
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False) or entry.name.startswith("."):
            continue
        if not is_name(entry.name):
            continue  # nobody could ask for it by name
        path = Path(entry.path)
        if (path / "config.json").exists():
            found.append(path)
        elif depth > 1:
            found += _folders(path, depth - 1)
    return found
