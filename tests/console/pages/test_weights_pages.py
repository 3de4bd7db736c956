"""Weights pages as the server renders them: matrix, lineage, returns, banner, forms, job page."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import msgspec
import pytest

from console.actors import Actor
from console.choices import JobKind, JobPhase, JobState
from console.clock import db_now
from console.models import Job, JobRankResult
from console.params import params_from
from console.selectors.access import rights_of
from console.services.engines import engine_register
from engine.protocol import WeightSource
from tests.console.pages.conftest import MARKUP, rank_view, served
from tests.console.pages.test_states import flat

pytestmark = pytest.mark.django_db

DISK = {"kind": "update_weights_from_disk", "model_path": "/srv/models/v7"}
GB = 10**9


def text_of(page, path, status=200):
    answer = page.get(path)
    assert answer.status_code == status, answer.content.decode()[:2000]
    return answer.content.decode()


@pytest.fixture
def pushed(ask):
    """A job that brought `after` in place of `before`."""

    def push(after, before=None, *, state=JobState.SUCCEEDED, ranks=("succeeded",) * 2, **more):
        job = ask(**{**DISK, "model_path": after.path or "/srv/models/x", **more})
        now = db_now()
        Job.objects.filter(pk=job.pk).update(
            state=state,
            phase=None,
            dispatched_at=now,
            finished_at=now + timedelta(seconds=3),
            reply={
                "weights": msgspec.to_builtins(after),
                "weights_before": msgspec.to_builtins(before) if before else None,
                "pause_s": 0.84,
                "staged_s": 2.5,
                "held_requests": 3,
                "started_clock_s": 1.0,
                "finished_clock_s": 5.0,
            },
        )
        staging = {"what": "ready", "done_bytes": GB, "total_bytes": GB, "elapsed_s": 2.0}
        for rank, word in enumerate(ranks):
            JobRankResult.objects.create(
                job=job, dp_rank=rank, state=word, staging=staging, effect_s=0.02
            )
        return Job.objects.get(pk=job.pk)

    return push


def test_the_matrix_says_what_each_rank_serves(page, engine, seen):
    seen(model="SmolLM2")
    text = flat(text_of(page, "/weights"))
    assert "SmolLM2" in text
    assert served("v7").checksum[:8] in text
    assert "one version" in text
    assert "No job has changed weights yet" in text
    assert "versions:" not in text


def test_ranks_that_differ_are_told_on_every_page(page, engine, seen, ask):
    seen(ranks=[rank_view(0), rank_view(1, version="v6")])
    for path in ("/", "/weights", "/engines/local", "/jobs", "/audit", "/flush", "/uploads"):
        text = flat(text_of(page, path))
        assert "m is served with 2 versions: 1 rank on v6, 1 rank on v7" in text, path
    assert 'class="wv wv-old"' in text_of(page, "/weights")


def test_engines_of_one_model_that_differ_are_a_mixed_fleet(page, engine, seen):
    engine_register(
        name="other",
        control_address="ipc:///nowhere/c",
        events_address="ipc:///nowhere/e",
        actor=Actor.system("test"),
    )
    seen()
    old = [rank_view(0, version="v6"), rank_view(1, version="v6")]
    seen(name="other", ranks=old, weights=served("v6"))
    assert "2 ranks on v6, 2 ranks on v7" in flat(text_of(page, "/"))
    seen(name="other", ranks=old, weights=served("v6"), model="another")
    assert "is served with" not in text_of(page, "/")


def test_a_fenced_rank_is_named_with_why_and_repair_is_offered(page, engine, seen):
    odd = rank_view(1, version="v6", proven=False, condition="fenced", note="no file of v7")
    seen(ranks=[rank_view(0), odd])
    text = text_of(page, "/engines/local/weights")
    assert "Rank 1 in quarantine" in flat(text)
    assert "no file of v7" in flat(text)
    assert "/engines/local/do/repair" in text
    assert "Repair first" in text
    assert 'class="wv wv-fenced"' in text
    assert "quarantine" in flat(text_of(page, "/engines/local"))


@pytest.mark.parametrize(
    ("facts", "says", "word"),
    [
        ({"paused": "in_place"}, "It is paused (in_place)", "paused"),
        ({"released": ["weights"]}, "gave back weights", "released"),
        ({"needs_weights": True}, "nothing is served until an update", "needs weights"),
    ],
)
def test_what_keeps_an_engine_from_serving_is_said(page, engine, seen, facts, says, word):
    seen(**facts)
    text = text_of(page, "/engines/local")
    assert says.lower() in flat(text).lower()
    assert f"<span>{word}</span>" in text
    assert f"<span>{word}</span>" in text_of(page, "/")


def test_lineage_tells_who_pushed_what_and_offers_the_way_back(page, engine, seen, pushed):
    start = served("v5", source=WeightSource.START)
    pushed(served("v6"), start)
    uploaded = served("up", source=WeightSource.TENSOR, path="", label="w.safetensors")
    pushed(uploaded, served("v6"))
    job = pushed(served("v7"), uploaded)
    seen()
    text = text_of(page, "/engines/local/weights")
    assert "0.84 s" in text
    assert f"/jobs/{job.pk}" in text
    assert f"/engines/local/weights/return?version=v6%40{served('v6').checksum}" in text
    assert f"/engines/local/weights/return?version=v5%40{served('v5').checksum}" in text
    assert "up came from a tensor upload and no file of it was kept" in flat(text)
    answer = page.get("/engines/local/weights/return")  # the previous one is the upload
    assert answer.status_code == 409
    assert page.get("/engines/local/weights/return?version=v9%40x").status_code == 404


def send(page, url, /, **fields):
    good = {"mode": "wait", "timeout_s": "60", "reason": "why", "confirm": "local"}
    return page.post(url, {"key": str(uuid.uuid4()), "engine": "local", **good, **fields})


def test_a_return_is_a_new_update_from_the_folder_of_before(page, engine, seen, pushed):
    pushed(served("v7"), served("v6"))
    seen()
    path = "/engines/local/weights/return"
    text = text_of(page, path)
    assert "Return local to v6" in flat(text)
    answer = send(page, path, mode="retract", flush_cache="on")
    assert answer.status_code == 303, answer.content.decode()[:3000]
    job = Job.objects.latest("created_at")
    assert answer["Location"] == f"/jobs/{job.pk}"
    params = params_from(job.kind, job.params)
    assert (params.model_path, params.weight_version) == ("/srv/models/v6", "v6")
    assert params.expected_checksum == served("v6").checksum


def test_a_disk_update_takes_a_folder_under_a_root(page, engine, seen):
    seen()
    text = text_of(page, "/weights/new?engine=local")
    assert "The engine did not say which folders it has" in text
    assert "not checked yet" in text
    answer = send(page, "/weights/new", source="disk", root="models", path="v8", flush_cache="on")
    assert answer.status_code == 303
    job = Job.objects.get()
    assert job.kind == JobKind.UPDATE_WEIGHTS_FROM_DISK
    assert job.params["model_path"] == "/srv/models/v8"
    assert job.params["flush_cache"] is True
    assert job.params["torch_empty_cache"] is False


def test_a_trainer_update_names_its_group(page, engine, seen):
    seen()
    assert 'value="3"' in text_of(page, "/weights/source?engine=local&source=distributed")
    group = {"master_address": "10.0.0.1", "master_port": "29500", "rank_offset": "1"}
    answer = send(
        page,
        "/weights/new",
        source="distributed",
        world_size="3",
        group_name="g",
        backend="gloo",
        receive_timeout_s="30",
        **group,
    )
    assert answer.status_code == 303, answer.content.decode()[:2000]
    params = Job.objects.get().params
    assert params["group"] == {
        "master_address": "10.0.0.1",
        "master_port": 29500,
        "rank_offset": 1,
        "world_size": 3,
        "group_name": "g",
        "backend": "gloo",
    }


@pytest.mark.parametrize(
    ("fields", "box", "says"),
    [
        ({"source": "disk", "path": ""}, "w-path", "Name a folder"),
        ({"source": "disk", "path": "a", "timeout_s": "x"}, "w-to", "Seconds"),
        ({"source": "disk", "path": "a", "timeout_s": "0", "mode": "drain"}, "w-to", "greater"),
        ({"source": "disk", "path": "a", "weight_version": "\x01"}, "w-ver", "match"),
        ({"source": "disk", "path": "a", "reason": ""}, "w-why", "Write a reason"),
        ({"source": "disk", "path": "a", "confirm": "Local"}, "w-name", "Type local"),
        ({"source": "distributed", "master_address": ""}, "w-addr", "Write the address"),
        (
            {"source": "distributed", "master_address": "h", "world_size": "many"},
            "w-world",
            "whole number",
        ),
        (
            {"source": "distributed", "master_address": "h", "world_size": "3", "master_port": "0"},
            "w-port",
            "greater than or equal to 1",
        ),
    ],
)
def test_a_bad_field_is_named_under_itself_and_nothing_is_asked(
    page, engine, seen, fields, box, says
):
    seen()
    answer = send(page, "/weights/new", **fields)
    assert answer.status_code == 422
    text = answer.content.decode()
    assert 'aria-invalid="true"' in re.search(rf'<input[^>]*id="{box}"[^>]*>', text).group()
    assert says in re.search(rf'id="{box}-err">([^<]*)<', text).group(1)
    assert not Job.objects.exists()


def test_what_was_typed_is_escaped_and_kept(page, engine, seen):
    seen()
    answer = send(page, "/weights/new", source="disk", path=MARKUP, reason="", weight_version="v")
    assert MARKUP not in answer.content.decode()


def test_the_plan_says_what_is_known_and_what_is_not(page, engine, seen, pushed):
    seen(running=2, ranks=[rank_view(0, running=2, prefill_tokens_per_s=100.0), rank_view(1)])
    url = "/weights/plan?engine=local&source=disk&root=models&path=v8&mode=retract&timeout_s=60"
    text = flat(text_of(page, url))
    assert "not known: no earlier job of this kind" in text
    assert "0 lost ; 2 restart from prefill" in text
    assert "no rank has told its prefill rate" in text
    assert "not known: the engine did not say in time" in text
    pushed(served("v7"), served("v6"), mode="retract")
    rates = [rank_view(n, prefill_tokens_per_s=100.0) for n in range(2)]
    seen(ranks=rates)
    text = flat(text_of(page, url))
    assert "2.50 s as measured in the last 1 job" in text
    assert "0.84 s as measured in the last 1 job" in text
    assert "960 cached on the device (L1)" in text
    assert "2.40–9.60 s of prefill" in text
    assert "“Return to v7” is a new update" in text


@pytest.mark.parametrize(
    ("kind", "fields", "stored"),
    [
        ("pause_generation", {"pause_mode": "in_place"}, {"pause_mode": "in_place"}),
        ("continue_generation", {}, {"torch_empty_cache": True}),
        ("abort_requests", {"rid": "r-1", "message": "m"}, {"rid": "r-1", "abort_all": False}),
        ("abort_requests", {"rid": "", "message": "m"}, {"rid": "", "abort_all": True}),
        ("release_memory", {"tags": ["weights"]}, {"tags": ["weights"], "mode": "wait"}),
        ("resume_memory", {"tags": ["kv_cache", "weights"]}, {"tags": ["kv_cache", "weights"]}),
        ("repair", {}, {}),
        ("update_weight_version", {"new_version": "v9"}, {"new_version": "v9"}),
    ],
)
def test_each_small_form_makes_its_job(page, engine, seen, kind, fields, stored):
    seen()
    path = f"/engines/local/do/{kind}"
    assert f'action="{path}"' in text_of(page, path)
    answer = send(page, path, **fields)
    assert answer.status_code == 303, answer.content.decode()[:3000]
    job = Job.objects.get()
    assert job.kind == kind
    assert job.params.items() >= stored.items()
    assert "Class" in text_of(page, answer["Location"])


def test_small_forms_confirm_by_class_and_refuse_in_place(page, engine, seen):
    seen()
    assert send(page, "/engines/local/do/repair", confirm="").status_code == 303
    Job.objects.all().delete()
    assert send(page, "/engines/local/do/release_memory", confirm="").status_code == 422
    assert send(page, "/engines/local/do/release_memory").status_code == 422  # no tag
    assert send(page, "/engines/local/do/pause_generation").status_code == 422  # no mode
    assert send(page, "/engines/local/do/update_weight_version").status_code == 422
    assert send(page, "/engines/local/do/repair", reason="").status_code == 422
    assert page.get("/engines/local/do/flush_cache").status_code == 404
    assert page.get("/engines/nobody/do/repair").status_code == 404
    assert not Job.objects.exists()
    plan = text_of(page, "/engines/local/do/pause_generation/plan?pause_mode=abort")
    assert plan.lstrip().startswith("<dl")


def staged(job, what, done, *, state="not_started"):
    for rank in range(2):
        JobRankResult.objects.create(
            job=job,
            dp_rank=rank,
            state=state,
            staging={
                "what": what,
                "done_bytes": done,
                "total_bytes": GB,
                "elapsed_s": 2.0,
            },
        )


def test_a_staging_job_shows_bytes_and_rate_of_each_rank(page, seen, ask, in_state):
    seen()
    job = in_state(
        JobState.DISPATCHED,
        phase=JobPhase.PREPARING,
        job=ask(**DISK),
        deadline_at=None,
    )
    staged(job, "stage", GB // 2)
    text = text_of(page, f"/jobs/{job.pk}")
    words = flat(text)
    assert "Update weights of local to v7" in words
    assert "0.5 of 1 GB" in words
    assert "250" in words
    assert "all ranks 500 MB/s" in words
    assert "Nothing is held yet" in words
    assert "60 s from the end of staging" in words
    assert 'id="g1-verify"' in text
    assert "/force" not in text


def test_an_ended_update_shows_the_measured_pause_and_the_new_weights(page, seen, pushed):
    seen()
    job = pushed(served("v7"), served("v6"))
    words = flat(text_of(page, f"/jobs/{job.pk}"))
    assert "Pause, as measured" in words
    assert "0.84 s" in words
    assert f"All 2 ranks serve v7, checksum {served('v7').checksum[:8]}" in words
    assert "3 held requests were released in order" in words
    assert "in 20 ms" in words
    assert "Stage and verify : ok 2.50 s" in words.replace(": ok", " : ok").replace("  ", " ")


def test_a_partial_update_names_who_did_not_and_what_happens(page, seen, pushed):
    seen()
    job = pushed(served("v7"), served("v6"), state=JobState.PARTIAL, ranks=("succeeded", "failed"))
    words = flat(text_of(page, f"/jobs/{job.pk}"))
    assert "Rank 0 updated, rank 1 not" in words
    assert "fenced and gets no requests" in words


def test_files_on_their_way_are_shown(page, seen, ask, in_state, settings, tmp_path):
    seen()
    job = in_state(
        JobState.CLAIMED,
        phase=JobPhase.PREPARING,
        job=ask(**DISK),
        dispatched_at=None,
        kind=JobKind.UPDATE_WEIGHTS_FROM_TENSOR,
        params={"uploads": ["a" * 64]},
        sent_bytes=3 * GB,
        total_bytes=4 * GB,
    )
    words = flat(text_of(page, f"/jobs/{job.pk}"))
    assert "3.0 of 4 GB" in words
    assert "a worker that dies is gone on from" in words


@pytest.mark.parametrize("state", [one for one in JobState if one != JobState.ACCEPTED])
@pytest.mark.parametrize("kind", JobKind.values)
def test_every_kind_has_words_in_every_state(page, seen, in_state, ask, kind, state):
    from tests.console.test_params import GOOD

    seen()
    job = in_state(state, job=ask(), kind=kind, params=params_from(kind, GOOD[kind]).stored())
    text = flat(text_of(page, f"/jobs/{job.pk}"))
    assert "nothing was flushed" not in text.lower() or kind == "flush_cache"
    text_of(page, "/jobs")
    text_of(page, "/engines/local/weights")


def test_the_uploads_page_lists_and_deletes(page, user, settings, tmp_path):
    settings.STATE_DIR = tmp_path
    from console.actors import Actor as Who
    from console.choices import Via
    from tests.console.test_uploads import send as upload

    assert "No file yet" in text_of(page, "/uploads")
    one = upload(Who(user_id=user.pk, name="ana", via=Via.UI, rights=rights_of(user)))
    assert one.sha256[:12] in text_of(page, "/uploads")
    assert page.post(f"/uploads/{one.pk}/delete").status_code == 303
    assert "No file yet" in text_of(page, "/uploads")
