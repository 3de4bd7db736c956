"""Parent of the frontend and of all ranks: starts them, restarts what dies, kills what is silent.

It alone knows who is alive, and numbers each rank start with a durable counter, so that no message
of an earlier process is ever taken for a later one's. When it dies, the kernel ends all children.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from engine import keys
from engine.children import ending, start
from engine.config import CANNOT_START, ConfigError, EngineConfig, check, write
from engine.ipc.messages import AskProcesses, KillRank, Processes, RankProcess
from engine.ipc.wire import decode_to_launch, encode
from engine.log import get_logger, setup

log = get_logger()

_POLL_MS = 50
_HEARTBEAT_S = 0.5
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_MAX_DEATHS = 5
_DEATH_WINDOW_S = 60.0
_STOP_S = 8.0
_RETRY_S = 1.0
_PORT_S = 3.0
DIES_TOO_OFTEN = 70  # exit status: starting again would not help


@dataclass(slots=True)
class Child:
    """One kept process: the frontend, or a rank with its incarnation."""

    name: str
    rank: int | None
    process: subprocess.Popen[bytes] | None = None
    inc: int = 0
    start_at: float = 0.0
    deaths: deque[float] = field(default_factory=deque)


class Launcher:
    """Runs until told to stop, or until a child dies too often."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        run_dir = Path(config.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        run_dir.chmod(0o700)
        self._config_path = str(run_dir / "engine.json")
        write(msgspec.structs.replace(config, launch=uuid.uuid4().hex), self._config_path)
        self._counter = IncarnationCounter(Path(config.journal_path).with_name("incarnations"))
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(config.launch_address)
        self._frontends: dict[bytes, float] = {}
        self._children = [Child("frontend", None)] + [
            Child(f"rank {rank}", rank) for rank in range(config.dp_size)
        ]
        self._stopping = False
        self._told_at = 0.0

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        status = 0
        while not self._stopping and status == 0:
            now = time.monotonic()
            status = self._keep(now)
            if self._socket.poll(_POLL_MS):
                self._receive(now)
            if now - self._told_at > _HEARTBEAT_S:
                self._tell(now)
        self._end_children()
        self._context.destroy(linger=0)
        return status

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _keep(self, now: float) -> int:
        """Reap the dead, start the due; non-zero when starting again would not help."""
        changed = False
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                changed = True
                if self._died(child, now):
                    return DIES_TOO_OFTEN
            if child.process is None and now >= child.start_at:
                changed = True
                self._start_or_wait(child, now)
        if changed:
            self._tell(now)
        return 0

    def _died(self, child: Child, now: float) -> bool:
        assert child.process is not None
        status = child.process.returncode
        how = ending(status)
        child.process = None
        if status == CANNOT_START:
            log.error("child cannot start, stopping", child=child.name)
            return True
        child.deaths.append(now)
        while child.deaths and child.deaths[0] < now - _DEATH_WINDOW_S:
            child.deaths.popleft()
        if len(child.deaths) >= _MAX_DEATHS:
            log.error("child dies too often, stopping", child=child.name, how=how)
            return True
        wait_s = _BACKOFF_S[min(len(child.deaths), len(_BACKOFF_S)) - 1]
        child.start_at = now + wait_s
        log.warning("child died, restarting", child=child.name, how=how, in_s=wait_s)
        return False

    def _start_or_wait(self, child: Child, now: float) -> None:
        """No disk or no memory now: the other children go on, and this one is tried again."""
        try:
            self._start(child)
        except OSError as error:
            log.error("cannot start child", child=child.name, reason=str(error))
            child.start_at = now + _RETRY_S

    def _start(self, child: Child) -> None:
        arguments = ["frontend", "--config", self._config_path]
        if child.rank is not None:
            child.inc = self._counter.next()
            arguments = ["rank", "--config", self._config_path]
            arguments += ["--rank", str(child.rank), "--inc", str(child.inc)]
        child.process = start(arguments)
        log.info("child started", child=child.name, pid=child.process.pid, inc=child.inc)

    def _receive(self, now: float) -> None:
        while True:
            try:
                peer, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._frontends[peer] = now
            match decode_to_launch(frame):
                case AskProcesses():
                    self._tell(now)
                case KillRank(rank=rank, inc=inc):
                    self._kill(rank, inc)

    def _kill(self, rank: int, inc: int) -> None:
        for child in self._children:
            if child.rank == rank and child.inc == inc and child.process is not None:
                log.warning("rank is silent, killing it", child=child.name, inc=inc)
                child.process.kill()

    def _tell(self, now: float) -> None:
        self._told_at = now
        frame = encode(
            Processes(
                ranks=[
                    RankProcess(rank=child.rank, inc=child.inc, alive=child.process is not None)
                    for child in self._children
                    if child.rank is not None
                ]
            )
        )
        self._frontends = {
            peer: heard for peer, heard in self._frontends.items() if now - heard < 10.0
        }
        for peer in self._frontends:
            self._socket.send_multipart([peer, frame], zmq.NOBLOCK)

    def _end_children(self) -> None:
        """The frontend first: it ends its connections while the ranks still answer."""
        for group in (self._children[:1], self._children[1:]):
            running = [child.process for child in group if child.process is not None]
            for process in running:
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            for process in running:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class IncarnationCounter:
    """A number that no rank start ever had before, across all starts of this engine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def next(self) -> int:
        """The next number, on disk before it is used."""
        try:
            last = int(self._path.read_text())
        except FileNotFoundError:
            last = 0
        except ValueError:  # damaged: seconds since 1970 are more than any count of starts
            last = int(time.time())
        temp = self._path.with_suffix(".new")
        with temp.open("w") as file:
            file.write(str(last + 1))
            file.flush()
            os.fsync(file.fileno())
        temp.replace(self._path)
        return last + 1


def main(config: EngineConfig) -> int:
    """Run an engine; returns the exit status. Raises ConfigError."""
    setup("launch", config.log_level)
    check(config)
    keys.check(config)
    _wait_for_port(config)
    folders = {Path(config.run_dir), Path(config.journal_path).parent}
    with ExitStack() as locks:
        try:
            for folder in sorted(folders):
                locks.enter_context(_held(folder))
            launcher = Launcher(config)
        except (OSError, zmq.ZMQError) as error:
            raise ConfigError(f"cannot use {', '.join(map(str, folders))}: {error}") from error
        return launcher.run()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep a second engine out: it would take this one's sockets and overwrite its settings."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another engine runs in {folder}") from error
        yield


def _wait_for_port(config: EngineConfig) -> None:
    """The children of an engine that was killed just now may still be going away."""
    until = time.monotonic() + _PORT_S
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, config.port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise ConfigError(
                        f"cannot serve on port {config.port} of {config.host}: {error.strerror}"
                    ) from error
            else:
                return
        time.sleep(0.1)
