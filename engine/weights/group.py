"""A trainer's process group, as a DP rank joins it: torch.distributed, gloo on CPU, nccl on CUDA.

Every wait has an end, and none is on the scheduler's thread. A group that failed once is left: the
two sides may no longer agree on what is sent next. Joins as SGLang's trainers expect it: store and
names are those of torch's own helper for a group beside the default one.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed import distributed_c10d as c10d

from engine.log import get_logger
from engine.models.config import ModelConfig
from engine.protocol import TrainerGroup, UpdateWeightsFromDistributed
from engine.weights.errors import WeightsError
from engine.weights.expected import Expected, expected_of
from engine.weights.sources import Opened, from_memory

log = get_logger()

SPILL_FILE = "model.safetensors"


@dataclass(slots=True)
class _Group:
    process_group: Any  # torch's own, without a public type
    backend: str


class _Joining:
    """An attempt that is under way."""


class TrainerGroups:
    """The groups that this rank is in. Called from background threads, one at a time a group."""

    def __init__(self, dp_rank: int) -> None:
        self._dp_rank = dp_rank
        self._lock = threading.Lock()
        self._groups: dict[str, _Group | _Joining] = {}
        self._received: dict[str, dict[str, torch.Tensor]] = {}

    # ---- membership --------------------------------------------------------------------------

    def join(self, group: TrainerGroup, timeout_s: float) -> None:
        """Join within `timeout_s`. Raises WeightsError: in it already, or nobody came."""
        name, attempt = group.group_name, _Joining()
        with self._lock:
            if name in self._groups:
                raise WeightsError(f"group {name!r} exists on this rank; destroy it first")
            self._groups[name] = attempt
        try:
            joined = _join(group, group.rank_offset + self._dp_rank, timeout_s)
        except BaseException:
            self._replace(name, attempt, None)
            raise
        if not self._replace(name, attempt, _Group(joined, group.backend)):
            _destroy(name, joined)
            raise WeightsError(f"group {name!r} was left while this rank joined it")

    def _replace(self, name: str, attempt: _Joining, made: _Group | None) -> bool:
        """False when this attempt was given up, and another may be under way."""
        with self._lock:
            if self._groups.get(name) is not attempt:
                return False
            if made is None:
                del self._groups[name]
            else:
                self._groups[name] = made
            return True

    def leave(self, name: str) -> bool:
        """Leave a group. False when this rank was in none of that name."""
        with self._lock:
            group = self._groups.pop(name, None)
        if not isinstance(group, _Group):
            return False
        _destroy(name, group.process_group)
        return True

    def leave_all(self) -> None:
        """The frontend that knew of them is gone."""
        with self._lock:
            names = list(self._groups)
        for name in names:
            self.leave(name)
        self._received.clear()

    def _group(self, name: str) -> _Group:
        with self._lock:
            group = self._groups.get(name)
        if not isinstance(group, _Group):
            raise WeightsError(f"this rank is in no group {name!r}; init it first")
        return group

    # ---- tensors -----------------------------------------------------------------------------

    def receive(
        self,
        session: str,
        group_name: str,
        expected: Expected,
        timeout_s: float,
        note: Callable[[int], None] = lambda _: None,
    ) -> tuple[int, int]:
        """Receive broadcasts into what `session` holds; returns tensors and bytes received.

        Raises WeightsError; the group is left then, and the session dropped.
        """
        group = self._group(group_name)
        store = self._received.setdefault(session, {})
        twice = [name for name in expected.names if name in store]
        if twice or len(set(expected.names)) != len(expected.names):
            self._fail(session, group_name)
            raise WeightsError(f"tensor {(twice or expected.names)[0]} is sent twice")
        try:
            found = _receive(group, expected, timeout_s, note)
        except BaseException:
            self._fail(session, group_name)
            raise
        store |= found
        return len(found), sum(t.numel() * t.element_size() for t in found.values())

    def _fail(self, session: str, group_name: str) -> None:
        self.drop(session)
        self.leave(group_name)

    def drop(self, session: str) -> None:
        """Forget what was received for it."""
        self._received.pop(session, None)

    @contextmanager
    def received(
        self,
        operation: UpdateWeightsFromDistributed,
        config: ModelConfig,
        dtype: torch.dtype,
        note: Callable[[int], None],
    ) -> Iterator[Opened]:
        """All tensors of an update, the last of them received now. Raises what `receive` raises."""
        timeout_s = operation.receive_timeout_s
        expected = expected_of(
            operation, config, dtype, bool(self._received.get(operation.session))
        )
        try:
            if operation.group is not None:
                self.join(operation.group, timeout_s)
            if expected.names:
                name = operation.group.group_name if operation.group else operation.group_name
                self.receive(operation.session, name, expected, timeout_s, note)
            with from_memory(self._received.get(operation.session, {}), config) as opened:
                yield opened
        except BaseException:
            self.drop(operation.session)
            raise
        finally:
            if operation.group is not None:
                self.leave(operation.group.group_name)

    def spill(self, session: str, folder: Path, dtype: torch.dtype) -> None:
        """Keep what was received as a file, durable when this returns, so that a rank that starts
        again can load it. The first rank writes for all. Raises OSError."""
        tensors = self._received.pop(session, {})
        if self._dp_rank != 0:
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        temp, target = folder / f"{SPILL_FILE}.new", folder / SPILL_FILE
        save_file({name: t.to(dtype).cpu().contiguous() for name, t in tensors.items()}, temp)
        for path in (temp, folder):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            if path == temp:
                temp.replace(target)


def _join(group: TrainerGroup, rank: int, timeout_s: float) -> Any:  # torch's own group
    if rank >= group.world_size:
        raise WeightsError(f"rank {rank} does not fit a group of {group.world_size}")
    if group.backend == "nccl" and not torch.cuda.is_available():
        raise WeightsError("backend nccl needs CUDA; this engine computes on a CPU: use gloo")
    ends = time.monotonic() + timeout_s
    timeout = timedelta(seconds=timeout_s)
    try:
        store = dist.TCPStore(
            group.master_address,
            group.master_port,
            group.world_size,
            is_master=False,
            timeout=timeout,
            wait_for_workers=False,
        )
        left = timedelta(seconds=max(0.1, ends - time.monotonic()))
        store.set_timeout(left)
        prefixed = dist.PrefixStore(group.group_name, store)
        prefixed.set_timeout(left)
        joined, _ = c10d._new_process_group_helper(
            group.world_size,
            rank,
            [],
            dist.Backend(group.backend),
            prefixed,
            group_name=group.group_name,
            timeout=left,
        )
        c10d._world.pg_group_ranks[joined] = {i: i for i in range(group.world_size)}
    except (RuntimeError, ValueError, OSError) as error:
        raise WeightsError(
            f"could not join group {group.group_name!r} at {group.master_address}:"
            f"{group.master_port} within {timeout_s:.0f} s: {_first_line(error)}"
        ) from error
    return joined


def _destroy(name: str, process_group: Any) -> None:  # torch's own group
    try:
        dist.destroy_process_group(process_group)
    except (RuntimeError, ValueError, AssertionError) as error:
        log.warning("group left uncleanly", group=name, detail=str(error)[:300])


def _receive(
    group: _Group, expected: Expected, timeout_s: float, note: Callable[[int], None]
) -> dict[str, torch.Tensor]:
    device = "cuda" if group.backend == "nccl" else "cpu"
    ends = time.monotonic() + timeout_s
    done = 0
    found: dict[str, torch.Tensor] = {}
    if expected.is_flat:
        flat = torch.full((_size_bytes(expected),), 0xFF, dtype=torch.uint8, device=device)
        _broadcast(group, flat, ends, "the flattened bucket")
        note(flat.numel())
        return _cut(flat.cpu(), expected)
    for name, dtype, shape in zip(expected.names, expected.dtypes, expected.shapes, strict=True):
        # NaN until it is written: a buffer that nothing was sent into is not taken for weights.
        tensor = torch.full(shape, math.nan, dtype=dtype, device=device)
        _broadcast(group, tensor, ends, f"tensor {name}")
        found[name] = tensor.cpu()
        done += tensor.numel() * tensor.element_size()
        note(done)
    return found


def _broadcast(group: _Group, tensor: torch.Tensor, ends: float, what: str) -> None:
    left = timedelta(seconds=max(0.05, ends - time.monotonic()))
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor, options.timeout = 0, 0, left
    try:
        group.process_group.broadcast([tensor], options).wait(left)
        if tensor.is_cuda:
            torch.cuda.current_stream().synchronize()
    except (RuntimeError, ValueError) as error:
        raise WeightsError(f"{what} did not come: {_first_line(error)}") from error


def _size_bytes(expected: Expected) -> int:
    pairs = zip(expected.dtypes, expected.shapes, strict=True)
    return sum(math.prod(shape) * dtype.itemsize for dtype, shape in pairs)


def _cut(flat: torch.Tensor, expected: Expected) -> dict[str, torch.Tensor]:
    found, start = {}, 0
    for name, dtype, shape in zip(expected.names, expected.dtypes, expected.shapes, strict=True):
        end = start + math.prod(shape) * dtype.itemsize
        found[name] = flat[start:end].clone().view(dtype).view(shape)
        start = end
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
