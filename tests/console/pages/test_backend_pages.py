"""Backend pages as the server renders them: lists, ranks, forms, plans, job page, undo, words."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import msgspec
import pytest

from console.actors import Actor
from console.choices import Follow, JobKind, JobPhase, JobState
from console.clock import db_now
from console.models import Job, JobRankResult
from console.services.engines import engine_register
from engine.protocol import (
    BackendView,
    Breaker,
    CachePolicies,
    StorageBackend,
    WritePolicy,
    fields_of,
)
from tests.console.pages.conftest import (
    CONFIG_ID,
    MARKUP,
    attached,
    rank_view,
    stored_rank,
)
from tests.console.pages.test_states import flat
from tests.console.pages.test_weights_pages import text_of

pytestmark = pytest.mark.django_db

ATTACH = "/engines/local/backend/attach"
FILE = {"kind": "attach_storage_backend", "backend": "file"}
URL = "valkey://kv:6379/0"


@pytest.fixture
def with_valkey(seen):
    """The engine has valkey attached to both ranks."""

    def see(**more):
        ranks = more.pop("ranks", None) or [stored_rank(0), stored_rank(1)]
        seen(**{"hierarchical": True, "storage": attached(), "ranks": ranks, **more})

    return see


@pytest.fixture
def ended(ask):
    """A job that changed `before` into `now`."""

    def end(before, now, *, state=JobState.SUCCEEDED, ranks=("succeeded",) * 2, **params):
        policies = params.pop("policies", (CachePolicies(), CachePolicies()))
        reasons = params.pop("reasons", {})
        job = ask(**(params or FILE))
        at = db_now()
        Job.objects.filter(pk=job.pk).update(
            state=state,
            phase=None,
            dispatched_at=at,
            finished_at=at + timedelta(seconds=2),
            error=None if state == JobState.SUCCEEDED else {"code": "x", "message": "not all"},
            reply=msgspec.to_builtins(
                {
                    "storage": now,
                    "storage_before": before,
                    "policies_before": policies[0],
                    "policies": policies[1],
                }
            ),
        )
        for rank, word in enumerate(ranks):
            JobRankResult.objects.create(
                job=job, dp_rank=rank, state=word, message=reasons.get(rank, "")
            )
        return Job.objects.get(pk=job.pk)

    return end


def test_the_list_says_who_has_what(page, engine, with_valkey):
    with_valkey(ranks=[stored_rank(0), stored_rank(1, breaker=Breaker.OPEN, hit_rate=0.0)])
    text = flat(text_of(page, "/backends"))
    assert "1 with valkey; 1 breaker not closed" in text
    for words in ("c41d77e0", "12 %", "342", "140", "3.6 GB"):
        assert words in text, words
    assert "rank 1: open" in text_of(page, "/backends")


def test_an_engine_that_is_silent_or_never_seen_has_dashes(page, engine, with_valkey):
    assert "not known" in flat(text_of(page, "/backends"))
    assert "never seen" in flat(text_of(page, "/engines/local/backend"))
    with_valkey(age_s=60)
    text = flat(text_of(page, "/backends"))
    assert "valkey" in text  # the last known
    assert "342" not in text


def test_each_rank_its_breaker_its_config_and_its_errors(page, engine, with_valkey):
    odd = stored_rank(
        1,
        breaker=Breaker.OPEN,
        retry_in_s=8.0,
        errors=61,
        dropped_pages=1,
        corrupt_pages=2,
        last_error=f"-200 no space {MARKUP}",
        last_error_age_s=22.0,
        drifts=True,
    )
    with_valkey(ranks=[stored_rank(0), odd])
    text = text_of(page, "/engines/local/backend")
    words = flat(text)
    assert "valkey on local" in words
    assert "next try in 8.0 s" in words
    assert "61 in all" in words
    assert "1 page was not written. 2 pages were not what had been written" in words
    assert "Rank 1 not as desired" in words
    assert "1 of 2 as desired" in words
    assert "write_through · timeout" in words
    assert "attached outside this console" in words
    assert MARKUP not in text
    assert "hmac:4f0ca17b4f0ca17b" in text


def test_a_rank_that_cannot_open_its_backend_is_not_as_desired(page, engine, with_valkey):
    shut = stored_rank(
        1,
        is_open=False,
        breaker=Breaker.OPEN,
        retry_in_s=8.0,
        errors=1,
        last_error="file_storage_path is not a folder",
        last_error_age_s=2.0,
        stored_pages=None,
        used_bytes=None,
    )
    with_valkey(ranks=[stored_rank(0), shut])
    words = flat(text_of(page, "/engines/local/backend"))
    assert "1 rank cannot open it" in words
    assert "Rank 1 not as desired" in words and "but could not open it" in words
    assert "tries again by itself, every 30 s" in words and "Repair" not in words
    assert "not open" in words and "1 of 2 as desired" in words
    assert "file_storage_path is not a folder" in words
    assert "rank 1" in flat(text_of(page, "/backends"))


def test_a_mixed_attach_is_told_by_rank(page, engine, with_valkey):
    """H02: at no time does a page claim a backend of a rank that has none."""
    with_valkey(ranks=[stored_rank(0), rank_view(1, note="could not start its threads")])
    words = flat(text_of(page, "/engines/local/backend"))
    assert "Rank 1 has nothing attached: could not start its threads" in words
    assert "1 closed, 1 none" in words
    assert "rank 1" in flat(text_of(page, "/backends"))


def test_settings_that_are_no_known_public_ones_are_hidden(page, engine, with_valkey):
    leaky = attached(config='{"url": "valkey://kv:1/0", "password": "oh-no-1", "odd": "oh-no-2"}')
    with_valkey(storage=leaky)
    for path in ("/engines/local/backend", ATTACH, f"{ATTACH}?backend=valkey", "/backends"):
        assert "oh-no" not in text_of(page, path), path
    assert "hidden" in text_of(page, "/engines/local/backend")


@pytest.mark.parametrize("backend", list(StorageBackend))
def test_a_form_has_every_setting_of_its_backend_with_help_and_bounds(page, engine, seen, backend):
    seen(hierarchical=True)
    text = text_of(page, f"{ATTACH}?backend={backend}")
    for field in fields_of(backend):
        assert f'id="s-{field.name}"' in text, field.name
        assert f'id="h-{field.name}"' in text
        if field.kind == "secret":
            box = re.search(rf'<input[^>]*id="s-{field.name}"[^>]*>', text).group()
            assert 'type="password"' in box
            assert "value=" not in box
    before, _, after = text.partition('<details class="fold')
    for field in fields_of(backend):
        assert f'id="s-{field.name}"' in (after if field.is_common else before)
    fields = text_of(page, f"/engines/local/backend/fields?backend={backend}")
    assert fields.lstrip().startswith('<div id="settings"')


def test_what_cannot_be_attached_says_why_and_cannot_be_chosen(page, engine, seen):
    seen(
        hierarchical=True,
        backends=[BackendView(backend=StorageBackend.NIXL, problem="no package nixl")],
    )
    text = text_of(page, ATTACH)
    box = re.search(r'<input[^>]*value="nixl"[^>]*>', text).group()
    assert "disabled" in box
    assert "Cannot be attached here: no package nixl" in flat(text)
    assert flat(text).count("experimental") == 2
    plan = send(page, f"{ATTACH[:-7]}/plan", backend="nixl")
    assert "nixl cannot be attached here: no package nixl" in flat(plan.content.decode())
    seen(hierarchical=False)
    plan = send(page, f"{ATTACH[:-7]}/plan", backend="file")
    assert "no host tier (L2)" in flat(plan.content.decode())


def send(page, url, /, **fields):
    good = {"mode": "wait", "timeout_s": "60", "reason": "why", "key": str(uuid.uuid4())}
    return page.post(url, {"replace": "", **good, **fields})


def test_an_attach_sends_what_differs_from_the_defaults(page, engine, seen):
    seen(hierarchical=True)
    answer = send(
        page,
        ATTACH,
        backend="file",
        **{"s-max_size": str(1 << 34), "s-direct_io": "auto", "s-io_timeout": "2.5"},
        **{"o-rank": ["1"], "o-setting": ["max_size"], "o-value": [str(1 << 35)]},
        write_policy="write_back",
    )
    assert answer.status_code == 303, answer.content.decode()[:3000]
    job = Job.objects.get()
    assert job.params["config"] == {"max_size": 1 << 34, "io_timeout": 2.5}
    assert job.params["rank_configs"] == {"1": {"max_size": 1 << 35}}
    assert (job.params["replace"], job.params["write_policy"]) == (False, "write_back")
    words = flat(text_of(page, answer["Location"]))
    assert "Attach file to local" in words
    assert "config.max_size" in words


@pytest.mark.parametrize(
    ("fields", "box", "says"),
    [
        (
            {"backend": "file", "s-max_size": "1"},
            "s-max_size",
            "Must be a whole number from 65,536",
        ),
        ({"backend": "file", "s-max_size": "8 GiB"}, "s-max_size", "Must be a whole number"),
        ({"backend": "file", "s-io_timeout": "nan"}, "s-io_timeout", "Must be a number"),
        ({"backend": "valkey"}, "s-url", "Is required"),
        ({"backend": "valkey", "s-url": "valkey://u:pw@h:1"}, "s-url", "Must not hold a user name"),
        ({"backend": "file", "timeout_s": "x"}, "a-to", "Seconds"),
        ({"backend": "file", "reason": ""}, "a-why", "Write a reason"),
    ],
)
def test_a_bad_setting_is_named_under_itself_and_nothing_is_asked(
    page, engine, seen, fields, box, says
):
    seen(hierarchical=True)
    answer = send(page, ATTACH, **fields)
    assert answer.status_code == 422
    text = answer.content.decode()
    tag = re.search(rf'<(input|select)[^>]*id="{box}"[^>]*>', text).group()
    assert 'aria-invalid="true"' in tag
    error = tag.split('aria-describedby="')[1].split()[0]
    assert says in re.search(rf'id="{error}">([^<]*)<', text).group(1)
    assert not Job.objects.exists()


def test_a_bad_override_is_named_beside_itself(page, engine, seen):
    seen(hierarchical=True)
    override = {"o-rank": ["1", "1"], "o-setting": ["max_size"] * 2, "o-value": ["5", "70000"]}
    text = send(page, ATTACH, backend="file", **override).content.decode()
    assert "named twice" in text
    assert "from 65,536" in flat(text)


def test_a_secret_that_was_typed_is_in_no_answer(page, engine, seen):
    seen(hierarchical=True)
    typed = {"backend": "valkey", "s-url": URL, "s-password": "typed-canary"}
    override = {"o-rank": "1", "o-setting": "password", "o-value": "override-canary"}
    plan = send(page, "/engines/local/backend/plan", **typed, **override).content.decode()
    assert "(secret, told to the engine only)" in plan
    bad = send(page, ATTACH, **typed, **override, reason="")
    away = send(page, ATTACH, **typed, **override)
    assert (bad.status_code, away.status_code) == (422, 503)
    assert "Not asked" in flat(away.content.decode())
    for text in (plan, bad.content.decode(), away.content.decode()):
        assert "canary" not in text
    assert not Job.objects.exists()


def test_a_present_secret_is_not_lost_by_an_empty_field(page, engine, with_valkey):
    with_valkey()
    text = text_of(page, f"{ATTACH}?backend=valkey")
    assert "hmac:4f0ca17b4f0ca17b" in text
    fields = {"backend": "valkey", "replace": "1", "s-url": URL, "s-ttl": "60"}
    answer = send(page, ATTACH, **fields)
    assert answer.status_code == 422
    assert "only the engine has the present one" in flat(answer.content.decode())
    answer = send(page, ATTACH, **fields, **{"none-password": "on"})
    assert answer.status_code == 303
    assert Job.objects.get().params["config"] == {"url": URL, "ttl": 60}


def test_a_switch_is_one_job_and_its_plan_says_each_step(page, engine, with_valkey):
    with_valkey()
    text = flat(text_of(page, f"{ATTACH}?backend=file"))
    assert "Switch local from valkey" in text
    for step in ("Probe file", "Drain", "Detach valkey c41d77e0", "Attach file", "Resume"):
        assert step in text, step
    assert "what is stored in valkey, 1,800 pages, is no longer read" in text
    assert "Switch back to valkey c41d77e0; no secret is needed" in text
    answer = send(page, ATTACH, backend="file", replace="1", mode="drain")
    job = Job.objects.get()
    assert (job.params["replace"], job.mode) == (True, "drain")
    assert "Switch to file on local" in flat(text_of(page, answer["Location"]))
    # A page that was painted before anything was attached asks for no switch.
    Job.objects.all().delete()
    send(page, ATTACH, backend="file", replace="")
    assert Job.objects.get().params["replace"] is False


def undo_of(page, job):
    found = re.search(
        r'href="([^"]*undo=[^"]*)"[^>]*>.*?Undo: ([^<]*)…', text_of(page, f"/jobs/{job.pk}")
    )
    return (found.group(1), found.group(2)) if found else None


def test_undo_of_an_attach_is_a_detach(page, seen, ended, with_valkey):
    with_valkey()
    job = ended(None, attached())
    url, words = undo_of(page, job)
    assert (url, words) == (f"/engines/local/do/detach_storage_backend?undo={job.pk}", "detach")
    form = text_of(page, url)
    assert f"Undo of job {str(job.pk)[-8:]}" in form
    assert f'action="{url}"' in form
    answer = send(page, url)
    assert answer.status_code == 303
    undo = Job.objects.latest("created_at")
    assert undo.kind == JobKind.DETACH_STORAGE_BACKEND
    assert (undo.origin, undo.follow) == (job, Follow.UNDO)
    assert f'<a href="/jobs/{undo.pk}">' in text_of(page, f"/jobs/{job.pk}")
    assert f'<a href="/jobs/{job.pk}">' in text_of(page, f"/jobs/{undo.pk}")


@pytest.mark.parametrize("now", [None, attached("file", config="", config_id="0" * 16)])
def test_undo_of_a_switch_or_a_detach_is_an_attach_by_id(page, ended, with_valkey, now):
    with_valkey(storage=now, ranks=[rank_view(0), rank_view(1)] if now is None else None)
    before = attached(rank_configs={"1": '{"prefix": "other"}'})
    params = {"kind": "detach_storage_backend"} if now is None else {**FILE, "replace": True}
    job = ended(before, now, **params)
    url, words = undo_of(page, job)
    assert url == f"{ATTACH}?undo={job.pk}"
    assert words == "attach valkey c41d77e0"
    text = text_of(page, url)
    assert 'type="password"' not in text
    assert "other" in text
    assert "no setting and no secret" in flat(text)
    answer = send(page, url, backend="valkey", replace="" if now is None else "1")
    assert answer.status_code == 303, answer.content.decode()[:3000]
    undo = Job.objects.latest("created_at")
    assert (undo.origin, undo.follow) == (job, Follow.UNDO)
    asked = undo.params
    assert (asked["backend"], asked["config_id"], asked["config"]) == ("valkey", CONFIG_ID, None)


def test_undo_of_policies_sets_them_as_before(page, seen, ended):
    policies = (CachePolicies(), CachePolicies(write_policy=WritePolicy.WRITE_BACK))
    seen(hierarchical=True, policies=policies[1])
    job = ended(None, None, kind="set_cache_policies", write_policy="write_back", policies=policies)
    url, words = undo_of(page, job)
    assert words == "policies as before"
    assert re.search(r'value="write_through" checked', text_of(page, url))
    for word, origin in (("write_back", None), ("write_through", job)):
        both = {"write_policy": word, "prefetch_policy": str(CachePolicies().prefetch_policy)}
        assert send(page, url, **both).status_code == 303
        asked = Job.objects.latest("created_at")
        assert asked.origin == origin, "what sets something else takes nothing back"
        Job.objects.filter(pk=asked.pk).update(state=JobState.CANCELLED, phase=None)


def test_no_undo_once_something_else_is_attached(page, ended, with_valkey):
    with_valkey(storage=attached("file", config="", config_id="0" * 16))
    job = ended(None, attached())
    assert undo_of(page, job) is None


@pytest.fixture
def other(ana):
    """A second engine, which has valkey too."""
    return engine_register(
        name="other",
        control_address="ipc:///nowhere/c2.sock",
        events_address="ipc:///nowhere/e2.sock",
        actor=Actor.system("test"),
    )


def test_the_form_of_another_engine_undoes_nothing(page, seen, ended, with_valkey, other):
    with_valkey()
    with_valkey(name="other")
    job = ended(None, attached())
    back = ended(attached(), attached("file", config="", config_id="0" * 16), replace=True, **FILE)
    for url in (
        f"/engines/other/do/detach_storage_backend?undo={job.pk}",
        f"/engines/other/backend/attach?undo={back.pk}",
        f"/engines/local/do/continue_generation?undo={job.pk}",
    ):
        name = url.split("/")[2]
        assert page.get(url).status_code == 409
        answer = send(page, url, backend="valkey", confirm=name)
        assert answer.status_code == 409, answer.content.decode()[:2000]
    assert Job.objects.count() == 2


def test_a_form_of_an_undo_that_has_become_stale_is_refused(page, seen, ended, with_valkey):
    with_valkey()
    job = ended(None, attached())
    url, _ = undo_of(page, job)
    with_valkey(storage=attached("file", config="", config_id="0" * 16))
    assert page.get(url).status_code == 409
    answer = send(page, url)
    assert answer.status_code == 409
    assert "what it left was changed since" in flat(answer.content.decode())
    assert Job.objects.count() == 1


def test_an_undo_by_form_is_made_once_though_the_engine_looks_as_it_was_left(
    page, seen, ended, with_valkey
):
    """Attached, detached and attached again: the state is the same, and another's work."""
    with_valkey()
    job = ended(None, attached())
    url, _ = undo_of(page, job)
    ended(attached(), None, kind="detach_storage_backend")
    later = ended(None, attached())
    assert undo_of(page, job) is None and undo_of(page, later) is not None
    answer = send(page, url)
    assert answer.status_code == 409 and Job.objects.count() == 3
    key = str(uuid.uuid4())
    again = url.replace(str(job.pk), str(later.pk))
    assert send(page, again, key=key).status_code == 303
    assert send(page, again, key=key).status_code == 303  # a form that was sent twice
    assert Job.objects.count() == 4


def test_policies_that_were_changed_since_are_not_set_back(page, seen, ended):
    policies = (CachePolicies(), CachePolicies(write_policy=WritePolicy.WRITE_BACK))
    seen(hierarchical=True, policies=policies[1])
    job = ended(None, None, kind="set_cache_policies", write_policy="write_back", policies=policies)
    assert undo_of(page, job) is not None
    seen(
        hierarchical=True, policies=CachePolicies(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE)
    )
    assert undo_of(page, job) is None


def test_while_ranks_probe_no_deadline_has_begun(page, ask, engine):
    job = ask(**FILE)
    fields = {"state": JobState.DISPATCHED, "phase": JobPhase.PREPARING, "dispatched_at": db_now()}
    for mode, heading, then in (
        ("wait", "Deadline not begun", "Then the deadline begins"),
        ("if_idle", "No deadline", "One that is busy then is a refusal"),
    ):
        Job.objects.filter(pk=job.pk).update(mode=mode, deadline_at=None, **fields)
        words = flat(text_of(page, f"/jobs/{job.pk}"))
        assert heading in words and then in words and "Extend" not in words


def test_an_undo_is_there_before_the_engines_next_snapshot_is(page, ended, with_valkey):
    """The end of a job comes from its worker, what is attached comes from the relay."""
    with_valkey()  # at 110 s of the engine's clock
    job = ended(attached(), None, kind="detach_storage_backend")
    assert undo_of(page, job) is None
    for finished_s, epoch, is_there in ((110.5, "1-abc", True), (109.0, "1-abc", False)):
        reply = {**job.reply, "finished_clock_s": finished_s, "epoch": epoch}
        Job.objects.filter(pk=job.pk).update(reply=reply)
        assert (undo_of(page, job) is not None) is is_there


def test_no_undo_where_there_is_none(page, seen, ended, ask, with_valkey):
    with_valkey()
    same = ended(attached(), attached())
    cleared = ended(attached(), attached(), kind="clear_storage_backend")
    failed = ended(None, None, state=JobState.FAILED, ranks=("failed", "not_started"))
    for job in (same, cleared, failed):
        assert undo_of(page, job) is None
    assert page.get(f"{ATTACH}?undo={cleared.pk}").status_code == 409
    assert page.get(f"/engines/local/do/detach_storage_backend?undo={same.pk}").status_code == 409
    assert page.get(f"{ATTACH}?undo=x").status_code == 422
    assert page.get(f"{ATTACH}?undo={uuid.uuid4()}").status_code == 404


def test_the_job_page_says_before_and_after(page, ended, with_valkey):
    with_valkey()
    job = ended(attached("file", config='{"max_size": 70000}', config_id="0" * 16), attached())
    text = text_of(page, f"/jobs/{job.pk}")
    for was, now in (("file 00000000", "valkey c41d77e0"), ("70000", URL)):
        assert f'<span class="del">{was}</span>' in text
        assert f'<span class="add">{now}</span>' in text
    assert "All 2 ranks use valkey c41d77e0 in place of file 00000000" in flat(text)


def test_a_failed_or_mixed_attach_names_each_rank_and_its_reason(page, ended, seen):
    """H02 on the job's page."""
    seen(hierarchical=True)
    reasons = {0: "disk full", 1: "connection refused"}
    refused = ended(None, None, state=JobState.FAILED, ranks=("failed", "failed"), reasons=reasons)
    words = flat(text_of(page, f"/jobs/{refused.pk}"))
    assert "Rank 0: “disk full”. Rank 1: “connection refused”" in words
    assert "Nothing was attached" in words
    kept = ended(attached(), attached(), state=JobState.FAILED, ranks=("failed", "failed"))
    assert "Valkey c41d77e0 stays attached." in flat(text_of(page, f"/jobs/{kept.pk}"))
    policies = (CachePolicies(), CachePolicies(write_policy=WritePolicy.WRITE_BACK))
    same = ended(attached(), attached(), policies=policies)
    words = flat(text_of(page, f"/jobs/{same.pk}"))
    assert "it stays as it was. Its policies are write_back, timeout now." in words
    mixed = ended(
        None,
        attached(),
        state=JobState.PARTIAL,
        ranks=("succeeded", "failed"),
        reasons={1: "connection refused"},
    )
    words = flat(text_of(page, f"/jobs/{mixed.pk}"))
    assert "Rank 0 attached, rank 1 not. Rank 1: “connection refused”" in words
    assert "serves without it" in words


def test_clear_says_that_it_deletes_and_detach_that_it_does_not(page, engine, with_valkey):
    """H19."""
    with_valkey()
    clear = flat(text_of(page, "/engines/local/do/clear_storage_backend"))
    detach = flat(text_of(page, "/engines/local/do/detach_storage_backend"))
    assert "1,800 pages that this engine stored in valkey c41d77e0 , for good" in clear
    assert "Detach would have deleted nothing" in clear
    assert "class D" in clear
    assert "Deletes nothing" in detach
    assert "what is stored in valkey c41d77e0 stays: 1,800 pages" in detach
    assert "class B" in detach
    path = "/engines/local/do/clear_storage_backend"
    assert send(page, path).status_code == 422
    assert send(page, path, confirm="loca").status_code == 422
    assert not Job.objects.exists()
    answer = send(page, path, confirm="local")
    assert answer.status_code == 303
    assert "D, cannot be undone" in flat(text_of(page, answer["Location"]))


def test_a_forced_detach_is_confirmed_by_name(page, engine, with_valkey):
    with_valkey()
    path = "/engines/local/do/detach_storage_backend"
    assert send(page, path, force="on").status_code == 422
    plan = flat(text_of(page, f"{path}/plan?force=on&mode=wait&timeout_s=60"))
    assert "Transfers in flight are given up" in plan
    assert "it waits for nothing" in plan
    answer = send(page, path, force="on", confirm="local", timeout_s="")
    assert answer.status_code == 303
    assert Job.objects.get().params["force"] is True
    Job.objects.all().delete()
    assert send(page, path).status_code == 303  # class B: a button and a reason
    assert Job.objects.get().params["force"] is False


def test_clear_while_nothing_is_attached_says_that_it_would_be_refused(page, engine, seen):
    seen(hierarchical=True)
    text = flat(text_of(page, "/engines/local/do/clear_storage_backend"))
    assert "nothing is attached: what a detached store holds is not the engine’s to delete" in text


def test_policies_begin_as_they_are(page, engine, seen):
    seen(hierarchical=True, policies=CachePolicies(write_policy=WritePolicy.WRITE_BACK))
    path = "/engines/local/do/set_cache_policies"
    text = text_of(page, path)
    assert re.search(r'value="write_back" checked', text)
    assert "as they are: nothing changes" in flat(text)
    answer = send(page, path, write_policy="write_through", prefetch_policy="timeout")
    assert answer.status_code == 303
    plan = flat(text_of(page, f"{path}/plan?write_policy=write_through&prefetch_policy=timeout"))
    assert "write_back → write_through" in plan


def test_fleet_and_engine_show_every_tier(page, engine, with_valkey, seen):
    with_valkey()
    words = flat(text_of(page, "/engines/local"))
    assert "180" not in words
    assert "10 used · 170 evictable · 400 total" in words
    assert "valkey, 23 % hits, 900 pages" in words
    fleet = flat(text_of(page, "/"))
    assert "L2 45 % · L3 valkey, 23 % hits" in fleet
    seen()
    assert "L2" not in flat(text_of(page, "/engines/local"))


def test_the_palette_opens_the_forms(page, engine):
    text = page.get("/palette?q=backend").content.decode()
    assert ATTACH in text
    assert 'data-href="/backends"' in text


def test_a_stored_config_is_never_trusted_to_be_json(page, engine, with_valkey):
    broken = attached(config="{not json", rank_configs={"0": "[]"})
    with_valkey(storage=broken, ranks=[stored_rank(0), stored_rank(1)])
    assert "valkey on local" in flat(text_of(page, "/engines/local/backend"))
    assert text_of(page, f"{ATTACH}?backend=valkey")
