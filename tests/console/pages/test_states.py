"""Pages in each state: the fixed words, zeros, what happens next, and nothing unescaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from console.choices import JobPhase, JobState
from console.consumers.topics import topic_read
from console.models import Job, JobRankResult
from console.pages.fragments import register_all
from console.pages.words import SCORE_WORDS
from console.selectors.access import rights_of
from tests.console.pages.conftest import MARKUP

VOID = {"input", "link", "meta", "img", "br"}


class Ids(HTMLParser):
    """Every id of a page, and whether each tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        assert not [name for name, _ in attrs if name == "style" or name.startswith("on")], tag
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def get(page, path: str) -> str:
    answer = page.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    text = answer.content.decode()
    parsed = Ids(text)
    assert not parsed.open
    twice = {one for one in parsed.ids if parsed.ids.count(one) > 1}
    assert not twice, twice
    return text


def flat(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


STATES = [
    (JobState.ACCEPTED, JobPhase.QUEUED, (), None, "queued", "A worker takes it"),
    (JobState.ACCEPTED, JobPhase.BLOCKED, (), None, "blocked", "holds this engine"),
    (
        JobState.DISPATCHED,
        JobPhase.WAITING_FOR_IDLE,
        ("waiting", "parked"),
        None,
        "waiting for idle",
        "the engine gives up",
    ),
    (JobState.DISPATCHED, JobPhase.COMMITTING, ("parked",), None, "committing", "has decided"),
    (JobState.DISPATCHED, JobPhase.CANCELLING, ("waiting",), None, "cancelling", "stop waiting"),
    (
        JobState.RECONCILING,
        JobPhase.UNKNOWN,
        ("unknown",),
        None,
        "unknown",
        "does not send it again",
    ),
    (
        JobState.SUCCEEDED,
        None,
        ("succeeded", "succeeded"),
        None,
        "succeeded",
        "All 2 ranks are flushed",
    ),
    (
        JobState.FAILED,
        None,
        ("not_started",),
        {"code": "not_idle", "message": f"not idle: running=3 {MARKUP}"},
        "failed",
        "Nothing was flushed",
    ),
    (
        JobState.PARTIAL,
        None,
        ("succeeded", "failed"),
        {"code": "partial", "message": "rank 1 died"},
        "partial",
        "Rank 0 flushed, rank 1 not. The engine says “rank 1 died”",
    ),
    (JobState.EXPIRED, None, ("not_started",), None, "expired", "no request was disturbed"),
    (JobState.CANCELLED, None, (), None, "cancelled", "Cancelled before the decision"),
    (JobState.INTERRUPTED, None, ("unknown",), None, "interrupted", "cannot be told any more"),
]


@pytest.mark.parametrize(("state", "phase", "ranks", "error", "word", "says"), STATES)
def test_a_job_says_its_word_and_what_happens_next(
    page, in_state, seen, state, phase, ranks, error, word, says
):
    seen(running=1)
    job = in_state(state, phase=phase, ranks=ranks, error=error, reason=MARKUP)
    text = get(page, f"/jobs/{job.pk}")
    assert f"<span>{word}</span>" in re.search(r'id="job-st".*?</span></span>', text, re.S).group()
    assert says in flat(text)
    assert MARKUP not in text
    is_pending = word in ("queued", "blocked", "waiting for idle", "committing", "cancelling")
    assert ('id="pending"' in text) is is_pending
    assert '<span class="tile' in get(page, "/jobs")


@pytest.mark.parametrize("ranks", [(), ("succeeded", "failed", "parked")])
def test_the_box_score_prints_all_eight_counts_and_sums_to_the_ranks(page, in_state, seen, ranks):
    seen()
    job = in_state(JobState.PARTIAL, ranks=ranks)
    text = get(page, f"/jobs/{job.pk}")
    score = re.search(r'id="score".*?</dl>', text, re.S).group()
    pairs = re.findall(r"</span>([a-z ]+)</dt><dd class=\"(?:z0)?\">(\d+)</dd>", score)
    assert [word for word, _ in pairs] == list(SCORE_WORDS)
    assert sum(int(count) for _, count in pairs) == (len(ranks) or 2)


def test_a_waiting_rank_names_its_places_and_counts(page, in_state, seen):
    seen(running=1)
    job = in_state(JobState.DISPATCHED, phase=JobPhase.WAITING_FOR_IDLE, ranks=("waiting",))
    JobRankResult.objects.filter(job=job).update(
        places={"running": 1, "waiting": 12, "l3_backup": 0}, message=MARKUP
    )
    text = get(page, f"/jobs/{job.pk}")
    assert "<span>running</span><b>1</b>" in text and "<span>waiting</span><b>12</b>" in text
    assert MARKUP not in text


def test_the_timeline_is_the_audit_log_newest_first(page, ask):
    job = ask()
    text = get(page, f"/jobs/{job.pk}")
    assert "asked" in text and 'href="/audit/' in text
    assert get(page, f"/audit?job={job.pk}").count('<tr id="a-') == 1


def test_the_engine_page_says_why_it_is_not_idle_and_how_full_it_is(page, engine, seen):
    seen(running=3)
    text = get(page, "/engines/local")
    assert "<span>busy</span>" in text and "<span>running</span><b>3</b>" in text
    assert "<b>10</b> used · <b>30</b> evictable · <b>100</b> total" in text
    assert "25 %" in text and "v7" in text and "data-at=" in text
    assert 'id="pending"' not in text


def test_a_pending_operation_of_a_job_can_be_steered_from_the_engine_page(page, in_state, seen):
    job = in_state(JobState.DISPATCHED, phase=JobPhase.WAITING_FOR_IDLE, reason=MARKUP)
    seen(running=1, op_id=str(job.pk))
    text = get(page, "/engines/local")
    for act in ("extend", "cancel", "force"):
        assert f'formaction="/jobs/{job.pk}/{act}"' in text
    assert MARKUP not in text
    assert "holds this engine for up to" in text


def test_a_strangers_operation_is_shown_and_cannot_be_touched(page, engine, seen):
    seen(running=1, op_id="http-17")
    text = get(page, "/engines/local")
    assert "asked outside this console" not in text  # the engine named who asked
    assert "Not a job of this console" in text and "formaction" not in text


def test_an_engine_that_is_silent_shows_dashes_and_since_when(page, engine, seen):
    seen(running=3, age_s=9.0)
    text = get(page, "/engines/local")
    assert "<span>unreachable</span>" in text and "No news from local" in text
    assert "not known" in text and "<b>3</b>" not in text
    assert "Off: the engine does not answer" in text
    assert "<span>unreachable</span>" in get(page, "/")


def test_an_engine_that_was_never_seen_has_a_page(page, engine):
    assert "never seen" in get(page, "/engines/local")
    assert "never seen" in get(page, "/")


def test_an_unproven_rank_is_fenced_and_counted(page, engine, seen):
    seen(proven=False)
    assert "<span>fenced</span>" in get(page, "/engines/local")
    assert "Fenced ranks" in get(page, "/")


def test_an_empty_fleet_says_how_to_register_an_engine(page, db):
    assert "register_engine" in get(page, "/")


def test_an_engines_own_words_are_escaped(page, engine, seen):
    seen(model=MARKUP)
    for path in ("/", "/engines/local", "/flush"):
        assert MARKUP not in get(page, path)


def test_an_audit_entry_shows_its_stored_bytes_escaped(page, engine, user, ask):
    job = ask()
    Job.objects.filter(pk=job.pk).update(reason=MARKUP)
    texts = [get(page, f"/audit/{seq}") for seq in range(1, 6)]
    assert all("Stored bytes" in text for text in texts)
    assert any("engine.registered" in text for text in texts)
    assert any(f"/jobs/{job.pk}" in text for text in texts)


def test_every_fragment_has_its_element_in_the_page_it_was_painted_with(
    page, user, engine, in_state, seen
):
    register_all()
    job = in_state(
        JobState.DISPATCHED, phase=JobPhase.WAITING_FOR_IDLE, ranks=("waiting", "parked")
    )
    seen(running=1, op_id=str(job.pk))
    for topic, *paths in (
        ("fleet", "/", "/weights", "/backends"),
        ("engine:local", "/engines/local", "/engines/local/weights", "/engines/local/backend"),
        (f"job:{job.pk}", f"/jobs/{job.pk}"),
        ("jobs", "/jobs"),
    ):
        ids = {one for path in paths for one in Ids(get(page, path)).ids}
        sent = dict(topic_read(topic, rights_of(user)).fragments)
        assert sent.keys() <= ids, (topic, sent.keys() - ids)
