"""A reason reads in the audit log as it was written."""

from __future__ import annotations

import pytest

from console.actors import Actor
from console.exceptions import Invalid
from console.services.job_control import job_cancel
from console.services.reasons import reason_read
from console.services.users import user_create

SYSTEM = Actor.system("test")


@pytest.mark.parametrize(
    "text",
    ["", "new weights", "a\nb\tc", "\u0645\u0631\u062d\u0628\u0627", "\U0001f469\u200d\U0001f467"],
)
def test_text_of_any_script_is_taken_as_it_is(text):
    assert reason_read(f" {text} ") == text


@pytest.mark.parametrize("hidden", ["\x00", "\x07", "\x1b[31m", "\x9b", "\u202e", "\u2066"])
def test_what_would_show_other_words_than_are_stored_is_refused_by_name(hidden):
    with pytest.raises(Invalid, match=rf"U\+{ord(hidden[0]):04X}"):
        reason_read(f"a{hidden}b")


@pytest.mark.django_db
def test_a_cancel_checks_its_reason_too(ask, ana):
    job = ask()
    with pytest.raises(Invalid, match=r"U\+202E"):
        job_cancel(job_id=job.pk, actor=ana, reason="a\u202eb")


@pytest.mark.django_db
def test_so_does_the_name_of_somebody_new():
    with pytest.raises(Invalid, match=r"full name holds .* U\+0000"):
        user_create(username="bo", full_name="B\x00o", is_service=True, actor=SYSTEM)
    assert user_create(username="bo", full_name=" Bo ", is_service=True, actor=SYSTEM)
