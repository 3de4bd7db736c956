"""Second half of bin/run, in the project's environment: prepare the state, keep all children alive.

Ctrl-C or SIGTERM stops them in order. When this process is killed, the kernel ends them all. A
child that dies is named and started again, later each time; five deaths in a minute end everything.
"""

from __future__ import annotations

import ctypes
import json
import logging
import logging.handlers
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import options
import reach
import services
import state
from environment import say

_PR_SET_PDEATHSIG = 1
_BACKOFF_S = (0.3, 1.0, 2.0, 4.0, 4.0)
_MAX_DEATHS = 5
_WINDOW_S = 60.0
_READY_TIMEOUT_S = 300.0
_LOUD = ("level='warning'", "level='error'", "level='critical'", "ERROR", "CRITICAL", "Traceback")


@dataclass
class Child:
    """A kept process and its history."""

    service: services.Service
    process: subprocess.Popen[str] | None = None
    due_at: float = 0.0
    deaths: deque[float] = field(default_factory=deque)


class Supervisor:
    """Keeps one Plan running."""

    def __init__(self, plan: services.Plan) -> None:
        self._plan = plan
        self._children = [Child(service) for service in plan.services]
        self._logs = plan.options.state_dir / "logs"
        self._is_stopping = False
        self._is_ready = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._is_stopping = True

    def run(self) -> int:
        """Until told to stop, or until a child dies too often; returns the exit status."""
        started = time.monotonic()
        status = 0
        while not self._is_stopping and not status:
            status = self._keep()
            if not self._is_ready and not status:
                self._is_ready = self._announce_if_ready()
                if time.monotonic() - started > _READY_TIMEOUT_S and not self._is_ready:
                    say(f"not ready after {_READY_TIMEOUT_S:.0f} s; see {self._logs}")
                    status = 1
            time.sleep(0.1)
        self._stop_all()
        return status

    def _keep(self) -> int:
        now = time.monotonic()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                status = self._died(child, now)
                if status:
                    return status
            if child.process is None and now >= child.due_at:
                self._start(child)
        return 0

    def _died(self, child: Child, now: float) -> int:
        assert child.process is not None
        name, status = child.service.name, child.process.returncode
        child.process = None
        child.deaths.append(now)
        while child.deaths[0] < now - _WINDOW_S:
            child.deaths.popleft()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        if status == child.service.fatal_status or len(child.deaths) >= _MAX_DEATHS:
            say(f"{name} ended with {how} too often; stopping. See {self._logs / name}.log")
            return 1
        wait_s = _BACKOFF_S[len(child.deaths) - 1]
        child.due_at = now + wait_s
        say(f"{name} died ({how}); starting it again in {wait_s:g} s")
        return 0

    def _start(self, child: Child) -> None:
        service, parent = child.service, os.getpid()

        def before_exec() -> None:
            if sys.platform == "linux":
                ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)

        child.process = subprocess.Popen(
            service.command,
            cwd=services.ROOT,
            env=service.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=before_exec,
        )
        threading.Thread(target=self._pump, args=(service.name, child.process), daemon=True).start()

    def _pump(self, name: str, process: subprocess.Popen[str]) -> None:
        """Copy a child's lines to its rotated log; show those that a person should see."""
        handler = logging.handlers.RotatingFileHandler(
            self._logs / f"{name}.log", maxBytes=10 << 20, backupCount=4, errors="replace"
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip("\n")
            handler.emit(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))
            loading = not self._is_ready and name == "engine" and "rank" in text
            if loading or any(word in text for word in _LOUD):
                print(f"  {name} | {text[:300]}", flush=True)
        handler.close()

    # ---- readiness ---------------------------------------------------------------------------

    def _announce_if_ready(self) -> bool:
        wanted = self._plan.options
        console = f"http://127.0.0.1:{wanted.port}"
        engine = f"http://127.0.0.1:{wanted.engine_port}"
        if wanted.has_engine and not self._is_engine_ready(engine):
            return False
        body = _get(f"{console}/healthz")
        if body is None or not self._is_well(json.loads(body)):
            return False
        tail = f", engine {engine}" if wanted.has_engine else ""
        print(f"ready: console {console}{tail}", flush=True)
        say(f"log in as admin with the password in {wanted.state_dir / 'admin-password'}")
        return True

    def _is_engine_ready(self, engine: str) -> bool:
        """Every rank is: /health is 200 with one, and an operation needs them all."""
        body = _get(f"{engine}/v1/loads?include=core", key=self._plan.admin_key)
        loads = json.loads(body)["loads"] if body is not None else []
        return len(loads) == self._plan.options.dp_size and all(load["ready"] for load in loads)

    def _is_well(self, health: dict[str, object]) -> bool:
        parts = health.get("parts")
        assert isinstance(parts, dict)
        return all(
            part.get("status") == "ok" if isinstance(part, dict) else part in ("ok", True)
            for name, part in parts.items()
            if name != "engine" or self._plan.options.has_engine
        )

    # ---- the end -----------------------------------------------------------------------------

    def _stop_all(self) -> None:
        say("stopping")
        by_name = {child.service.name: child for child in self._children}
        for name in self._plan.stop_order():
            if name in by_name:
                _stop(by_name[name])


def _stop(child: Child) -> None:
    process = child.process
    if process is None:
        return
    for name, seconds in child.service.stop:
        try:
            if name == "SIGKILL":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.send_signal(getattr(signal, name))
            process.wait(seconds)
            break
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    try:  # what the child itself left behind in its session
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _get(url: str, *, key: str = "") -> bytes | None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own address
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310 - the same
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, OSError):
        return None


def _manage(env: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, str(services.ROOT / "manage.py"), *arguments]
    done = subprocess.run(
        command, cwd=services.ROOT, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        options.fail(f"manage.py {arguments[0]} failed: {last}", 1)


def _has_text(path: Path) -> bool:
    return path.is_file() and bool(path.read_text().strip())


def _prepare(plan: services.Plan) -> None:
    """Secret key, tables, first admin, the engine's registration: all idempotent."""
    env = next(service.env for service in plan.services if service.name == "web")
    reach.check(plan.options)
    if not _has_text(plan.options.state_dir / "secret-key"):
        _manage(env, "prepare_state", "--secret-only")  # a process reads it once, when it starts
    run = plan.run_dir
    _manage(
        env,
        *("prepare_state", "--migrate", "--engine-control", f"ipc://{run}/control.sock"),
        *("--engine-events", f"ipc://{run}/events.sock"),
    )


def _model(wanted: options.Options) -> Path | None:
    """The folder to serve: the one named, else the packaged model, converted once."""
    if wanted.model is not None or not wanted.has_engine:
        return wanted.model
    target = wanted.state_dir / "models" / "SmolLM2-135M-Instruct"
    if not (target / "config.json").exists():
        say("converting the packaged model to a Hugging Face folder, once")
        done = subprocess.run(
            [sys.executable, "-m", "engine", "convert", "--out", str(target)],
            cwd=services.ROOT,
            check=False,
        )
        if done.returncode:
            options.fail("the model could not be converted; the reason is above", 1)
    return target


def main() -> int:
    """Prepare and run; returns the exit status."""
    wanted = options.read(sys.argv[1:])
    state.open_folder(wanted.state_dir)
    lock = state.hold(wanted.state_dir)
    plan = services.plan(wanted, run_dir=state.run_dir(wanted.state_dir), model=_model(wanted))
    _prepare(plan)
    say("starting " + ", ".join(service.name for service in plan.services))
    try:
        return Supervisor(plan).run()
    finally:
        os.close(lock)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        options.fail(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
