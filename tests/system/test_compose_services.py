"""Each service of docker-compose.yml by its own command and environment: a real PostgreSQL, a real
Valkey with a password and a real engine, on this host instead of in containers."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest

from tests.fakes import plain_http
from tests.fakes.compose import Composed
from tests.fakes.postgres import postgres_bin
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.process

SECRETS = ("QUIESCE_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "QUIESCE_ADMIN_API_KEY")
MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def composed(postgres_url: str, smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[Composed]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS quiesce")
        connection.execute("CREATE DATABASE quiesce")
    folder, programs = Path(parse_qs(urlsplit(postgres_url).query)["host"][0]), postgres_bin()
    assert programs is not None, "postgres_url has skipped without them"
    made = Composed({name: secrets.token_hex(24) for name in SECRETS}, folder, programs)
    # Converted and compiled once for all tests; the command finds both and goes on.
    state = made.volume("engine")
    (state / "kernels").symlink_to(cpu_ext_dir)
    shutil.copytree(smollm2_dir, state / "models" / MODEL, copy_function=_link)
    try:
        yield made
    finally:
        made.stop()
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE quiesce WITH (FORCE)")


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def test_every_service_starts_by_its_own_command_and_a_job_is_done(composed: Composed) -> None:
    order = ["redis", "prepare", "engine", "web", "worker", "relay", "reconciler"]
    assert {*order, "postgres"} == set(composed.services), "none is left out"
    wait_until(lambda: composed.is_healthy("postgres"))
    composed.start("redis")
    wait_until(lambda: composed.is_healthy("redis"))
    composed.run("prepare")
    for service in order[2:]:
        composed.start(service)
    wait_until(lambda: composed.is_healthy("engine"), every_s=0.5)
    wait_until(lambda: composed.is_healthy("web"), every_s=0.5)

    token = (composed.volume("state") / "admin-token").read_text().strip()

    def ask(method: str, path: str, **options: object) -> dict[str, object]:
        answer = plain_http.request(
            method,
            f"{composed.url}/api/v1{path}",
            headers={"Authorization": f"Bearer {token}"},
            **options,
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    wait_until(lambda: ask("GET", "/engines/local")["online"], every_s=0.2)

    def num_proven() -> int:  # an engine is healthy from its first rank on, a flush needs them all
        ranks = ask("GET", "/engines/local")["ranks"]
        return sum(rank["proven"] for rank in ranks)  # type: ignore[attr-defined]

    wait_until(lambda: num_proven() == 2, every_s=0.2)
    wait_until(lambda: _health(composed)["status"] == "ok", every_s=0.2)
    seen = str(ask("GET", "/engines/local")["http_address"])
    assert plain_http.get(f"{seen}/health").status_code == 200, "where the console finds its HTTP"
    body = {"engine": "local", "kind": "flush_cache", "reason": "compose", "params": {}}
    job_id = ask("POST", "/jobs", json=body)["id"]
    wait_until(lambda: ask("GET", f"/jobs/{job_id}")["finished_at"], every_s=0.2)
    job = ask("GET", f"/jobs/{job_id}")
    assert (job["state"], job["error"]) == ("succeeded", None)
    assert [rank["state"] for rank in job["ranks"]] == ["succeeded"] * 2, job  # type: ignore[attr-defined]
    assert composed.is_healthy("redis")
    assert (composed.volume("redis") / "appendonlydir").is_dir(), "what is queued survives"
    for service in order[2:]:
        assert composed.is_running(service), composed.log(service)


def _health(composed: Composed) -> dict[str, object]:
    try:
        return dict(plain_http.get(f"{composed.url}/healthz").json())
    except httpx.HTTPError as error:
        return {"status": repr(error)}
