"""POST /users: the name is kept as a log-in reads it, and is one person's only."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from console.actors import Actor
from console.models import User
from console.services.grants import grant_give

pytestmark = pytest.mark.django_db

FULL_WIDTH = "\uff22\uff2f\uff22"  # BOB in letters as wide as a kanji


@pytest.fixture
def admin(user, api):
    grant_give(username=user.username, role="admin", actor=Actor.system("test"))
    return api


def make(api, username, **more):
    body = {"username": username, "roles": ["viewer"], **more}
    return api.post("/api/v1/users", body, content_type="application/json")


def test_a_name_is_kept_as_a_log_in_reads_it(admin):
    answer = make(admin, FULL_WIDTH)
    assert answer.status_code == 201, answer.content
    assert answer.json()["username"] == "BOB"
    assert [one["role"] for one in answer.json()["grants"]] == ["viewer"]
    for typed in ("BOB", FULL_WIDTH):
        form = {"username": typed, "password": answer.json()["password"]}
        assert Client().post("/login", form).status_code == 302, typed


@pytest.mark.parametrize("again", ["BOB", "bob", "Bob", FULL_WIDTH])
def test_a_name_that_differs_in_case_or_width_is_taken(admin, again):
    assert make(admin, "BOB").status_code == 201
    answer = make(admin, again)
    assert answer.status_code == 409 and "'BOB' exists already" in answer.json()["detail"]
    assert User.objects.filter(username__iexact="bob").count() == 1


def test_letters_of_any_script_have_one_case(admin):
    assert make(admin, "\u00e9mile").status_code == 201
    assert make(admin, "\u00c9mile").status_code == 409


@pytest.mark.parametrize("name", ["a b", "a/b", "\u00bd", "a\nb", " ", "a\u202eb", "\ufb00" * 76])
def test_a_name_of_other_characters_is_refused(admin, name):
    count = User.objects.count()
    answer = make(admin, name)
    assert answer.status_code == 422 and "user name" in answer.json()["detail"]
    assert User.objects.count() == count


def test_the_command_follows_the_same_rule(user):
    said = io.StringIO()
    call_command("create_user", FULL_WIDTH, "--role", "operator", stdout=said, stderr=said)
    assert "user BOB made: operator" in said.getvalue()
    assert User.objects.get(username="BOB").check_password(said.getvalue().split()[-1])
    for name, why in (("bob", "'BOB' exists already"), ("a b", "user name")):
        with pytest.raises(CommandError, match=why):
            call_command("create_user", name, stdout=said, stderr=said)


def test_the_page_follows_the_same_rule(user):
    page = Client()
    page.force_login(user)
    grant_give(username=user.username, role="admin", actor=Actor.system("test"))
    form = {"username": FULL_WIDTH, "role": "viewer"}
    answer = page.post("/new-user", {**form, "key": "1"})
    assert answer.status_code == 201 and "User BOB" in answer.content.decode()
    assert page.post("/new-user", {**form, "key": "2"}).status_code == 409
