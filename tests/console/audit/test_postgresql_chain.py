"""The chain on real PostgreSQL: the trigger's hashes, a role that can only append, 64 writers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from console.chain import GENESIS, body_digest, entry_hash
from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process

INSERT = (
    "INSERT INTO console_auditentry (seq, v, body, hash, created_at, action, stage, actor_name,"
    " via, token_prefix, request_id, engine_name, kind, result) VALUES"
    " (0, 1, %s, '', now(), 'x', 'note', 'x', 'api', '', '', '', '', '')"
)


def manage_of(url, tmp_path_factory):
    """manage.py on this database."""
    state = tmp_path_factory.mktemp("state")
    env = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    env |= {
        "DATABASE_URL": url,
        "QUIESCE_STATE_DIR": str(state),
        "QUIESCE_SECRET_KEY": "k" * 20 + os.urandom(20).hex(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }

    def run(*words, check=True):
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0 or not check, done.stderr
        return done

    run("prepare_state", "--secret-only")
    return run


@pytest.fixture(scope="module")
def url(postgres_url):
    """A database of this module's own."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE DATABASE chain")
    return postgres_url.replace("/postgres?", "/chain?")


@pytest.fixture(scope="module")
def manage(url, tmp_path_factory):
    run = manage_of(url, tmp_path_factory)
    run("migrate", "--verbosity", "0")
    return run


@pytest.fixture(scope="module")
def writer_url(manage, url):
    """A role that the command has restricted, as the console's own."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(INSERT, ["{}"])
        owner.execute("CREATE ROLE writer LOGIN PASSWORD 'writer-word'")
    done = manage("restrict_role", "writer")
    assert "may append to the audit log and read it" in done.stdout
    return psycopg.conninfo.make_conninfo(url, user="writer", password="writer-word")


def chain_of(connection):
    return connection.execute(
        "SELECT seq, body, hash FROM console_auditentry ORDER BY seq"
    ).fetchall()


def assert_chained(rows):
    before = GENESIS
    for number, (seq, body, found) in enumerate(rows, start=1):
        before = entry_hash(before, seq, body_digest(body))
        assert (seq, found) == (number, before.hex())


@pytest.mark.parametrize("turns", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_64_writers_leave_no_gap_and_one_chain(writer_url, turns):
    """64 threads over as many connections as the server has; one append of five is rolled back."""
    with psycopg.connect(writer_url) as connection:
        before = sum("n" in row[1][:4] for row in chain_of(connection))
    with (
        ConnectionPool(writer_url, max_size=24, timeout=PATIENCE_S) as connections,
        ThreadPoolExecutor(64) as pool,
    ):

        def write(number):
            for turn in range(turns):
                with connections.connection() as connection:
                    connection.execute(INSERT, [f'{{"n":"{number}-{turn} é"}}'])
                    if turn % 5 == 4:
                        connection.rollback()

        list(pool.map(write, range(64)))
    with psycopg.connect(writer_url) as connection:
        rows = chain_of(connection)
    assert_chained(rows)
    assert sum("n" in row[1][:4] for row in rows) - before == 64 * turns * 4 // 5


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE console_auditentry SET body = 'x'",
        "DELETE FROM console_auditentry",
        "TRUNCATE console_auditentry",
        "ALTER TABLE console_auditentry DISABLE TRIGGER ALL",
        "DROP TRIGGER console_audit_append ON console_auditentry",
        "DROP TABLE console_auditentry",
        "SET session_replication_role = replica",
        "CREATE OR REPLACE FUNCTION console_audit_append() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RETURN NEW; END'",
        "DELETE FROM console_auditsegment",
        "INSERT INTO console_auditentry SELECT * FROM console_auditentry WHERE seq = 1",
    ],
)
def test_the_consoles_role_can_only_append(writer_url, statement):
    with psycopg.connect(writer_url) as connection:
        before = chain_of(connection)
        with pytest.raises(psycopg.Error):
            connection.execute(statement)
        connection.rollback()
        assert chain_of(connection) == before


def test_a_temporary_table_of_the_same_name_misleads_nobody(writer_url):
    with psycopg.connect(writer_url) as connection:
        connection.execute("CREATE TEMP TABLE console_auditentry (seq bigint, hash text)")
        schema = "public"
        connection.execute(INSERT.replace("console_", f"{schema}.console_", 1), ["{}"])
        connection.execute("DROP TABLE pg_temp.console_auditentry")
        connection.commit()
        assert_chained(chain_of(connection))


def test_a_role_that_is_none_and_a_superuser_are_refused(manage, postgres_url):
    assert "there is no role" in manage("restrict_role", "nobody-here", check=False).stderr
    with psycopg.connect(postgres_url) as connection:
        ((name,),) = connection.execute("SELECT current_user").fetchall()
    assert "whom nothing restricts" in manage("restrict_role", name, check=False).stderr


def test_the_migration_chains_what_was_there_before(postgres_url, tmp_path_factory):
    """Entries of a console of before the chain get their hashes, and their bodies stay."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("CREATE DATABASE older")
    url = postgres_url.replace("/postgres?", "/older?")
    manage = manage_of(url, tmp_path_factory)
    manage("migrate", "console", "0004", "--verbosity", "0")
    with psycopg.connect(url) as owner:
        for seq in range(1, 2501):
            body = (
                '{"action":"job.accepted","actor":{"id":1,"ip":"","name":"ana","request":"r1",'
                '"token":"qsc_abcdefgh","via":"api"},"engine":"local","job":null,'
                f'"object":"x","stage":"intent","v":1,"n":{seq}}}'
            )
            owner.execute(
                "INSERT INTO console_auditentry (seq, v, body, created_at, action, stage,"
                " actor_name, engine_name) VALUES (%s, 1, %s, now(), 'job.accepted', 'intent',"
                " 'ana', 'local')",
                [seq, body],
            )
    manage("migrate", "--verbosity", "0")
    with psycopg.connect(url) as owner:
        rows = chain_of(owner)
        assert len(rows) == 2500
        assert_chained(rows)
        found = owner.execute(
            "SELECT DISTINCT via, token_prefix, request_id, result FROM console_auditentry"
        ).fetchall()
        assert found == [("api", "qsc_abcdefgh", "r1", "recorded")]
        with pytest.raises(psycopg.errors.RaiseException):
            owner.execute("UPDATE console_auditentry SET hash = ''")
