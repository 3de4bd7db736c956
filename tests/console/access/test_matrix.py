"""Role × route × surface, every cell. A route, topic or command without a row fails here."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import get_resolver, reverse

from api.main import api as ninja_api
from console import notify
from console.access import EVERYTHING
from console.actors import Actor
from console.admin import site
from console.choices import JobKind, JobState, Via
from console.clock import db_now
from console.consumers import topics
from console.models import AuditEntry, Engine, Job, RoleGrant, Upload, User
from console.params import params_of
from console.selectors.access import rights_of
from console.services.audit_key import key_make
from console.services.engines import engine_register
from console.services.grants import grant_give
from console.services.jobs import job_create
from console.services.tokens import token_create
from console.services.users import user_create
from tests.console.access import matrix
from tests.console.conftest import PASSWORD

pytestmark = pytest.mark.django_db

SYSTEM = Actor.system("test")
ENGINE = "rack-seven"  # a word that no page has otherwise
PARAMS = {
    "update_weights_from_disk": {"model_path": "/models/x"},
    "update_weights_from_tensor": {"uploads": ["0" * 64]},
    "update_weights_from_distributed": {
        "group": {"master_address": "127.0.0.1", "master_port": 29500, "world_size": 2}
    },
    "update_weight_version": {"new_version": "v"},
    "abort_requests": {"abort_all": True},
    "attach_storage_backend": {"backend": "file", "config": {"file_storage_path": "/x"}},
    "set_cache_policies": {"write_policy": "write_back"},
}
WHO = [*matrix.ROLES, "*"]


def named(letter: str) -> str:
    return matrix.ROLES.get(letter, "norole")


class World:
    """An engine with an ended job, and one open job of somebody else; one person a role."""

    def __init__(self):
        engine_register(
            name=ENGINE, control_address="ipc:///nowhere/c.sock",
            events_address="ipc:///nowhere/e.sock", labels={"env": "prod"}, actor=SYSTEM,
        )  # fmt: skip
        self.people = {
            letter: user_create(
                username=named(letter), password=PASSWORD, actor=SYSTEM,
                roles=[matrix.ROLES[letter]] if letter in matrix.ROLES else [],
            )
            for letter in WHO
        }  # fmt: skip
        self.other = user_create(
            username="someone", password=PASSWORD, roles=["viewer", "operator"], actor=SYSTEM
        )
        asker = Actor(self.other.pk, "someone", Via.API, rights=EVERYTHING)
        self.job = job_create(
            engine_name=ENGINE, params=params_of("flush_cache", {}), reason="", actor=asker,
            on_conflict="refuse",
        ).job  # fmt: skip
        self.ended = Job.objects.get(pk=self.job.pk)
        self.ended.pk = "11111111-1111-4111-8111-111111111111"
        self.ended.state, self.ended.phase = JobState.FAILED, None
        self.ended.save(force_insert=True)
        self.upload = Upload.objects.create(
            name="x.safetensors", size_bytes=8, sha256="0" * 64, created_at=db_now(),
            used_at=db_now(), uploaded_by_name="someone",
        )  # fmt: skip
        self.token = token_create(username="someone", name="t", actor=SYSTEM).token
        self.grant = RoleGrant.objects.filter(user=self.other, role="viewer").get()

    def values(self, where: str) -> dict[str, object]:
        """What stands for each name in a path."""
        job = self.ended if "retry" in where or "undo" in where else self.job
        return {
            "name": ENGINE, "job_id": job.pk, "upload_id": self.upload.pk, "seq": 1,
            "prefix": self.token.prefix, "username": "someone", "grant_id": self.grant.pk,
            "kind": "pause_generation",
        }  # fmt: skip


@pytest.fixture(scope="module")
def made(django_db_setup, django_db_blocker):
    """Made once, in a transaction around those of the tests."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield World()
        transaction.set_rollback(True)


@pytest.fixture
def world(made, db, settings, tmp_path):
    settings.AUDIT_KEY_FILE = tmp_path / "key.pem"
    settings.AUDIT_ANCHORS_FILE = tmp_path / "anchors.jsonl"
    key_make()
    return made


def operations():
    for router in ninja_api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield method, re.sub(r"\{\w+:", "{", f"{router.prefix}{path}")


def page_names():
    """Every named URL outside of the API, and the API's own description."""
    found = set()
    for pattern in get_resolver().url_patterns:
        if getattr(pattern, "name", None):
            found.add(pattern.name)
        for inner in getattr(pattern, "url_patterns", []):
            if not str(pattern.pattern).startswith(("api/", "django-admin/")):
                found.add(inner.name)
    return found


def test_every_route_topic_and_command_has_its_row():
    assert set(operations()) == set(matrix.API)
    assert {name for _, name in matrix.PAGES} | matrix.PUBLIC >= page_names()
    assert {name for _, name in matrix.PAGES} <= page_names()
    assert set(matrix.KINDS) == set(JobKind.values)
    known = {name for name in matrix.TOPICS if topics.topic_is_known(_topic(name, matrix.ZERO))}
    assert known == set(matrix.TOPICS)
    read = inspect.getsource(topics.topic_read)
    assert set(re.findall(r'case "(\w+)"', read)) | {notify.JOBS} == set(matrix.TOPICS)
    folder = Path(__file__).parents[3] / "console" / "management" / "commands"
    commands = {path.stem for path in folder.glob("[a-z]*.py")}
    assert set(matrix.COMMANDS) | matrix.PROCESSES == commands


def _topic(kind, job_id):
    return {"engine": f"engine:{ENGINE}", "job": f"job:{job_id}"}.get(kind, kind)


def client_of(world, letter, *, token=False):
    user = world.people[letter]
    if token:
        text = token_create(username=user.username, name="m", actor=SYSTEM).text
        return Client(headers={"authorization": f"Bearer {text}"})
    client = Client()
    client.force_login(user)
    return client


BODIES = {
    ("POST", "/engines"): {
        "name": "new", "control_address": "ipc:///n/c.sock", "events_address": "ipc:///n/e.sock",
    },
    ("PATCH", "/engines/{name}"): {"labels": {"env": "prod"}},
    ("POST", "/jobs"): {"engine": ENGINE, "kind": "flush_cache"},
    ("POST", "/jobs/{job_id}/extend"): {"by_s": 5},
    ("POST", "/uploads"): {"name": "y.safetensors", "size_bytes": 9},
    ("POST", "/users"): {"username": "new.one", "is_service": True},
    ("PATCH", "/users/{username}"): {"is_active": True},
    ("POST", "/users/{username}/grants"): {"role": "viewer", "engines": "env=x"},
}  # fmt: skip


def judge(answer, allowed, hidden, where):
    """Who may is answered by what it is about, never by 401 or 403; who may not by 403, or by 404
    for what is not theirs to know of."""
    if allowed:
        assert answer.status_code not in (401, 403, 405), (where, answer.content[:300])
        return
    assert answer.status_code in ((404,) if hidden else (403, 404)), (where, answer.status_code)
    if answer.status_code == 403 and "json" in answer.get("Content-Type", ""):
        assert answer.json().get("act") or answer.json().get("error"), where


@pytest.mark.parametrize("letter", WHO)
@pytest.mark.parametrize(("method", "path"), matrix.API, ids=lambda v: str(v).replace("/", "."))
def test_the_api(world, method, path, letter):  # S09
    values = world.values(path)
    url = "/api/v1" + re.sub(r"\{(?:\w+:)?(\w+)\}", lambda m: str(values[m[1]]), path)
    body = BODIES.get((method, path))
    if (method, path) == ("POST", "/tokens"):
        body = {"name": "x", "expires_at": (db_now() + timedelta(days=1)).isoformat()}
    before = AuditEntry.objects.count()
    client = client_of(world, letter, token=True)
    is_piece = path == "/uploads/{upload_id}" and method == "PATCH"
    url += "?offset=0" if is_piece else ""
    kind = "application/octet-stream" if is_piece else "application/json"
    content = "x" if is_piece else "" if body is None else json.dumps(body)
    answer = client.generic(method, url, content, kind)
    allowed = letter in matrix.API[method, path]
    judge(answer, allowed, (method, path) in matrix.HIDDEN, (method, path, letter))
    if not allowed and method != "GET":
        news = AuditEntry.objects.filter(seq__gt=before + 1)  # the first one made the token
        assert [entry.action.partition(".")[0] for entry in news] == ["request"], "and on record"


@pytest.mark.parametrize("letter", WHO)
@pytest.mark.parametrize("kind", matrix.KINDS)
def test_every_kind_of_job(world, kind, letter):
    Job.objects.filter(pk=world.job.pk).update(state=JobState.CANCELLED, phase=None)
    client = client_of(world, letter, token=True)
    body = {"engine": ENGINE, "kind": kind, "params": PARAMS.get(kind, {})}
    before = Job.objects.count()
    answer = client.post("/api/v1/jobs", body, content_type="application/json")
    allowed = letter in matrix.KINDS[kind]
    judge(answer, allowed, False, (kind, letter))
    if answer.status_code == 422:  # right but for a file that is not on this disk
        assert kind == "update_weights_from_tensor" and b"no file" in answer.content
    assert Job.objects.count() - before == (1 if allowed and answer.status_code == 202 else 0)
    if not allowed:
        assert Job.objects.count() == before


POSTED = {
    "try-it": {"prompt": "x", "max_tokens": "1"},
    "flush": {
        "engine": ENGINE,
        "confirm": ENGINE,
        "reason": "x",
        "mode": "wait",
        "timeout_s": "1",
    },
    "weights-new": {"engine": ENGINE, "source": "disk"},
    "user-active": {"is_active": "yes"},
    "user-roles": {"role": "viewer", "selector": "env=x"},
    "engine-remove": {"confirm": "no"},
}
ASKED = {
    "weights-plan": "?engine=rack-seven",
    "weights-source": "?engine=rack-seven&source=disk",
    "flush-plan": "?engine=rack-seven",
    "weights-new": "?engine=rack-seven",
    "flush": "?engine=rack-seven",
}


@pytest.mark.parametrize("letter", [*WHO, "stranger"])
@pytest.mark.parametrize(("method", "name"), matrix.PAGES, ids=lambda v: str(v))
def test_the_pages(world, method, name, letter):
    pattern = next(p for p in _page_patterns() if p.name == name)
    values = world.values(name)
    path = reverse(name, kwargs={key: values[key] for key in pattern.pattern.converters})
    path += ASKED.get(name, "") if method == "GET" else ""
    client = Client() if letter == "stranger" else client_of(world, letter)
    before = AuditEntry.objects.count()
    answer = client.generic(method, path, _form(POSTED.get(name, {})), FORM)
    if letter == "stranger":
        assert answer.status_code in (302, 401), (name, answer.status_code)
        if answer.status_code == 302:
            assert answer["Location"].startswith("/login")
        return
    allowed = letter in matrix.PAGES[method, name]
    judge(answer, allowed, (method, name) in matrix.HIDDEN, (method, name, letter))
    if not allowed and method == "POST":
        news = list(AuditEntry.objects.filter(seq__gt=before))
        assert [entry.action.partition(".")[0] for entry in news] == ["request"]


FORM = "application/x-www-form-urlencoded"


def _form(values):
    return urlencode(values)


def _page_patterns():
    for pattern in get_resolver().url_patterns:
        if not str(pattern.pattern).startswith(("api/", "django-admin/")):
            yield from getattr(pattern, "url_patterns", [pattern])


@pytest.mark.parametrize("letter", WHO)
@pytest.mark.parametrize("kind", matrix.TOPICS)
def test_the_sockets_topics(world, kind, letter, valkey):
    topic = _topic(kind, world.job.pk)
    state = topics.topic_read(topic, rights_of(world.people[letter]))
    assert (state is not None) == (letter in matrix.TOPICS[kind])


@pytest.mark.parametrize("letter", WHO)
@pytest.mark.parametrize("command", matrix.COMMANDS)
def test_the_commands(world, command, letter, tmp_path):
    text, who = matrix.COMMANDS[command]
    text = text.format(self=named(letter), other_token=f"qsc_{world.token.prefix}", folder=tmp_path)
    before = AuditEntry.objects.count()
    said = ""
    try:
        call_command(command, *shlex.split(text), "--as", named(letter))
    except CommandError as error:
        said = str(error)
    is_denied = "an admin grants it" in said or "no token begins" in said
    assert is_denied == (letter not in who), said
    if is_denied:
        assert (
            AuditEntry.objects.filter(seq__gt=before).exclude(action="request.denied").count() == 0
        )


def admin_paths(world):
    """Every page of Django's admin that has one, and a row of each model."""
    for pattern in site.urls[0]:
        inner = getattr(pattern, "url_patterns", None)
        if inner is None and pattern.name not in ("login", "logout", None):
            yield reverse(f"admin:{pattern.name}", kwargs={
                key: {"content_type_id": 1, "object_id": 1, "url": "x", "app_label": "console"}[key]
                for key in pattern.pattern.converters or pattern.pattern.regex.groupindex
            })  # fmt: skip
        for one in inner or []:
            if one.name is not None:
                row = {"object_id": "1"} if "object_id" in one.pattern.converters else {}
                yield reverse(f"admin:{one.name}", kwargs=row)


@pytest.mark.parametrize("letter", WHO)
def test_djangos_admin_shows_every_row_to_admins_and_changes_none(world, letter):
    client = client_of(world, letter)
    paths = list(admin_paths(world))
    assert len(paths) > 40
    for path in paths:
        answer = client.get(path, follow=True)
        if letter == "M":
            is_off = path.endswith(("/add/", "/delete/", "/password_change/"))
            is_list = path.count("/") == 4 and path.startswith("/django-admin/console/")
            wanted = {403} if is_off else {200} if is_list else {200, 302, 400, 403, 404}
            assert answer.status_code in wanted, (path, answer.status_code)
        else:
            assert answer.status_code == 403, (path, answer.status_code)
        before = AuditEntry.objects.exclude(action__startswith="request.").count()
        assert client.post(path, {"action": "delete_selected"}).status_code < 500, path
        assert AuditEntry.objects.exclude(action__startswith="request.").count() == before
    assert User.objects.count() == 7 and Job.objects.count() == 2
    if letter == "M":
        text = client.get(reverse("admin:console_job_change", args=[world.job.pk])).content.decode()
        assert 'name="_save"' not in text and str(world.job.pk) in text
        text = client.get(reverse("admin:console_user_change", args=[world.other.pk]))
        assert world.other.password not in text.content.decode()


# -- groups ------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(world):
    """Somebody with every role, on other engines only."""
    user = user_create(username="elsewhere", password=PASSWORD, actor=SYSTEM)
    for role in matrix.ROLES.values():
        grant_give(username="elsewhere", role=role, selector="env=test", actor=SYSTEM)
    return user


@pytest.mark.parametrize(("method", "path"), matrix.API, ids=lambda v: str(v).replace("/", "."))
def test_what_is_of_another_group_is_not_there(world, elsewhere, method, path):  # S09
    if not {"{name}", "{job_id}"} & set(re.findall(r"\{[^}]*\}", path)) and path != "/jobs":
        return
    values = world.values(path)
    url = "/api/v1" + re.sub(r"\{(?:\w+:)?(\w+)\}", lambda m: str(values[m[1]]), path)
    client = Client()
    client.force_login(elsewhere)
    body = json.dumps(BODIES.get((method, path), {}))
    answer = client.generic(method, url, body if method != "GET" else "", "application/json")
    if path == "/jobs" and method == "GET":
        assert answer.json()["items"] == []
        return
    assert answer.status_code == 404, answer.content
    nowhere = client.generic(
        method, url.replace(ENGINE, "nobody").replace(str(values["job_id"]), matrix.ZERO),
        body.replace(ENGINE, "nobody"), "application/json",
    )  # fmt: skip
    said, said_of_none = answer.json(), nowhere.json()
    assert said["code"] == said_of_none["code"] and said["title"] == said_of_none["title"]


@pytest.mark.parametrize(("method", "name"), matrix.PAGES, ids=lambda v: str(v))
def test_pages_of_another_group_are_not_there(world, elsewhere, method, name):
    pattern = next(p for p in _page_patterns() if p.name == name)
    if not {"name", "job_id"} & set(pattern.pattern.converters):
        return
    values = world.values(name)
    path = reverse(name, kwargs={key: values[key] for key in pattern.pattern.converters})
    client = Client()
    client.force_login(elsewhere)
    answer = client.generic(method, path, _form(POSTED.get(name, {})), FORM)
    assert answer.status_code == 404, (name, answer.status_code)


@pytest.mark.parametrize("kind", ["engine", "job"])
def test_topics_of_another_group_are_not_there(world, elsewhere, kind, valkey):
    topic = _topic(kind, world.job.pk)
    assert topics.topic_read(topic, rights_of(elsewhere)) is None
    fleet = topics.topic_read("fleet", rights_of(elsewhere))
    assert fleet is not None and fleet.data["items"] == []
    assert all(ENGINE not in html for _, html in fleet.fragments)


def test_lists_and_counts_tell_nothing_of_another_group(world, elsewhere, valkey):  # S09
    client = Client()
    client.force_login(elsewhere)
    for path in ("/", "/jobs", "/weights", "/backends", "/palette", "/audit", "/users", "/flush"):
        text = client.get(path).content.decode()
        assert ENGINE not in text, path
    assert User.objects.count() == 8 and Engine.objects.count() == 1
