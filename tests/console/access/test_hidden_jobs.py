"""Jobs of a group that is not one's own: no list, filter, export or answer tells of them (S09)."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client

from console.access import Role
from console.actors import Actor
from console.choices import JobState, OnConflict, Via
from console.models import AuditEntry, Job
from console.params import params_of
from console.selectors.access import rights_of
from console.selectors.events import events_after
from console.services.audit_key import key_make
from console.services.engines import engine_register
from console.services.grants import grant_give
from console.services.jobs import job_create
from console.services.users import user_create
from tests.console.conftest import PASSWORD

pytestmark = pytest.mark.django_db

SYSTEM = Actor.system("test")
HUSH = "hush-hush-reason"
FILTERS = (
    "",
    "?state=failed",
    "?state=accepted",
    "?kind=flush_cache",
    "?kind=attach_storage_backend",
    "?actor=theo",
    "?open=true",
    "?since=2020-01-01T00:00:00Z",
    "?until=2120-01-01T00:00:00Z",
)
NAMED, NAMES = ("/api/v1/jobs", "/api/v1/audit", "/jobs", "/audit"), ("theirs", "nobodys")
AUDIT_FILTERS = ("", "?actor=theo", "?action=job.", "?result=failed", "?job={}")


def person(name, selector, *roles):
    user = user_create(username=name, password=PASSWORD, actor=SYSTEM)
    for role in roles:
        grant_give(username=name, role=role, selector=selector, actor=SYSTEM)
    return user


def job_of(user, engine, kind="flush_cache", state=JobState.ACCEPTED, **params):
    asked = job_create(
        engine_name=engine, params=params_of(kind, params), reason=HUSH, actor=acting(user),
        on_conflict=OnConflict.QUEUE,
    ).job  # fmt: skip
    Job.objects.filter(pk=asked.pk).update(state=state, phase=None)
    return asked


def acting(user):
    return Actor(user.pk, user.username, Via.API, rights=rights_of(user))


def client_of(user):
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def theirs(db, settings, tmp_path):
    """Two jobs of another group, one of them of a kind for few; and an engine of each group."""
    settings.AUDIT_KEY_FILE = tmp_path / "key.pem"
    settings.AUDIT_ANCHORS_FILE = tmp_path / "anchors.jsonl"
    key_make()
    for name, env in (("theirs", "prod"), ("ours", "test")):
        engine_register(
            name=name, control_address=f"ipc:///nowhere/{name}.c", labels={"env": env},
            events_address=f"ipc:///nowhere/{name}.e", actor=SYSTEM,
        )  # fmt: skip
    theo = person("theo", "env=prod", Role.ADMIN)
    return [
        job_of(theo, "theirs", state=JobState.FAILED),
        job_of(theo, "theirs", "attach_storage_backend", backend="file", config={}),
    ]


@pytest.fixture
def ana(theirs):
    """Every role there is, in the other group."""
    return person("ana", "env=test", *Role)


def test_no_list_filter_or_export_tells_of_them(theirs, ana):
    client = client_of(ana)
    lists = [client.get(f"/api/v1/jobs{query}") for query in FILTERS]
    named = [client.get(f"{path}?engine={name}") for path in NAMED for name in NAMES]
    told = [
        client.get(f"/api/v1/audit{query.format(job.pk)}")
        for query in AUDIT_FILTERS
        for job in theirs
    ]
    told += [client.get(f"/api/v1/audit/export{form}") for form in ("", "?form=csv")]
    told += [client.get(f"/jobs{query}") for query in FILTERS]
    assert [one.json() for one in lists] == [{"items": [], "next_cursor": None}] * len(FILTERS)
    for answer in told:
        assert answer.status_code == 200, answer.request["PATH_INFO"]
    words = [HUSH, *(str(job.pk) for job in theirs)]
    for answer in (*lists, *told, *named):
        text = answer.getvalue().decode()
        assert not [word for word in words if word in text], answer.request["QUERY_STRING"]
    codes = [one.status_code for one in named]
    assert codes[::2] == codes[1::2], "an engine of theirs is like one that is none"
    assert not [one for one in events_after(0, rights=rights_of(ana))[1] if one["type"] == "job"]


@pytest.mark.parametrize("act", ["", "/cancel", "/extend", "/force", "/retry", "/undo"])
def test_they_are_answered_like_jobs_that_never_were(theirs, ana, act):
    client = client_of(ana)
    body = {"by_s": 5} if act == "/extend" else {}

    def answer(job_id):
        path = f"/api/v1/jobs/{job_id}{act}"
        made = client.post(path, body, content_type="application/json") if act else client.get(path)
        problem = made.json()
        problem.pop("request_id")
        return made.status_code, str(problem).replace(str(job_id), "X")

    nobodys, before = answer(uuid.uuid4()), Job.objects.count()
    assert nobodys[0] == 404
    assert [answer(job.pk) for job in theirs] == [nobodys] * 2
    assert Job.objects.count() == before


@pytest.mark.parametrize(
    ("role", "may"),
    [(Role.VIEWER, False), (Role.AUDITOR, False), (Role.PUSHER, False), (Role.OPERATOR, True)],
)
def test_a_retry_asks_for_the_rights_of_whoever_retries(theirs, role, may):
    """Not of whoever asked first, who may do more."""
    boss = person("boss", "env=test", Role.ADMIN)
    old = job_of(boss, "ours", "attach_storage_backend", JobState.FAILED, backend="file", config={})
    user = person("ben", "env=test", role)
    before, jobs = AuditEntry.objects.count(), Job.objects.count()
    path = f"/api/v1/jobs/{old.pk}/retry"
    answer = client_of(user).post(path, {}, content_type="application/json")
    assert answer.status_code == (202 if may else 403), answer.content
    assert Job.objects.count() - jobs == int(may)
    (entry,) = AuditEntry.objects.filter(seq__gt=before)
    assert entry.actor_name == "ben"
    assert entry.action == ("job.accepted" if may else "request.denied")
