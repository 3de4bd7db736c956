"""A rank's side of its receiver process: every wait has an end, and then the process is killed."""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.protocol import TrainerGroup
from engine.weights.errors import WeightsError
from engine.weights.expected import Expected

_GRACE_S = 1.0  # for the process to say itself that time is up
_START_S = 20.0  # to import torch, on a busy machine


class Receiver:
    """One process in one group. Used by one background thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine", "receiver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._rest = b""
        self._lock = threading.Lock()

    def join(self, group: TrainerGroup, rank: int, timeout_s: float) -> None:
        """Raises WeightsError when the group did not come about in time."""
        self._say(
            what="join",
            master_address=group.master_address,
            master_port=group.master_port,
            world_size=group.world_size,
            rank=rank,
            group_name=group.group_name,
            backend=group.backend,
            timeout_s=timeout_s,
        )
        self._until_ok(timeout_s + _START_S, lambda _: None)

    def receive(
        self, expected: Expected, timeout_s: float, note: Callable[[int], None]
    ) -> dict[str, torch.Tensor]:
        """Tensors by name. Raises WeightsError, and whatever `note` raises to stop."""
        sizes = expected.sizes_bytes()
        with _shared_file(sum(sizes)) as (path, data):
            self._say(
                what="receive",
                path=str(path),
                is_flat=expected.is_flat,
                dtypes=[str(dtype).removeprefix("torch.") for dtype in expected.dtypes],
                shapes=expected.shapes,
                timeout_s=timeout_s,
            )
            self._until_ok(timeout_s, note)
            return _cut(data, expected, sizes)

    def close(self) -> None:
        """Leave the group, by ending. Harmless when done before; from any thread."""
        with self._lock:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    def _say(self, **said: Any) -> None:  # Any: JSON
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise WeightsError("the receiver of this group has ended") from error

    def _until_ok(self, timeout_s: float, note: Callable[[int], None]) -> None:
        ends = time.monotonic() + timeout_s + _GRACE_S
        while True:
            said = self._next(ends)
            if "error" in said:
                raise WeightsError(said["error"])
            if "ok" in said:
                return
            note(int(said["done"]))

    def _next(self, ends: float) -> dict[str, Any]:
        """The next line. Raises WeightsError at the end of time, or of the process."""
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._rest:
            left = ends - time.monotonic()
            try:
                ready = left > 0 and select.select([stdout], [], [], left)[0]
                data = os.read(stdout.fileno(), 1 << 16) if ready else None
            except (OSError, ValueError) as error:  # closed by another thread: it was left
                raise WeightsError("the group was left meanwhile") from error
            if data is None:
                raise WeightsError("time is up")
            if not data:
                raise WeightsError("the peer sent what was not announced, or was lost")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))


class _shared_file:  # noqa: N801 - a context, used like a function
    """Memory that two processes map, without a name once both have: NaN in every format."""

    def __init__(self, size_bytes: int) -> None:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - shared memory
        self._size = max(1, size_bytes)
        self._fd, name = tempfile.mkstemp(prefix="quiesce-", dir=folder)
        self._path = Path(name)

    def __enter__(self) -> tuple[Path, torch.Tensor]:
        try:
            os.posix_fallocate(self._fd, 0, self._size)
            mapped = mmap.mmap(self._fd, self._size)
        except OSError as error:
            self.__exit__()
            raise WeightsError(f"no memory to receive into: {error.strerror}") from error
        data = torch.frombuffer(mapped, dtype=torch.uint8)
        data.fill_(0xFF)
        return self._path, data

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)


def _cut(data: torch.Tensor, expected: Expected, sizes: list[int]) -> dict[str, torch.Tensor]:
    """Copies, so that the shared memory goes and every tensor is aligned."""
    found, start = {}, 0
    rows = zip(expected.names, expected.dtypes, expected.shapes, sizes, strict=True)
    for name, dtype, shape, size in rows:
        found[name] = data[start : start + size].clone().view(dtype).view(shape)
        start += size
    return found
