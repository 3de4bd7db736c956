"""One entry for each row that changes, also when many do at once (D01).

No signal writes entries, so nothing that bypasses signals bypasses them: rows are written by
services only, and a service that writes a row which has a record appends to it, or is listed here.
"""

from __future__ import annotations

import ast
import json
from datetime import timedelta
from pathlib import Path

import pytest

from console.actors import Actor
from console.choices import OnConflict
from console.clock import db_now
from console.models import AuditEntry, Job
from console.params import FlushParams
from console.services.engines import engine_register
from console.services.job_claims import job_claim
from console.services.job_run import job_dispatched
from console.services.jobs import job_create
from console.tasks.reconcile import Reconciler
from tests.console.test_job_services import WELCOME

ROOT = Path(__file__).parents[3]
WRITES = {
    "save", "delete", "create", "update", "get_or_create", "update_or_create", "bulk_create",
    "bulk_update", "raw", "asave", "adelete", "acreate", "aupdate", "abulk_create", "abulk_update",
    "execute", "executemany",
}  # fmt: skip
# The same as functions: `console.rows`, and of a job.
WRITERS = {"row_update", "row_delete", "rows_insert", "job_write"}
# Models without a record of their own: what is owed, what is sent along, what follows a job.
UNRECORDED = {"Outbox", "Upload", "JobRankResult", "AuditCheck"}
NO_ROWS = {"digest", "router"}  # what else has an `update` or a `delete`
APPENDS = {"audit_append", "_audit", "_note"}
# Functions that change a recorded row and say nothing, and why that is right.
SILENT = {
    "audit_append": "the entry itself",
    "_insert": "the entry itself, where the database chains it",
    "_deletion_allowed": "a setting of the transaction in which a segment is closed",
    "job_lease_renew": "whose it is does not change",
    "job_handover": "the state does not change",
    "job_adopt": "the state does not change",
    "job_progress": "the state does not change",
    "job_feeding": "the state does not change",
    "job_note": "the state does not change",
    "job_unblock": "the state does not change",
    "job_write": "one step of job_move, which appends, and of what changes no state",
    "job_doorbell": "what is owed to a job",
    "ranks_write": "what follows a job; its end is told with each rank",
    "job_dispatched": "the identity of an engine, beside the entry that job_move appends",
    "token_verify": "when it was last used",
}
# Outside of services statements only read, or grant rights in the database, or are handed on.
STATEMENTS = {
    "console/clock.py",
    "console/prepared.py",
    "console/project/sqlite/base.py",
    "console/rows.py",
    "console/selectors/health.py",
    "console/selectors/moment.py",
    "console/management/commands/restrict_role.py",
}


def functions(path):
    tree = ast.parse(path.read_text())
    return [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def root_of(node):
    """The name that a chain of calls and attributes begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def calls(function):
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def writes(function):
    """Lines of a function that write a row which has a record."""
    return [
        call.lineno
        for call in calls(function)
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in WRITES
            and root_of(call.func) not in UNRECORDED | NO_ROWS
        )
        or (
            isinstance(call.func, ast.Name)
            and call.func.id in WRITERS
            and root_of(call.args[0]) not in UNRECORDED
        )
    ]


def appends(function):
    return any(root_of(call.func) in APPENDS for call in calls(function))


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_only_services_write_rows():
    found = {
        str(path.relative_to(ROOT))
        for path in sources("console", "api")
        if not {"services", "migrations"} & set(path.parts)
        and any(writes(function) for function in functions(path))
    }
    assert found == STATEMENTS


def test_a_service_that_writes_a_row_appends_an_entry_or_is_listed_with_its_reason():
    found = {
        function.name
        for path in sources("console/services")
        for function in functions(path)
        if writes(function) and not appends(function)
    }
    assert found == set(SILENT)


@pytest.mark.parametrize(
    "line",
    [
        "Job.objects.filter(pk=1).update(state='failed')",
        "Job.objects.bulk_create([job])",
        "job.save()",
        "rows.filter(pk=1).delete()",
        "Engine.objects.update(labels=F('labels'))",
        "cursor.execute('UPDATE console_job SET state = 1')",
        "row_update(Job, {'id': 1}, {'state': 'failed'})",
        "row_delete(Engine, {'id': 1})",
        "rows_insert([engine])",
        "job_write(job, {'state': 'failed'})",
    ],
)
def test_a_write_is_found_however_it_is_written(line):
    (function,) = ast.parse(f"def f():\n    {line}").body
    assert writes(function) and not appends(function)


def test_the_state_of_a_job_is_written_in_one_place():
    found = {
        (path.name, function.name)
        for path in sources("console", "api")
        if "migrations" not in path.parts
        for function in functions(path)
        if writes_a_state(function)
    }
    assert found == {("jobs.py", "_insert"), ("transitions.py", "job_move")}


def writes_a_state(function):
    """By a keyword of what writes or makes a job, or in a dict where something is written."""
    makers = [call for call in calls(function) if ast.unparse(call.func) == "Job"]
    writers = [
        call
        for call in calls(function)
        if isinstance(call.func, ast.Attribute) and call.func.attr in WRITES
    ]
    if "state" in {keyword.arg for call in makers + writers for keyword in call.keywords}:
        return True
    names = {call.func.id for call in calls(function) if isinstance(call.func, ast.Name)}
    dicts = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
    keys = {getattr(key, "value", None) for one in dicts for key in one.keys}
    return bool(names & (WRITERS | {"job_move"})) and "state" in keys


@pytest.mark.parametrize(
    "line",
    [
        "Job.objects.filter(pk=1).update(state='failed')",
        "rows_insert([Job(pk=1, state='failed')])",
        "job_write(job, {'note': '', 'state': 'failed'})",
        "job_move(job_id=1, fields={'state': 'failed'})",
    ],
)
def test_a_state_is_found_however_it_is_written(line):
    (function,) = ast.parse(f"def f():\n    {line}").body
    assert writes_a_state(function)


# -- many at once ------------------------------------------------------------------------------


def asked_for(number, ana):
    """A job on an engine of its own."""
    engine = engine_register(
        name=f"e{number}", control_address=f"ipc:///nowhere/{number}.c",
        events_address=f"ipc:///nowhere/{number}.e", actor=Actor.system("test"),
    )  # fmt: skip
    return job_create(
        engine_name=engine.name, params=FlushParams(), reason="", actor=ana,
        on_conflict=OnConflict.REFUSE,
    ).job  # fmt: skip


@pytest.mark.django_db
def test_a_sweep_of_many_jobs_is_an_entry_for_each(ana):
    """25 whose worker is gone, half of them sent, and 10 that nobody took in time."""
    jobs = [asked_for(number, ana) for number in range(35)]
    for number, job in enumerate(jobs[:25]):
        assert job_claim(job_id=job.pk, owner="w").attempt == 1
        if number % 2:
            assert job_dispatched(job_id=job.pk, attempt=1, owner="w", welcome=WELCOME)
    past = db_now() - timedelta(seconds=1)
    Job.objects.filter(pk__in=[job.pk for job in jobs[:25]]).update(lease_until=past)
    Job.objects.filter(pk__in=[job.pk for job in jobs[25:]]).update(dispatch_by=past)
    before = AuditEntry.objects.count()
    reconciler = Reconciler()
    for _ in range(2):  # the second time nothing is left to be done
        reconciler.release_lapsed()
        reconciler.expire_overdue()
    entries = AuditEntry.objects.filter(seq__gt=before)
    assert {entry.job_id for entry in entries} == {job.pk for job in jobs}
    assert entries.count() == len(jobs)
    bodies = [json.loads(entry.body) for entry in entries]
    moves = [(one["before"], one["after"], one["actor"]["name"]) for one in bodies]
    swept = "system:reconciler"
    assert moves.count(("claimed", "accepted", swept)) == 13
    assert moves.count(("dispatched", "reconciling", swept)) == 12
    assert moves.count(("accepted", "expired", "ana")) == 10, "in the name of who asked"
    for one in bodies:
        assert one["process"] == "reconciler" and (one.get("note") or one["error"]["message"])
        assert Job.objects.get(pk=one["job"]).state == one["after"]
