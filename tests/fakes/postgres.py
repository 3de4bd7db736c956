"""A private PostgreSQL cluster that lives as long as a `with`; as root it runs as another user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.fakes.waiting import PATIENCE_S, wait_until


def postgres_bin() -> Path | None:
    """The folder of initdb and postgres; None where they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path and shutil.which("postgres") else None


@contextlib.contextmanager
def postgres(
    folder: Path, *, superuser: str = "quiesce", port: int = 0, max_connections: int = 30
) -> Iterator[str]:
    """Start one from the programs in `folder`; yields its superuser's URL on a unix socket. With a
    port it listens on 127.0.0.1 too, where everybody needs a password."""
    root = Path(tempfile.mkdtemp(prefix="q-pg-"))
    root.chmod(0o755)
    data = root / "data"
    data.mkdir(mode=0o700)
    user: dict[str, object] = {}
    if os.geteuid() == 0:  # initdb refuses root
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        shutil.chown(root, entry.pw_uid, entry.pw_gid)
        shutil.chown(data, entry.pw_uid, entry.pw_gid)
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    subprocess.run(
        [
            *(folder / "initdb", "-D", data, "-U", superuser, "-N", "-E", "UTF8"),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=root,
        **user,
    )
    server = subprocess.Popen(
        [
            *(folder / "postgres", "-D", data, "-k", root),
            *("-c", f"listen_addresses={'127.0.0.1' if port else ''}", "-p", str(port or 5432)),
            *("-c", f"max_connections={max_connections}", "-c", "superuser_reserved_connections=3"),
            *("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=root,
        **user,
    )

    url = f"postgresql://{superuser}@/postgres?host={root}&port={port or 5432}"

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        wait_until(answers)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE_S)
        shutil.rmtree(root, ignore_errors=True)
