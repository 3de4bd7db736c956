"""Forms that are sent many times at once, and jobs whose transaction takes its time."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.process


def test_a_form_sent_twenty_times_at_once_is_one_job_and_one_call(stack, stack_engine):
    """J07: every answer leads to the same job; a form that is asked for anew meets the holder."""
    stack_engine.busy(1)
    with stack.login() as browser:
        form = {
            "csrfmiddlewaretoken": browser.csrf, "engine": stack_engine.name, "mode": "wait",
            "timeout_s": "300", "reason": "twice", "confirm": stack_engine.name,
        }  # fmt: skip

        def send(key):
            return browser.post("/flush", data={**form, "key": key}, headers={"Origin": stack.url})

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(send, [str(uuid.uuid4())] * 20))
        assert {answer.status_code for answer in answers} == {303}
        (where,) = {answer.headers["Location"] for answer in answers}
        other = send(str(uuid.uuid4()))
    assert other.status_code == 409 and where in other.text
    stack_engine.idle()
    job_id = where.rpartition("/")[2]
    assert stack.ended(job_id)["state"] == "succeeded"
    assert [submit.op_id for submit in stack_engine.submits()] == [job_id]


IN_A_TRANSACTION = """
import json, redis
from django.conf import settings
from django.db import transaction
from console import notify
from console.access import EVERYTHING
from console.actors import Actor
from console.choices import OnConflict, Via
from console.models import User
from console.params import FlushParams
from console.services.jobs import job_create

user = User.objects.get(username="admin")
actor = Actor(user.pk, user.username, Via.CLI, rights=EVERYTHING)
broker = redis.Redis.from_url(settings.REDIS_URL)


def ask():
    return str(job_create(engine_name=NAME, params=FlushParams(timeout_s=300.0), reason="",
                          on_conflict=OnConflict.REFUSE, actor=actor).job.pk)


class Undo(Exception):
    pass


def rung(job):
    return any(job.encode() in message for message in broker.lrange("quiesce.jobs", 0, -1))


try:
    with transaction.atomic():
        undone = ask()
        in_vain = rung(undone)
        raise Undo
except Undo:
    after_undo = rung(undone)
with transaction.atomic():
    kept = ask()
    too_early = rung(kept)
print(json.dumps([undone, kept, in_vain, after_undo, too_early, rung(kept)]))
notify.settle()
"""


def test_a_worker_hears_of_a_job_once_it_is_committed_and_of_an_undone_one_never(
    stack, stack_engine
):
    """J03: told by the broker itself, inside an outer transaction, as around a whole request."""
    stack.kill("worker")
    try:
        script = IN_A_TRANSACTION.replace("NAME", repr(stack_engine.name))
        said = stack.manage("shell", "-v", "0", "-c", script).stdout
    finally:
        stack.start("worker")
    undone, kept, *rung = json.loads(said.strip().splitlines()[-1])
    assert rung == [False, False, False, True]
    assert stack.ended(kept)["state"] == "succeeded"
    assert [submit.op_id for submit in stack_engine.submits()] == [kept]
    assert stack.request("GET", f"/jobs/{undone}").status_code == 404
    assert stack.audit(undone) == []
    assert "DoesNotExist" not in stack.log("worker")
