"""manage.py as people meet it: what is wrong is one sentence, and a token can be ended."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from console.actors import Actor
from console.models import AuditEntry
from console.services.tokens import token_create, token_verify
from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def manage(*arguments: str, python: tuple[str, ...] = (), **env: str):
    return subprocess.run(
        [*(python or (sys.executable,)), str(ROOT / "manage.py"), *arguments],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("is_there", [False, True])
def test_a_state_folder_that_was_never_started_is_one_sentence(tmp_path, is_there):
    folder = tmp_path / "state"
    if is_there:
        folder.mkdir()
    done = manage("create_user", "bob", QUIESCE_STATE_DIR=str(folder))
    assert done.returncode == 1
    assert "QUIESCE_STATE_DIR" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.process
def test_a_python_without_django_is_one_sentence():
    done = manage("create_user", "bob", python=(sys.executable, "-S"))
    assert done.returncode == 1
    assert ".venv/bin/python manage.py" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.django_db
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_revoked_token_ends_at_once_and_is_on_record(user, is_whole):
    made = token_create(username=user.username, name="ci", actor=Actor.system("test"))
    said = io.StringIO()
    call_command("revoke_token", made.text if is_whole else made.text[:12], stderr=said)
    assert token_verify(text=made.text) is None
    assert "token ci of ana revoked" in said.getvalue()
    assert AuditEntry.objects.filter(action="token.revoked").count() == 1


@pytest.mark.django_db
def test_an_unknown_token_cannot_be_revoked():
    with pytest.raises(CommandError, match="no token begins with qsc_nothere"):
        call_command("revoke_token", "nothere")


@pytest.mark.django_db
def test_a_token_has_a_name(user):
    with pytest.raises(CommandError, match="name"):
        call_command("create_token", user.username, " ")
