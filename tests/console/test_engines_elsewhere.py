"""Engines over tcp: the console's own key, and conversations, relay and jobs with CURVE."""

from __future__ import annotations

import json
import stat

import pytest
import zmq
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from console.actors import Actor
from console.choices import JobState
from console.clock import db_now
from console.exceptions import ConsoleKeyUnusable
from console.gateways import EngineSilent, gateway_for
from console.gateways.keys import console_key_make, console_key_public, console_key_read
from console.models import Engine
from console.relay import EngineFollower, Relay
from console.selectors.checkpoints import checkpoints_ask
from console.services.tokens import token_create
from console.services.users import user_create
from tests.fakes.engine import FakeEngine
from tests.fakes.waiting import PATIENCE_S, wait_until

SYSTEM = Actor.system("test")
STRANGER_WAITS_S = 0.7


@pytest.fixture
def console_key(settings, tmp_path):
    settings.CURVE_KEY_FILE = tmp_path / "console-curve"
    console_key_make()
    return settings.CURVE_KEY_FILE


@pytest.fixture
def far_engine(short_dir, console_key):
    """A FakeEngine on tcp that lets in this console."""
    with FakeEngine(short_dir, authorized={console_key_public()}) as engine:
        yield engine


def row_of(engine, **other):
    return Engine(
        **{
            "name": engine.name,
            "control_address": engine.control_address,
            "events_address": engine.events_address,
            "curve_key": engine.public_key,
            **other,
        }
    )


def greets(row, timeout_s):
    with gateway_for(row).converse(row) as conversation:
        return conversation.hello(timeout_s=timeout_s)


def test_the_key_is_private_made_once_and_its_public_half_beside_it(console_key):
    public, secret = console_key_read()
    assert stat.S_IMODE(console_key.stat().st_mode) == 0o600
    assert zmq.curve_public(secret) == public
    assert console_key.with_name("console-curve.pub").read_text().strip() == public.decode()
    console_key_make()
    assert console_key_read() == (public, secret)
    assert list(console_key.parent.glob(".console*")) == []


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda path: path.chmod(0o644), "0600"),
        (lambda path: path.unlink(), "prepare_state"),
        (lambda path: path.write_text("nonsense"), "40 characters"),
    ],
    ids=["open", "missing", "no key"],
)
def test_without_a_usable_key_of_its_own_nothing_is_said_over_tcp(
    far_engine, console_key, spoil, word
):
    spoil(console_key)
    assert console_key_public() is None
    with pytest.raises(ConsoleKeyUnusable, match=word) as refused:
        checkpoints_ask(engine=row_of(far_engine))
    assert (refused.value.code, refused.value.status) == ("console_key_unusable", 503)
    assert far_engine.received == []


def test_a_tcp_engine_without_a_public_key_is_never_spoken_to(far_engine):
    with pytest.raises(ConsoleKeyUnusable, match="without its public key"):
        greets(row_of(far_engine, curve_key=""), 1)
    assert far_engine.received == []


def test_the_gateway_speaks_to_the_engine_that_holds_the_registered_key(far_engine):
    assert greets(row_of(far_engine), PATIENCE_S).welcome.engine_id == far_engine.journal.engine_id
    other = zmq.curve_keypair()[0].decode()
    with pytest.raises(EngineSilent):
        greets(row_of(far_engine, curve_key=other), STRANGER_WAITS_S)


def test_an_engine_that_does_not_know_this_console_is_silent(short_dir, console_key):
    with FakeEngine(short_dir, authorized={zmq.curve_keypair()[0].decode()}) as engine:
        with pytest.raises(EngineSilent):
            greets(row_of(engine), STRANGER_WAITS_S)
        assert engine.received == []


def test_a_follower_hears_events_over_tcp(far_engine, valkey):
    from console.gateways.zmq import curve_of

    published = []
    row = row_of(far_engine)
    with zmq.Context() as context:
        follower = EngineFollower(
            row, context, lambda _, snapshot: published.append(snapshot), curve_of(row)
        )
        follower.start()
        wait_until(lambda: published and published[-1].online)
        far_engine.busy(1)
        wait_until(lambda: not published[-1].state.idle)
        follower.stop()


@pytest.mark.django_db(transaction=True)
def test_the_relay_follows_anew_when_a_key_changes_and_tells_a_missing_one_once(
    far_engine, console_key, valkey, caplog
):
    row = row_of(far_engine, curve_key=zmq.curve_keypair()[0].decode(), created_at=db_now())
    row.save()
    relay = Relay()
    relay._refresh()
    first = relay._followers[far_engine.name]
    relay._refresh()
    assert relay._followers[far_engine.name] is first
    Engine.objects.update(curve_key=far_engine.public_key)
    relay._refresh()
    second = relay._followers[far_engine.name]
    assert second is not first
    assert not first.is_alive
    wait_until(lambda: second.mirror.state is not None)
    console_key.unlink()
    relay._refresh()
    relay._refresh()
    assert relay._followers == {}
    assert not second.is_alive
    told = [line for line in caplog.records if "engine not followed" in line.getMessage()]
    assert len(told) == 1
    console_key_make()
    relay._refresh()
    assert relay._followers.keys() == {far_engine.name}
    for follower in relay._followers.values():
        follower.stop()
    relay._context.destroy(linger=0)


@pytest.mark.django_db
def test_the_command_registers_a_tcp_engine_by_its_key_file(tmp_path):
    key = zmq.curve_keypair()[0].decode()
    (tmp_path / "engine-curve.pub").write_text(key + "\n")
    given = ["far", "tcp://10.0.0.7:5600", "tcp://10.0.0.7:5601"]
    with pytest.raises(Exception, match="needs the engine's public key"):
        call_command("register_engine", *given)
    call_command("register_engine", *given, "--curve-key-file", str(tmp_path / "engine-curve.pub"))
    assert Engine.objects.get(name="far").curve_key == key


@pytest.mark.django_db
def test_the_public_key_is_shown_where_engines_are_registered(console_key, client):
    user = user_create(username="root.one", password="A-long-pass-9", roles=["admin"], actor=SYSTEM)
    token = token_create(username=user.username, name="t", actor=SYSTEM).text
    api = Client(headers={"authorization": f"Bearer {token}"})
    assert api.get("/api/v1/keys").json() == {"curve_public_key": console_key_public()}
    client.force_login(user)
    assert escape(console_key_public()) in client.get(reverse("engine-register")).content.decode()
    console_key.unlink()
    assert api.get("/api/v1/keys").json() == {"curve_public_key": None}
    assert "has no key of its own" in client.get(reverse("engine-register")).content.decode()


def test_a_whole_job_over_tcp(stack):
    """Registered over REST, seen online by the relay, flushed by a worker; then the console's key
    is gone: the job says so, and goes on when it is back."""
    public = (stack.dir / "console-curve.pub").read_text().strip()
    with FakeEngine(stack.run_dir, authorized={public}) as engine:
        body = {
            "name": engine.name,
            "control_address": engine.control_address,
            "events_address": engine.events_address,
            "curve_key": engine.public_key,
        }
        made = stack.request("POST", "/engines", json=body)
        assert made.status_code == 201, made.text
        wait_until(lambda: stack.engine(engine.name)["online"])
        job = stack.ended(stack.submit(engine))
        assert job["state"] == JobState.SUCCEEDED, json.dumps(job)
        assert len(engine.journal.effects) == 1

        key = stack.dir / "console-curve"
        kept = key.rename(stack.dir / "kept")
        try:
            job_id = stack.submit(engine, timeout_s=600)
            wait_until(lambda: "prepare_state" in (stack.job(job_id)["note"] or ""))
        finally:
            kept.rename(key)
        assert stack.ended(job_id)["state"] == JobState.SUCCEEDED
