"""Job services on a real SQLite file: races are lost quietly, ends are final, audit is complete."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import dispatch
from console.access import EVERYTHING
from console.choices import (
    HOLDING_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    AuditStage,
    JobState,
    Mode,
    OnConflict,
)
from console.clock import db_now
from console.exceptions import (
    EngineBusy,
    EngineNotFound,
    IdempotencyMismatch,
    Invalid,
    JobFinished,
)
from console.models import AuditEntry, Job, Outbox
from console.params import FlushParams, params_of
from console.selectors.jobs import job_get
from console.services.audit import audit_append
from console.services.job_claims import (
    job_adopt,
    job_claim,
    job_handover,
    job_lease_renew,
    job_release,
)
from console.services.job_control import job_cancel, job_extend, job_force
from console.services.job_run import job_dispatched, job_expire, job_finish, job_reconcile
from console.services.job_sweep import doorbells_ring, job_interrupted, job_never_ran, jobs_lapsed
from console.services.jobs import job_create
from engine.protocol import Mode as EngineMode
from engine.protocol import (
    OperationKind,
    OperationResult,
    Outcome,
    QueryAnswer,
    QueryStatus,
    RankResult,
    RankState,
    WeightsView,
    Welcome,
)

pytestmark = pytest.mark.django_db

WELCOME = Welcome(
    protocol_version=1, engine_id="E1", epoch="1", clock_s=5.0, dp_size=2, model="m", ready=True
)


def result_of(job, outcome=Outcome.SUCCEEDED):
    return OperationResult(
        op_id=str(job.pk),
        kind=OperationKind.FLUSH_CACHE,
        mode=EngineMode.WAIT,
        outcome=outcome,
        message="said by the engine",
        ranks=[RankResult(dp_rank=rank, state=RankState.SUCCEEDED) for rank in range(2)],
        started_clock_s=5.0,
        finished_clock_s=6.0,
        epoch="1",
    )


def weights(version):
    return WeightsView(version=version, checksum=version)


def dispatched(job, owner="w"):
    claimed = job_claim(job_id=job.pk, owner=owner)
    assert claimed is not None
    sent = job_dispatched(job_id=job.pk, attempt=claimed.attempt, owner=owner, welcome=WELCOME)
    assert sent is not None
    return sent


def actions(job):
    entries = AuditEntry.objects.filter(job_id=job.pk).order_by("seq")
    return [entry.action for entry in entries]


def test_a_job_is_claimed_once(ask):
    job = ask()
    assert job_claim(job_id=job.pk, owner="a").attempt == 1
    assert job_claim(job_id=job.pk, owner="b") is None


def test_the_deadline_counts_from_the_asking_and_if_idle_has_a_window_instead(ask):
    now = db_now()
    waiting = ask(timeout_s=7.5, now=now)
    assert waiting.deadline_at == waiting.dispatch_by == now + timedelta(seconds=7.5)
    job_cancel(job_id=waiting.pk, actor=waiting_actor())
    at_once = ask(timeout_s=0, now=now)
    assert (at_once.mode, at_once.deadline_at) == (Mode.IF_IDLE, None)
    assert at_once.dispatch_by == now + timedelta(seconds=30)


def waiting_actor():
    from console.actors import Actor

    return Actor.system("test")


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), -1.0, 86_401.0])
def test_a_bad_timeout_is_invalid(timeout_s):
    with pytest.raises(Invalid, match="timeout_s"):
        params_of("flush_cache", {"timeout_s": timeout_s})


@pytest.mark.parametrize("mode", [Mode.DRAIN, Mode.RETRACT, Mode.ABORT])
def test_timeout_0_with_a_mode_that_holds_requests_is_invalid(mode):
    with pytest.raises(Invalid, match="greater than 0"):
        params_of("flush_cache", {"timeout_s": 0, "mode": str(mode)})


def test_an_unknown_engine_is_not_found(ana):
    with pytest.raises(EngineNotFound):
        job_create(
            engine_name="nowhere",
            params=FlushParams(),
            reason="",
            on_conflict=OnConflict.REFUSE,
            actor=ana,
        )


def test_a_second_job_is_refused_naming_the_first_and_its_time(ask):
    first = ask(timeout_s=20)
    with pytest.raises(EngineBusy) as refused:
        ask(timeout_s=20)
    assert refused.value.facts["holder"] == str(first.pk)
    assert 18 < refused.value.facts["remaining_s"] <= 20


def test_queued_jobs_go_one_after_the_other_in_order(ask):
    jobs = [ask(on_conflict=OnConflict.QUEUE) for _ in range(3)]
    assert [job.blocked for job in jobs] == [False, True, True]
    assert job_claim(job_id=jobs[1].pk, owner="w") is None
    for number, job in enumerate(jobs):
        sent = dispatched(job)
        job_finish(
            job_id=job.pk,
            attempt=sent.attempt,
            frm=JobState.DISPATCHED,
            result=result_of(job),
            process="worker",
        )
        left = [job_get(rights=EVERYTHING, job_id=other.pk).blocked for other in jobs[number + 1 :]]
        assert left == [False, True][: len(left)]


def test_the_database_itself_allows_one_holder_an_engine(ask):
    first, second = ask(), ask(on_conflict=OnConflict.QUEUE)
    dispatched(first)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=second.pk).update(state=JobState.CLAIMED)


def test_the_database_itself_allows_one_outcome_a_job(ask, ana):
    job = ask()
    job_cancel(job_id=job.pk, actor=ana)
    with pytest.raises(IntegrityError), transaction.atomic():
        audit_append(
            action="job.succeeded",
            stage=AuditStage.OUTCOME,
            actor=ana,
            now=db_now(),
            process="test",
            job_id=job.pk,
            facts={},
        )


def test_a_worker_that_lost_its_claim_can_do_nothing(ask):
    job = ask()
    old = job_claim(job_id=job.pk, owner="old")
    Job.objects.filter(pk=job.pk).update(lease_until=db_now() - timedelta(seconds=1))
    assert [lapsed.pk for lapsed in jobs_lapsed()] == [job.pk]
    job_release(
        job_id=job.pk,
        attempt=old.attempt,
        why="silent",
        process="reconciler",
        pause_s=0,
        lapsed_at=db_now(),
    )
    new = job_claim(job_id=job.pk, owner="new")
    assert new.attempt == old.attempt + 1
    assert job_dispatched(job_id=job.pk, attempt=old.attempt, owner="old", welcome=WELCOME) is None
    assert not job_lease_renew(job_id=job.pk, attempt=old.attempt, owner="old")
    assert job_dispatched(job_id=job.pk, attempt=new.attempt, owner="new", welcome=WELCOME)


def test_a_lapsed_lease_or_a_passed_deadline_stops_the_sending(ask):
    job = ask(timeout_s=5)
    claimed = job_claim(job_id=job.pk, owner="w")
    late = db_now() + timedelta(seconds=11)
    sent = job_dispatched(
        job_id=job.pk, attempt=claimed.attempt, owner="w", welcome=WELCOME, now=late
    )
    assert sent is None
    assert job_expire(job_id=job.pk, process="worker", now=late).state == JobState.EXPIRED


def test_an_end_is_final(ask, ana):  # J05
    job = ask()
    sent = dispatched(job)
    end = {
        "job_id": job.pk,
        "attempt": sent.attempt,
        "frm": JobState.DISPATCHED,
        "process": "worker",
    }
    assert job_finish(**end, result=result_of(job)).state == JobState.SUCCEEDED
    assert job_finish(**end, result=result_of(job, Outcome.FAILED)) is None
    assert job_reconcile(job_id=job.pk, attempt=1, why="?", process="worker") is None
    for act in (
        lambda: job_cancel(job_id=job.pk, actor=ana),
        lambda: job_force(job_id=job.pk, actor=ana),
        lambda: job_extend(job_id=job.pk, by_s=5, actor=ana),
    ):
        with pytest.raises(JobFinished):
            act()
    assert actions(job).count("job.succeeded") == 1


def test_a_sealed_job_never_ran_or_was_cancelled(ask, ana):
    answer = QueryAnswer(op_id="x", engine_id="E1", status=QueryStatus.NEVER)
    for cancel, state in ((False, JobState.FAILED), (True, JobState.CANCELLED)):
        job = ask()
        sent = dispatched(job)
        job_reconcile(job_id=job.pk, attempt=sent.attempt, why="lost", process="worker")
        Job.objects.filter(pk=job.pk).update(cancel_requested=cancel)
        assert job_never_ran(job_id=job.pk, attempt=sent.attempt, answer=answer).state == state


def test_a_job_is_handed_over_once(ask):
    job = ask()
    sent = dispatched(job, owner="a")
    assert job_adopt(job_id=job.pk, owner="thief") is None
    assert job_handover(job_id=job.pk, attempt=sent.attempt, owner="a")
    assert job_adopt(job_id=job.pk, owner="b").lease_owner == "b"
    assert job_adopt(job_id=job.pk, owner="c") is None


def test_the_same_key_and_body_give_the_same_job_another_body_is_refused(ask):
    job = ask(key="k1", timeout_s=5)
    assert ask(key="k1", timeout_s=5).pk == job.pk
    with pytest.raises(IdempotencyMismatch):
        ask(key="k1", timeout_s=6)


def test_a_key_belongs_to_its_person(ask, ana, user):
    from dataclasses import replace

    job = ask(key="k1")
    other = replace(ana, user_id=user.pk + 1000, name="ben")
    # Another person's use of the key does not find ana's job; the engine is simply held.
    with pytest.raises(EngineBusy) as refused:
        ask(key="k1", actor=other)
    assert refused.value.facts["holder"] == str(job.pk)


def test_j03_a_doorbell_rings_after_the_commit_and_never_without_one(
    ask, monkeypatch, django_capture_on_commit_callbacks
):  # J03
    rung = []
    monkeypatch.setattr(dispatch, "job_ring", rung.append)
    with django_capture_on_commit_callbacks(execute=True):
        job = ask()
        assert rung == []
    assert rung == [job.pk]
    job_cancel(job_id=job.pk, actor=waiting_actor())
    rung.clear()

    class Undo(Exception):
        pass

    entries = AuditEntry.objects.count()
    with (
        django_capture_on_commit_callbacks(execute=True),
        pytest.raises(Undo),
        transaction.atomic(),
    ):
        lost = ask()
        raise Undo
    assert rung == []
    assert not Job.objects.filter(pk=lost.pk).exists()
    assert AuditEntry.objects.count() == entries


def test_a_doorbell_is_owed_until_the_job_is_claimed_and_rings_ever_slower(ask, monkeypatch):
    rung = []
    monkeypatch.setattr(dispatch, "job_ring", rung.append)
    job = ask(timeout_s=600)
    start = db_now()
    for second in range(1, 61):
        doorbells_ring(now=start + timedelta(seconds=second))
    assert 4 <= len(rung) <= 8
    assert job_claim(job_id=job.pk, owner="w")
    assert not Outbox.objects.exists()
    assert doorbells_ring(now=start + timedelta(seconds=300)) == 0


def test_extend_and_force_change_an_unsent_job_in_place(ask, ana):
    job = ask(timeout_s=10)
    extended = job_extend(job_id=job.pk, by_s=5, actor=ana)
    assert extended.deadline_at == job.deadline_at + timedelta(seconds=5)
    assert job_force(job_id=job.pk, actor=ana).mode == Mode.DRAIN
    assert actions(job)[-2:] == ["job.extended", "job.forced"]
    with pytest.raises(Invalid):
        job_extend(job_id=job.pk, by_s=float("nan"), actor=ana)


def test_the_audit_names_the_person_also_where_a_worker_writes(ask):  # D03
    job = ask()
    sent = dispatched(job)
    job_finish(
        job_id=job.pk,
        attempt=sent.attempt,
        frm=JobState.DISPATCHED,
        result=result_of(job),
        process="worker",
    )
    bodies = [json.loads(entry.body) for entry in AuditEntry.objects.filter(job_id=job.pk)]
    assert {body["actor"]["name"] for body in bodies} == {"ana"}
    end = next(body for body in bodies if body["stage"] == "outcome")
    assert [rank["state"] for rank in end["ranks"]] == ["succeeded", "succeeded"]
    assert end["process"] == "worker"


STEPS = (
    "claim",
    "dispatch",
    "release",
    "expire",
    "reconcile",
    "finish",
    "finish_reconciled",
    "never",
    "interrupt",
    "cancel",
    "lapse",
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(STEPS), st.sampled_from(list(Outcome))),
        max_size=25,
    )
)
def test_any_order_of_steps_keeps_the_protocol(ask, ana, steps):
    """Three jobs, any steps by anyone, also with stale attempts: only allowed moves happen."""
    savepoint = transaction.savepoint()
    jobs = [ask(on_conflict=OnConflict.QUEUE) for _ in range(3)]
    for index, step, outcome in steps:
        before = {job.pk: job_get(rights=EVERYTHING, job_id=job.pk) for job in jobs}
        _step(step, before[jobs[index].pk], outcome, ana)
        for pk, old in before.items():
            new = job_get(rights=EVERYTHING, job_id=pk)
            assert new.state == old.state or new.state in TRANSITIONS[JobState(old.state)]
            assert new.version >= old.version
            assert (new.finished_at is not None) == (new.state in TERMINAL_STATES)
            assert (new.phase is None) == (new.state in TERMINAL_STATES)
            ends = AuditEntry.objects.filter(job_id=pk, stage=AuditStage.OUTCOME).count()
            assert ends == (new.state in TERMINAL_STATES)
            owed = Outbox.objects.filter(job_id=pk).exists()
            assert owed == (new.state == JobState.ACCEPTED and not new.blocked)
        assert Job.objects.filter(state__in=HOLDING_STATES).count() <= 1
    seqs = list(AuditEntry.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    transaction.savepoint_rollback(savepoint)


def _step(step, job, outcome, ana):
    ids = {"job_id": job.pk, "attempt": job.attempt}
    match step:
        case "claim":
            job_claim(job_id=job.pk, owner="w")
        case "dispatch":
            job_dispatched(**ids, owner="w", welcome=WELCOME)
        case "release":
            job_release(**ids, why="test", process="worker", pause_s=0)
        case "expire":
            job_expire(job_id=job.pk, process="reconciler")
        case "reconcile":
            job_reconcile(**ids, why="test", process="worker")
        case "finish":
            job_finish(
                **ids, frm=JobState.DISPATCHED, result=result_of(job, outcome), process="worker"
            )
        case "finish_reconciled":
            job_finish(
                **ids,
                frm=JobState.RECONCILING,
                result=result_of(job, outcome),
                process="reconciler",
            )
        case "never":
            answer = QueryAnswer(op_id=str(job.pk), engine_id="E1", status=QueryStatus.NEVER)
            job_never_ran(**ids, answer=answer)
        case "interrupt":
            job_interrupted(**ids, why="test", observed=None)
        case "cancel" if job.state in (JobState.ACCEPTED, JobState.CLAIMED):
            job_cancel(job_id=job.pk, actor=ana)
        case "lapse" if job.state == JobState.CLAIMED:
            job_release(**ids, why="test", process="reconciler", lapsed_at=db_now())


def test_the_connection_is_the_one_that_ships():  # J11
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == ("wal",)
        cursor.execute("PRAGMA synchronous")
        assert cursor.fetchone() == (2,)
    assert connection.settings_dict["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


@pytest.mark.parametrize(("now", "known"), [("v2", ["v2", "v1", "v1"]), ("v1", [None, None, "v1"])])
def test_the_audit_log_does_not_guess_what_a_rank_serves_whose_undo_failed(ask, now, known):
    """After an undo `failed` means either not changed, or still changed; the reply tells which is
    desired, and not what such a rank has."""
    job = dispatched(ask(kind="update_weight_version", new_version="v2"))
    first = RankState.SUCCEEDED if now == "v2" else RankState.FAILED
    result = msgspec.structs.replace(
        result_of(job, Outcome.PARTIAL),
        kind=OperationKind.UPDATE_WEIGHT_VERSION,
        ranks=[
            RankResult(dp_rank=rank, state=state)
            for rank, state in enumerate([first, RankState.FAILED, RankState.COMPENSATED])
        ],
        weights=weights(now),
        weights_before=weights("v1"),
    )
    job_finish(
        job_id=job.pk,
        attempt=job.attempt,
        frm=JobState.DISPATCHED,
        result=result,
        process="worker",
    )
    entry = AuditEntry.objects.get(job_id=job.pk, stage="outcome")
    after = [rank["weights_after"] for rank in json.loads(entry.body)["ranks"]]
    assert [one and one["version"] for one in after] == known
