"""The flush form: each bad field says so under itself, a good form makes exactly one job."""

from __future__ import annotations

import re
import uuid

import pytest

from console.choices import Via
from console.models import Job
from tests.console.pages.conftest import MARKUP

GOOD = {
    "engine": "local",
    "mode": "wait",
    "timeout_s": "30",
    "empty_cache": "on",
    "reason": "leaked prompts",
    "confirm": "local",
}


def send(page, **changes):
    return page.post("/flush", {**GOOD, "key": str(uuid.uuid4()), **changes})


def test_the_form_names_the_effect_and_asks_for_the_engines_name(page, engine, seen):
    seen(running=3)
    text = page.get("/flush?engine=local").content.decode()
    assert "Flush 2 ranks" in text
    assert "Type <code" in text and "cannot be undone" in text
    assert "<b>960</b> cached on the device" in text
    assert "running</span><b>3</b>" in text


def test_a_good_form_makes_a_job_in_the_persons_name(page, engine, user):
    answer = send(page, reason=MARKUP)
    job = Job.objects.get()
    assert (answer.status_code, answer["Location"]) == (303, f"/jobs/{job.pk}")
    assert (job.params, job.mode) == (
        {"timeout_s": 30.0, "mode": "wait", "empty_cache": True},
        "wait",
    )
    assert (job.reason, job.requested_by, job.via) == (MARKUP, user, Via.UI)
    assert MARKUP not in page.get(answer["Location"]).content.decode()
    assert "&lt;img src=x" in page.get(answer["Location"]).content.decode()


def test_a_double_click_makes_one_job(page, engine):  # J07
    key = str(uuid.uuid4())
    first, second = send(page, key=key), send(page, key=key)
    assert first["Location"] == second["Location"]
    assert Job.objects.count() == 1


def test_a_used_form_with_other_words_makes_no_second_job_and_links_the_first(page, engine):
    key = str(uuid.uuid4())
    send(page, key=key)
    answer = send(page, key=key, reason="another")
    assert answer.status_code == 422
    assert f"/jobs/{Job.objects.get().pk}" in answer.content.decode()


def test_a_second_flush_is_refused_and_names_the_holder(page, engine):
    send(page)
    answer = send(page)
    assert answer.status_code == 409
    text = answer.content.decode()
    assert "Refused, nothing was sent" in text
    assert f"/jobs/{Job.objects.get().pk}" in text


@pytest.mark.parametrize(
    ("field", "value", "box", "says"),
    [
        ("timeout_s", "NaN", "f-to", "0 to 86,400"),
        ("timeout_s", "Infinity", "f-to", "0 to 86,400"),
        ("timeout_s", "-1", "f-to", "0 to 86,400"),
        ("timeout_s", "x", "f-to", "0 to 86,400"),
        ("timeout_s", "", "f-to", "0 to 86,400"),
        ("timeout_s", "86401", "f-to", "0 to 86,400"),
        ("reason", "   ", "f-why", "Write a reason"),
        ("reason", "r" * 501, "f-why", "at most 500"),
        ("reason", "nul\x00", "f-why", "U+0000"),
        ("reason", "a\u202elive", "f-why", "U+202E"),
        ("confirm", "Local", "f-name", "Type local to confirm"),
        ("confirm", "", "f-name", "Type local to confirm"),
    ],
)
def test_a_bad_field_is_named_under_itself_and_nothing_is_asked(
    page, engine, field, value, box, says
):
    answer = send(page, **{field: value})
    assert answer.status_code == 422
    text = answer.content.decode()
    tag = re.search(rf'<input[^>]*id="{box}"[^>]*>', text)
    assert tag and 'aria-invalid="true"' in tag.group()
    assert f'aria-describedby="{box}-err' in tag.group()
    error = re.search(rf'<p class="err" id="{box}-err">([^<]*)</p>', text)
    assert error and says in error.group(1)
    assert not Job.objects.exists()


def test_zero_seconds_with_drain_is_a_bad_deadline(page, engine):
    answer = send(page, mode="drain", timeout_s="0")
    assert answer.status_code == 422
    assert "greater than 0 with mode drain" in answer.content.decode()


def test_an_unknown_mode_is_refused(page, engine):
    answer = send(page, mode="soon")
    assert answer.status_code == 422
    assert "Choose one of" in answer.content.decode()


def test_an_unknown_engine_is_a_404_and_what_was_typed_is_escaped(page, engine):
    assert send(page, engine="nobody", confirm="nobody").status_code == 404
    assert page.get("/flush?engine=nobody").status_code == 404
    text = send(page, confirm=MARKUP, reason=MARKUP).content.decode()
    assert MARKUP not in text


def test_what_was_typed_survives_a_refusal_with_the_same_key(page, engine):
    key = str(uuid.uuid4())
    text = send(page, key=key, timeout_s="x", mode="drain", reason="keep me").content.decode()
    assert f'value="{key}"' in text
    assert 'value="keep me"' in text
    assert re.search(r'value="drain" checked', text)


def test_the_plan_is_a_partial_that_follows_the_mode(page, engine, seen):
    seen(running=2)
    text = page.get("/flush/plan?engine=local&mode=abort").content.decode()
    assert text.lstrip().startswith("<dl") and "<b>2 end</b>" in text
    assert page.get("/flush/plan?engine=nobody&mode=wait").status_code == 404


def test_without_engines_the_form_sends_to_the_fleet(page, db):
    assert page.get("/flush")["Location"] == "/"
