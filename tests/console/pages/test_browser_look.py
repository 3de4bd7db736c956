"""Every page in a real browser, two sizes, two themes: axe, policy, console, sideways scroll."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.console.pages import look_storage
from tests.console.pages.chromium import SIZES, Seat, seat, shot
from tests.console.test_safetensors import whole
from tests.fakes import plain_http
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_weights import checksum_of
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.browser

LONG_REASON = "Clear the prompts of the leaked test set <before> " + "averyverylongword" * 8


@pytest.fixture(scope="module")
def states(stack: Stack) -> Iterator[dict[str, str]]:
    """Engines and jobs in every state that a page has; name → path."""
    names = ("look-idle", "look-waiting", "look-partial", "look-lost", "look-busy")
    more = ("look-new", "look-mixed", "look-staging", "look-paused")
    every = (*names, *more, *look_storage.NAMES)
    engines = {name: FakeEngine(stack.run_dir, name=name).start() for name in every}
    try:
        for engine in engines.values():
            stack.register(engine)
        idle, waiting, partial, lost, busy = (engines[name] for name in names)
        paths = {f"engine {name}": f"/engines/{name}" for name in names}
        jobs = {"succeeded": stack.submit(idle, timeout_s=30)}
        waiting.busy(3)
        jobs["waiting"] = stack.submit(waiting, timeout_s=600)
        stack.until(jobs["waiting"], phase="waiting for idle")
        jobs["blocked"] = stack.ask(waiting, on_conflict="queue", timeout_s=30).json()["id"]
        partial.fail_ranks = {1}
        jobs["partial"] = stack.submit(partial, timeout_s=30)
        busy.busy(2)
        jobs["failed"] = stack.submit(busy, timeout_s=0)
        stack.ended(jobs["failed"])
        jobs["expired"] = stack.submit(busy, timeout_s=0.5)
        stack.ended(jobs["expired"])
        jobs["cancelled"] = stack.submit(busy, timeout_s=60)
        stack.until(jobs["cancelled"], phase="waiting for idle")
        stack.request("POST", f"/jobs/{jobs['cancelled']}/cancel")
        lost.busy(1)
        jobs["unknown"] = stack.submit(lost, timeout_s=60)
        stack.until(jobs["unknown"], phase="waiting for idle")
        lost.stop()
        stack.until(jobs["unknown"], phase="unknown")
        wait_until(lambda: not stack.engine(lost.name)["online"])
        paths |= weights_states(stack, engines)
        paths |= look_storage.storage_states(stack, engines, lost.name)
        stack.sql("UPDATE console_job SET reason = ?", LONG_REASON)
        paths |= {f"job {name}": f"/jobs/{job_id}" for name, job_id in jobs.items()}
        yield {
            **paths,
            "fleet": "/",
            "flush": "/flush?engine=look-busy",
            "flush refused": "/flush?engine=look-waiting",
            "jobs": "/jobs",
            "jobs filtered to nothing": "/jobs?engine=look-idle&state=expired",
            "audit": "/audit",
            "audit of a job": f"/audit?job={jobs['partial']}",
            "audit entry": "/audit/3",
            "audit searched": "/audit?q=action%3Ajob.%20engine%3Alook-idle",
            "audit searched wrongly": "/audit?q=color%3Ared",
            "audit verify": "/audit/verify",
            "audit denied": denied_entry(stack),
            "job retry": f"/jobs/{jobs['partial']}/retry",
            "not found": "/nowhere",
        }
        stack.request("POST", f"/jobs/{jobs['waiting']}/cancel")
    finally:
        for engine in engines.values():
            engine.stop()


@pytest.fixture(scope="module")
def seats(stack: Stack, chromium: Browser) -> list[Seat]:
    """A wide and a narrow tab, logged in."""
    return [seat(chromium, stack.url, size).log_in(stack.password) for size in SIZES]


def denied_entry(stack: Stack) -> str:
    """Somebody without a token asks for a job; the chain is checked after that."""
    plain_http.post(f"{stack.url}/api/v1/jobs", json={})
    with stack.login() as client:
        form = {"csrfmiddlewaretoken": client.csrf}  # type: ignore[attr-defined]
        answer = client.post("/audit/verify", data=form, headers={"Origin": stack.url})
        assert answer.status_code == 303
    ((seq,),) = stack.sql("SELECT max(seq) FROM console_auditentry WHERE result = 'denied'")
    return f"/audit/{seq}"


def weights_states(stack: Stack, engines: dict[str, FakeEngine]) -> dict[str, str]:
    """Weights in every state: swapped, back, partial, staged, refused, paused; each form."""
    new, mixed = engines["look-new"], engines["look-mixed"]
    disk = {"kind": "update_weights_from_disk", "model_path": "/srv/models/v2"}
    tensor = {"kind": "update_weights_from_tensor", "weight_version": "files-3"}
    new.weights.stage_s, new.held = 0.6, 3
    done = stack.submit(new, **disk, timeout_s=30, mode="retract")
    stack.ended(done)
    sha = stack.upload(whole(), "look.safetensors")
    stack.ended(stack.submit(new, **tensor, uploads=[sha]))
    mixed.fail_ranks = {1}
    partial = stack.submit(mixed, **disk, timeout_s=5)
    stack.ended(partial)
    staging = engines["look-staging"]
    refused = stack.submit(staging, **{**disk, "model_path": "/etc"})
    stack.ended(refused)
    staging.weights.stage_s = 3600
    staged = stack.submit(staging, **disk, timeout_s=60, mode="drain")
    stack.until(staged, phase="preparing", state="dispatched")
    paused = stack.submit(engines["look-paused"], kind="pause_generation", pause_mode="in_place")
    stack.ended(paused)
    small = ("pause_generation", "abort_requests", "release_memory", "repair")
    return {
        "weights": "/weights",
        "weights engine": "/engines/look-new/weights",
        "weights quarantined": "/engines/look-mixed/weights",
        "weights lost": "/engines/look-lost/weights",
        "weights new disk": "/weights/new?engine=look-new",
        "weights new tensors": "/weights/new?engine=look-new&source=tensors",
        "weights new distributed": "/weights/new?engine=look-new&source=distributed",
        "weights new refused": "/weights/new?engine=look-mixed",
        "weights return": f"/engines/look-new/weights/return?version=v2@{checksum_of('v2')}",
        "uploads": "/uploads",
        "engine paused": "/engines/look-paused",
        "engine quarantined": "/engines/look-mixed",
        "engine staging": "/engines/look-staging",
        "weights job done": f"/jobs/{done}",
        "weights job partial": f"/jobs/{partial}",
        "weights job staging": f"/jobs/{staged}",
        "weights job refused": f"/jobs/{refused}",
        "pause job": f"/jobs/{paused}",
        **{f"do {kind}": f"/engines/look-idle/do/{kind}" for kind in small},
    }


WEIGHTS_PAGES = [
    *("weights", "weights engine", "weights quarantined", "weights lost"),
    *("weights new disk", "weights new tensors", "weights new distributed"),
    *("weights new refused", "weights return", "uploads"),
    *("engine paused", "engine quarantined", "engine staging"),
    *("weights job done", "weights job partial", "weights job staging", "weights job refused"),
    *("pause job", "do pause_generation", "do abort_requests", "do release_memory", "do repair"),
]

PAGES = [
    *WEIGHTS_PAGES,
    *look_storage.PAGES,
    "fleet",
    *(f"engine look-{name}" for name in ("idle", "waiting", "partial", "lost", "busy")),
    "flush",
    "flush refused",
    "jobs",
    "jobs filtered to nothing",
    *(
        f"job {name}"
        for name in (
            *("succeeded", "waiting", "blocked", "partial", "failed"),
            *("expired", "cancelled", "unknown"),
        )
    ),
    "audit",
    "audit of a job",
    "audit entry",
    "audit searched",
    "audit searched wrongly",
    "audit verify",
    "audit denied",
    "job retry",
    "not found",
]


# Each page at one of the two sizes, the sizes in turns; the other one is a slow test.
LOOKS = [
    pytest.param(name, size, marks=[] if size == number % 2 else [pytest.mark.slow])
    for number, name in enumerate(PAGES)
    for size in range(len(SIZES))
]


@pytest.mark.parametrize(("name", "size"), LOOKS)
def test_a_page_is_clean(states, seats, name, size):
    one = seats[size]
    one.goto(states[name])
    one.page.wait_for_timeout(100)  # the first reading of the socket is shown
    shot(one, name)
    status = {"not found": 404, "audit searched wrongly": 422}.get(name, 200)
    assert one.faults(status=status) == []


def test_what_opens_on_a_page_is_clean(states, seats):
    for one in seats:
        one.goto(states["job waiting"])
        one.page.click("[data-dialog=force]")
        one.page.locator("#force [data-first]:focus").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.locator("[data-dialog=force]:focus").wait_for()
        one.page.click("[data-palette]")
        one.page.locator("#pal-list [aria-selected=true]").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.keyboard.press("?")
        one.page.locator("#keys[open]").wait_for()
        assert one.faults() == []
        one.page.keyboard.press("Escape")
        one.page.click(".user-menu summary")
        assert one.faults() == []


def test_a_refused_form_is_clean_and_keeps_what_was_typed(states, seats):
    for one in seats:
        one.goto(states["flush"])
        one.page.fill("#f-to", "soon")
        one.page.fill("#f-why", "why")
        one.page.fill("#f-name", "look-busy")
        one.page.click("#f-go")
        one.page.locator("#f-to-err").wait_for()
        assert one.page.input_value("#f-to") == "soon"
        assert one.faults(status=422) == []


def test_a_console_without_news_or_engines_is_clean(chromium):
    quiet = Stack()  # web only: no relay has ever seen an engine
    try:
        quiet.up("valkey", "web")
        wait_until(lambda: is_up(quiet))
        for size in SIZES:
            one = seat(chromium, quiet.url, size).log_in(quiet.password)
            for path in ("/engines/local", "/flush", "/jobs", "/"):
                assert one.goto(path).faults() == [], path
            assert "No worker runs" in one.text("#parts")
            shot(one, "fleet with parts down")
        quiet.sql("DELETE FROM console_engine")
        for size in SIZES:
            one = seat(chromium, quiet.url, size).log_in(quiet.password).goto("/")
            assert one.page.locator("#fleet-empty").is_visible()
            assert one.faults() == []
    finally:
        quiet.down()


def is_up(stack: Stack) -> bool:
    try:
        return stack.health()["live"]
    except httpx.HTTPError:
        return False


def test_the_log_in_is_clean_also_when_it_refuses(stack, chromium):
    for size in SIZES:
        one = seat(chromium, stack.url, size).goto("/login", is_live=False)
        assert one.faults() == []
        one.page.fill("#u", "admin")
        one.page.fill("#p", "wrong")
        one.page.click("button[type=submit]")
        one.page.locator("#login-err").wait_for()
        assert one.faults() == []
