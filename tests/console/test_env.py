"""Unsafe and malformed settings are refused, each with one clear sentence."""

from __future__ import annotations

import pytest

from console.project.databases import celery_broker_url, database_from_url
from console.project.env import EnvError, env_read

GOOD = {"QUIESCE_SECRET_KEY": "k3Y" + "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF"}


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({"QUIESCE_SECRET_KEY": "short"}, "too weak"),
        ({"QUIESCE_SECRET_KEY": "a" * 60}, "too weak"),
        ({"QUIESCE_SECRET_KEY": "django-insecure-" + GOOD["QUIESCE_SECRET_KEY"]}, "default"),
        ({"QUIESCE_ALLOWED_HOSTS": "*"}, "wildcard"),
        ({"QUIESCE_ALLOWED_HOSTS": "*.example.org"}, "wildcard"),
        ({"QUIESCE_ALLOWED_HOSTS": "https://example.org"}, "scheme"),
        ({"QUIESCE_DEBUG": "1", "QUIESCE_ALLOWED_HOSTS": "console.example.org"}, "debug"),
        ({"QUIESCE_DEBUG": "maybe"}, "1 or 0"),
        ({"QUIESCE_CSRF_TRUSTED_ORIGINS": "example.org"}, "whole origins"),
        ({"DATABASE_URL": "mysql://x/y"}, "DATABASE_URL"),
        ({"REDIS_URL": "http://x"}, "REDIS_URL"),
        ({"QUIESCE_DATABASE_POOL_SIZE": "0"}, "from 1 to 1000"),
        ({"QUIESCE_LOG_LEVEL": "loud"}, "DEBUG"),
    ],
)
def test_a_bad_value_is_one_sentence_with_its_name(env, word, tmp_path):
    with pytest.raises(EnvError) as refused:
        env_read({**GOOD, "QUIESCE_STATE_DIR": str(tmp_path), **env})
    message = str(refused.value)
    assert word in message
    assert "\n" not in message
    for name, value in env.items():
        assert "SECRET" not in name or value not in message


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "secret-key"
    path.write_text(GOOD["QUIESCE_SECRET_KEY"])
    path.chmod(0o644)
    with pytest.raises(EnvError, match="0600"):
        env_read({"QUIESCE_STATE_DIR": str(tmp_path)})
    path.chmod(0o600)
    assert env_read({"QUIESCE_STATE_DIR": str(tmp_path)}).secret_key


def test_the_embedded_broker_of_a_running_bin_run_is_found_unless_another_is_named(tmp_path):
    path = tmp_path / "valkey" / "url"
    folder = {**GOOD, "QUIESCE_STATE_DIR": str(tmp_path)}
    assert env_read(folder).redis_url == "redis://127.0.0.1:6379/0"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text("redis://:p@127.0.0.1:4711/0\n")
    assert env_read(folder).redis_url == "redis://:p@127.0.0.1:4711/0"
    assert env_read({**folder, "REDIS_URL": "redis://h:1/0"}).redis_url == "redis://h:1/0"
    path.chmod(0o644)
    assert env_read({**folder, "REDIS_URL": "redis://h:1/0"}).redis_url == "redis://h:1/0"
    with pytest.raises(EnvError, match="0600"):
        env_read(folder)


def test_the_defaults_are_local_and_without_debug(tmp_path):
    env = env_read({**GOOD, "QUIESCE_STATE_DIR": str(tmp_path)})
    assert (env.debug, env.database_url) == (False, None)
    assert env.allowed_hosts == ("localhost", "127.0.0.1", "[::1]")


def test_a_postgresql_url_becomes_a_pool():
    found = database_from_url("postgresql://u:p%40@db:5433/q?sslmode=require", 7)
    assert (found["USER"], found["PASSWORD"], found["HOST"], found["PORT"], found["NAME"]) == (
        *("u", "p@", "db", "5433"),
        "q",
    )
    assert found["OPTIONS"]["pool"]["max_size"] == 7
    assert found["OPTIONS"]["sslmode"] == "require"


def test_a_unix_socket_of_redis_is_spelt_for_celery():
    assert celery_broker_url("unix:///run/v.sock") == "redis+socket:///run/v.sock"
    assert celery_broker_url("redis://h:1/0") == "redis://h:1/0"


def test_j01_a_worker_refuses_a_visibility_timeout_that_a_task_could_outlive():  # J01
    from django.core.exceptions import ImproperlyConfigured

    from console.project.worker import settings_check

    settings_check(visibility_timeout_s=3600, time_limit_s=900)
    with pytest.raises(ImproperlyConfigured, match="QUIESCE_VISIBILITY_TIMEOUT_S"):
        settings_check(visibility_timeout_s=2, time_limit_s=900)
    with pytest.raises(ImproperlyConfigured, match="TIME_LIMIT"):
        settings_check(visibility_timeout_s=3600, time_limit_s=100)
