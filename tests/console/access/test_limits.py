"""Grants with limits and groups, tokens with scopes, and rights that go while a job waits."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client

from console.access import EVERYTHING, NOTHING, Act, Asked, Grant, Rights, Role
from console.actors import Actor
from console.choices import JobState, OnConflict, Via
from console.clock import db_now
from console.exceptions import Conflict, Forbidden, Invalid, JobNotFound, NotFound
from console.labels import labels_check, selector_read
from console.models import ApiToken, AuditEntry, Job, RoleGrant, User
from console.params import params_of
from console.selectors.access import engines_with, rights_of
from console.selectors.audit import audit_list
from console.selectors.jobs import job_get
from console.services.engines import engine_change, engine_register, engine_remove
from console.services.grants import grant_give, grant_take
from console.services.job_claims import job_claim
from console.services.job_control import job_cancel, job_extend, job_force
from console.services.jobs import job_create
from console.services.tokens import token_create, token_revoke
from console.services.users import user_create, user_set_active
from tests.console.conftest import PASSWORD

pytestmark = pytest.mark.django_db

SYSTEM = Actor.system("test")


def person(name, **grants):
    user = user_create(username=name, password=PASSWORD, actor=SYSTEM)
    for role, options in grants.items():
        grant_give(username=name, role=role, actor=SYSTEM, **options)
    return user


def acting(user, token=None):
    prefix = f"qsc_{token.prefix}" if token else ""
    return Actor(user.pk, user.username, Via.API, prefix, rights=rights_of(user, token))


def register(name, **labels):
    return engine_register(
        name=name,
        control_address=f"ipc:///nowhere/{name}.c",
        events_address=f"ipc:///nowhere/{name}.e",
        labels=labels,
        actor=SYSTEM,
    )


def ask_for(actor, engine="a", kind="flush_cache", key=None, **params):
    return job_create(
        engine_name=engine,
        params=params_of(kind, params),
        reason="",
        on_conflict=OnConflict.QUEUE,
        actor=actor,
        idempotency_key=key,
    ).job


@pytest.mark.parametrize(
    ("text", "fits", "not_"),
    [
        ("", {}, None),
        ("env=prod", {"env": "prod"}, {"env": "test"}),
        ("env == prod", {"env": "prod"}, {}),
        ("env!=prod", {}, {"env": "prod"}),
        ("env in (prod, test)", {"env": "test"}, {"env": "dev"}),
        ("env notin (prod,test)", {"env": "dev"}, {"env": "prod"}),
        ("gpu", {"gpu": "h200"}, {}),
        ("!gpu", {}, {"gpu": "h200"}),
        ("env=prod,team=a,!old", {"env": "prod", "team": "a"}, {"env": "prod", "team": "b"}),
        ("name=local", {"name": "local"}, {"name": "other"}),
    ],
)
def test_a_selector_selects_by_every_part(text, fits, not_):
    assert selector_read(text).fits(fits)
    assert not_ is None or not selector_read(text).fits(not_)


@pytest.mark.parametrize(
    "text",
    ["=", "env=", "env=prod,", ",env", "env in prod", "env in ()", "a b", "!", "é=1", "x" * 501],
)
def test_a_selector_that_cannot_be_read_is_refused(text):
    with pytest.raises(Invalid):
        selector_read(text)


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a": ""}, {"a": "b c"}, {"name": "x"}, {"a=b": "c"}]
)
def test_labels_that_no_selector_could_name_are_refused(labels):
    with pytest.raises(Invalid):
        labels_check(labels)


def test_limits_are_of_one_grant_and_not_mixed_from_several():
    long_wait = Grant(Role.OPERATOR, max_timeout_s=600, modes=frozenset({"wait"}), may_force=False)
    short_abort = Grant(Role.OPERATOR, max_timeout_s=10, modes=frozenset({"abort"}))
    rights = Rights(1, (long_wait, short_abort))
    for fine in (Asked("wait", 600), Asked("abort", 10), Asked("abort", 10, is_forced=True)):
        rights.require(Act.FLUSH, {}, asked=fine)
    for bad in (Asked("abort", 600), Asked("wait", 601), Asked("wait", 100, is_forced=True)):
        with pytest.raises(Forbidden, match="an admin sets it"):
            rights.require(Act.FLUSH, {}, asked=bad)


def test_a_job_keeps_to_the_limits_when_it_is_asked_for_extended_and_forced():
    register("a")
    user = person(
        "ana", operator={"max_timeout_s": 60.0, "modes": ["wait", "drain"], "may_force": False}
    )
    ana = acting(user)
    with pytest.raises(Forbidden, match="61 s is longer"):
        ask_for(ana, timeout_s=61, mode="wait")
    with pytest.raises(Forbidden, match="mode abort"):
        ask_for(ana, timeout_s=5, mode="abort")
    with pytest.raises(Forbidden, match="forcing"):
        ask_for(ana, kind="detach_storage_backend", force=True)
    job = ask_for(ana, timeout_s=30, mode="wait")
    assert job_extend(job_id=job.pk, by_s=30, actor=ana).timeout_s == 60
    with pytest.raises(Forbidden, match="longer than the longest"):
        job_extend(job_id=job.pk, by_s=1, actor=ana)
    with pytest.raises(Forbidden, match="forcing"):
        job_force(job_id=job.pk, actor=ana)
    assert job_cancel(job_id=job.pk, actor=ana).state == JobState.CANCELLED


def test_a_service_account_steers_only_what_it_asked_for():
    register("a")
    pusher = acting(person("push", pusher={}))
    other = acting(person("ana", operator={}))
    theirs, own = ask_for(other), ask_for(pusher)
    rule = "the role pusher steers only their own jobs; those of others need the role operator or"
    with pytest.raises(Forbidden, match=rule):
        job_cancel(job_id=theirs.pk, actor=pusher)
    with pytest.raises(Forbidden, match=rule):
        job_extend(job_id=theirs.pk, by_s=5, actor=pusher)
    viewer = acting(person("vera", viewer={}))
    with pytest.raises(Forbidden, match="jobs:flush needs"):
        job_extend(job_id=theirs.pk, by_s=5, actor=viewer)
    assert job_cancel(job_id=own.pk, actor=pusher).state == JobState.CANCELLED


def test_a_group_is_all_that_is_there():
    register("a", env="prod")
    register("b", env="test")
    user = person("ana", operator={"selector": "env=test"}, auditor={"selector": "env=test"})
    ana = acting(user)
    assert [one.name for one in engines_with(ana.rights)] == ["b"]
    hidden = ask_for(SYSTEM, "a")
    with pytest.raises(JobNotFound):
        job_get(job_id=hidden.pk, rights=ana.rights)
    ask_for(ana, "b")
    read = audit_list(rights=ana.rights).items
    assert read and {entry.engine_name for entry in read} == {"b"}
    # Labels are what moves an engine into a group.
    engine_change(name="a", labels={"env": "test"}, actor=SYSTEM)
    assert job_get(job_id=hidden.pk, rights=ana.rights).pk == hidden.pk


def test_an_admin_of_a_group_keeps_to_it():
    register("a", env="prod")
    register("b", env="test")
    admin = acting(person("ana", admin={"selector": "env=test"}))
    engine_change(name="b", labels={"env": "test", "rack": "7"}, actor=admin)
    with pytest.raises(Forbidden):  # out of the own group
        engine_change(name="b", labels={"env": "prod"}, actor=admin)
    with pytest.raises(NotFound):
        engine_change(name="a", enabled=False, actor=admin)
    with pytest.raises(Forbidden):  # users are of the whole fleet
        person_made = user_create(username="x", password=PASSWORD, actor=admin)
        assert person_made is None
    with pytest.raises(Forbidden):
        engine_register(
            name="a",
            control_address="ipc:///x.c",
            events_address="ipc:///x.e",
            labels={"env": "test"},
            actor=admin,
        )


def test_a_token_does_what_its_scopes_and_its_owner_both_may():
    register("a", env="prod")
    register("b", env="test")
    user = person("ana", operator={})
    made = token_create(
        username="ana", name="t", scopes=["fleet:read", "jobs:flush", "users:write"],
        reach="env=test", actor=SYSTEM,
    )  # fmt: skip
    program = acting(user, made.token)
    assert ask_for(program, "b").token_prefix == f"qsc_{made.token.prefix}"
    with pytest.raises(NotFound):
        ask_for(program, "a")
    with pytest.raises(Forbidden, match="scope storage:attach"):
        ask_for(program, "b", kind="detach_storage_backend")
    with pytest.raises(Forbidden):  # a scope gives nothing that the owner has not
        user_create(username="x", password=PASSWORD, actor=program)


def test_a_token_begets_none_that_may_more():
    user = person("ana", operator={})
    narrow = token_create(
        username="ana", name="t", scopes=["tokens:write", "fleet:read"], reach="env=a", actor=SYSTEM
    )
    program = acting(user, narrow.token)
    ends = db_now() + timedelta(days=1)
    for options in (
        {"scopes": None},
        {"scopes": ["jobs:flush"]},
        {"scopes": ["fleet:read"], "reach": ""},
        {"scopes": ["fleet:read"], "reach": "env=b"},
    ):
        with pytest.raises(Forbidden):
            token_create(
                **{"username": "ana", "name": "u", "reach": "env=a", **options},
                expires_at=ends, actor=program,
            )  # fmt: skip
    token_create(
        username="ana",
        name="u",
        scopes=["fleet:read"],
        reach="env=a",
        expires_at=ends,
        actor=program,
    )
    with pytest.raises(NotFound):
        token_create(username="nobody", name="u", expires_at=ends, actor=program)
    with pytest.raises(Invalid, match="90 days"):
        token_create(
            username="ana", name="u", scopes=["fleet:read"], reach="env=a",
            expires_at=db_now() + timedelta(days=91), actor=program,
        )  # fmt: skip


def test_a_token_begets_none_that_outlives_it(user):
    ends = db_now() + timedelta(days=1)
    text = token_create(
        username="ana", name="t", scopes=["tokens:write"], expires_at=ends, actor=SYSTEM
    ).text
    program = Client(headers={"authorization": f"Bearer {text}"})
    body = {"name": "u", "scopes": ["tokens:write"]}

    def make(later_s):
        asked = {**body, "expires_at": (ends + timedelta(seconds=later_s)).isoformat()}
        return program.post("/api/v1/tokens", asked, content_type="application/json")

    for later_s in (1, 20 * 86_400):
        answer = make(later_s)
        assert answer.status_code == 422, answer.content
        assert ends.isoformat() in answer.json()["detail"]
    assert ApiToken.objects.count() == 1
    assert make(0).status_code == 201
    assert make(-1).status_code == 201


def gone(how, user, made):
    match how:
        case "role taken":
            grant_take(grant_id=RoleGrant.objects.get(user=user).pk, actor=SYSTEM)
        case "person disabled":
            user_set_active(username=user.username, is_active=False, actor=SYSTEM)
        case "token revoked":
            token_revoke(prefix=made.token.prefix, actor=SYSTEM)
        case "deadline shortened":
            grant_give(username=user.username, role="operator", max_timeout_s=1.0, actor=SYSTEM)
        case "engine left the group":
            engine_change(name="a", labels={"env": "prod"}, actor=SYSTEM)
            RoleGrant.objects.filter(user=user).update(selector="env=test")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("role taken", "needs the role"),
        ("person disabled", "this account was disabled"),
        ("token revoked", "the token qsc_"),
        ("deadline shortened", "longest allowed"),
        ("engine left the group", "needs the role"),
    ],
)
def test_permission_is_checked_again_when_a_worker_takes_the_job(how, why):  # S09
    register("a")
    user = person("ana", operator={})
    made = token_create(username="ana", name="t", actor=SYSTEM)
    job = ask_for(acting(user, made.token), timeout_s=30)
    gone(how, user, made)
    assert job_claim(job_id=job.pk, owner="w") is None
    job.refresh_from_db()
    assert (job.state, job.error["code"]) == (JobState.FAILED, "forbidden")
    assert "ana may not do this any more: " in job.error["message"]
    assert why in job.error["message"]
    assert ("role" in job.error["message"]) == (how in ("role taken", "engine left the group"))
    outcomes = AuditEntry.objects.filter(job_id=job.pk, stage="outcome")
    assert [entry.result for entry in outcomes] == ["failed"]


def test_what_is_still_allowed_is_claimed_also_when_its_token_has_ended_since():
    register("a")
    user = person("ana", operator={})
    made = token_create(username="ana", name="t", actor=SYSTEM)
    job = ask_for(acting(user, made.token))
    ApiToken.objects.filter(pk=made.token.pk).update(expires_at=db_now())
    assert job_claim(job_id=job.pk, owner="w").state == JobState.CLAIMED


def test_a_removed_engine_keeps_its_record_and_can_come_back(client):
    register("a")
    admin = acting(person("ana", admin={}))
    job = ask_for(admin)
    with pytest.raises(Conflict, match="1 job has not ended"):
        engine_remove(name="a", actor=admin)
    job_cancel(job_id=job.pk, actor=admin)
    engine_remove(name="a", reason="sold", actor=admin)
    assert not engines_with(EVERYTHING)
    assert job_get(job_id=job.pk, rights=admin.rights).pk == job.pk
    client.force_login(User.objects.get(username="ana"))
    assert client.get(f"/jobs/{job.pk}").status_code == 200
    assert client.get("/engines/a").status_code == 404
    with pytest.raises(NotFound):
        ask_for(admin)
    assert register("a").pk == job.engine_id
    actions = AuditEntry.objects.filter(engine_name="a", action__startswith="engine.")
    assert [entry.action for entry in actions.order_by("seq")] == [
        "engine.registered", "engine.removed", "engine.registered",
    ]  # fmt: skip


def test_the_last_admin_stays():
    person("ana", admin={})
    row = RoleGrant.objects.get(user__username="ana")
    with pytest.raises(Conflict, match="last admin"):
        grant_take(grant_id=row.pk, actor=SYSTEM)
    with pytest.raises(Conflict, match="last admin"):
        user_set_active(username="ana", is_active=False, actor=SYSTEM)
    person("bob", admin={})
    grant_take(grant_id=row.pk, actor=SYSTEM)


def test_nobody_may_anything():
    assert not any(NOTHING.may(act) for act in Act)
    assert all(EVERYTHING.may_everywhere(act) for act in Act)


@pytest.mark.parametrize("field", ["control_address", "events_address"])
@pytest.mark.parametrize(
    "address",
    ["tcp://10.0.0.1:5600", "tcp://*:1", "tcp://h:0", "tcp://h:99999", "http://x", "ipc:*"],
)
def test_an_address_that_is_none_or_open_is_refused(field, address):
    given = {"control_address": "ipc:///c", "events_address": "ipc:///e", field: address}
    with pytest.raises(Invalid, match=field.partition("_")[0]):
        engine_register(name="a", **given, actor=SYSTEM)


def test_roles_that_are_given_and_taken_are_on_record_and_close_pages(
    monkeypatch, django_capture_on_commit_callbacks
):
    closed = []
    monkeypatch.setattr("console.notify.user_changed", closed.append)
    monkeypatch.setattr("console.notify.user_closed", closed.append)
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        user = person("ana", viewer={"selector": "env=a"})
    row = RoleGrant.objects.get(user=user)
    with django_capture_on_commit_callbacks(execute=True):
        grant_take(grant_id=row.pk, actor=SYSTEM)
        user_set_active(username="ana", is_active=False, actor=SYSTEM)
    assert closed == [user.pk] * 3
    actions = AuditEntry.objects.filter(action__startswith="role.").order_by("seq")
    assert [entry.action for entry in actions] == ["role.given", "role.taken"]


def test_a_token_is_made_and_revoked_over_the_api_by_its_owner_only(user):
    other = person("bob", operator={})
    client, stranger = Client(), Client()
    client.force_login(user)
    stranger.force_login(other)
    ends = (db_now() + timedelta(days=30)).isoformat()
    body = {"name": "ci", "scopes": ["fleet:read"], "expires_at": ends}
    made = client.post("/api/v1/tokens", body, content_type="application/json")
    assert made.status_code == 201 and made.json()["token"].startswith(made.json()["prefix"])
    text = made.json()["token"]
    program = Client(headers={"authorization": f"Bearer {text}"})
    assert program.get("/api/v1/me").json()["acts"] == ["fleet:read"]
    assert program.get("/api/v1/tokens").status_code == 403
    listed = client.get("/api/v1/tokens")
    assert text not in listed.content.decode() and listed.json()["items"][0]["last_used_at"]
    assert stranger.get("/api/v1/tokens").json()["items"] == []
    path = f"/api/v1/tokens/{made.json()['prefix']}/revoke"
    assert stranger.post(path, {}, content_type="application/json").status_code == 404
    ended = client.post(path, {"reason": "leaked"}, content_type="application/json")
    assert (ended.json()["state"], ended.json()["revoked_reason"]) == ("revoked", "leaked")
    assert program.get("/api/v1/me").status_code == 401
    assert not Job.objects.exists()
