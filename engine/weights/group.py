"""The trainers' groups that a DP rank is in: torch.distributed, gloo on CPU, nccl on CUDA.

Every wait has an end, and none is on the scheduler's thread. A group that failed once is left: the
two sides may no longer agree on what is sent next. A process of its own stands in each group, for a
peer that sends the wrong thing ends it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.models.config import ModelConfig
from engine.protocol import TrainerGroup, UpdateWeightsFromDistributed
from engine.weights.errors import WeightsError
from engine.weights.expected import Expected, expected_of
from engine.weights.receiver_client import Receiver
from engine.weights.sources import Opened, from_memory

SPILL_FILE = "model.safetensors"


class _Joining:
    """An attempt that is under way."""


class TrainerGroups:
    """The groups that this rank is in. Called from background threads, one at a time a group."""

    def __init__(self, dp_rank: int) -> None:
        self._dp_rank = dp_rank
        self._lock = threading.Lock()
        self._groups: dict[str, Receiver | _Joining] = {}
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
        if not self._replace(name, attempt, joined):
            joined.close()
            raise WeightsError(f"group {name!r} was left while this rank joined it")

    def _replace(self, name: str, attempt: _Joining, made: Receiver | None) -> bool:
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
        if not isinstance(group, Receiver):
            return False
        group.close()
        return True

    def leave_all(self) -> None:
        """The frontend that knew of them is gone."""
        with self._lock:
            names = list(self._groups)
        for name in names:
            self.leave(name)
        self._received.clear()

    def _group(self, name: str) -> Receiver:
        with self._lock:
            group = self._groups.get(name)
        if not isinstance(group, Receiver):
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
            found = group.receive(expected, timeout_s, note)
        except BaseException as error:
            self._fail(session, group_name)
            if not isinstance(error, WeightsError):
                raise
            raise WeightsError(f"the tensors did not come: {error}") from error
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


def _join(group: TrainerGroup, rank: int, timeout_s: float) -> Receiver:
    if rank >= group.world_size:
        raise WeightsError(f"rank {rank} does not fit a group of {group.world_size}")
    if group.backend == "nccl" and not torch.cuda.is_available():
        raise WeightsError("backend nccl needs CUDA; this engine computes on a CPU: use gloo")
    receiver = Receiver()
    try:
        receiver.join(group, rank, timeout_s)
    except BaseException as error:
        receiver.close()
        if not isinstance(error, WeightsError):
            raise
        raise WeightsError(
            f"could not join group {group.group_name!r} at {group.master_address}:"
            f"{group.master_port} within {timeout_s:.0f} s: {error}"
        ) from error
    return receiver
