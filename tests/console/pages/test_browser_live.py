"""What a page does while things change: updates, focus, a dropped socket, a silent engine, keys."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.console.pages.chromium import Seat, seat, until
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def engine(stack: Stack) -> Iterator[FakeEngine]:
    with FakeEngine(stack.run_dir) as made:
        stack.register(made)
        yield made


def focused(tab: Seat) -> str:
    found: str = tab.page.evaluate("document.activeElement.id || document.activeElement.name || ''")
    return found


def seconds(text: str) -> int:
    """Of minutes:seconds. A busy machine's engine hears of a deadline a little later."""
    minutes, _, rest = text.partition(":")
    return 60 * int(minutes) + int(rest)


def test_a_flush_from_the_form_to_its_end_without_a_reload(tab, engine):  # J07
    engine.busy(3)
    tab.goto(f"/flush?engine={engine.name}")
    page = tab.page
    page.fill("#f-why", "leaked <prompts>")
    assert tab.text("#f-state") == "Type the engine’s name to enable the flush."
    page.click("#f-go", force=True)  # refused: says why, sends nothing
    page.fill("#f-name", engine.name)
    page.press("#f-name", "Enter")
    assert page.url.endswith(f"/flush?engine={engine.name}")
    page.click("[data-to='300']")
    page.dblclick("#f-go")
    page.wait_for_url("**/jobs/*")
    page.locator("#job-st:has-text('waiting for idle')").wait_for()
    assert "running 3" in tab.text("#blockers")
    first = tab.text("#left-s")
    until(lambda: tab.text("#left-s") != first, page)
    assert len(engine.submits()) == 1
    page.evaluate("window.stayed = true")
    page.focus("[name=by_s]")
    page.keyboard.press("Enter")
    until(lambda: seconds(tab.text("#left-of")) > 330, page)  # a minute more than the 300
    assert seconds(tab.text("#left-of")) <= 360
    assert focused(tab) == "by_s"
    engine.idle()
    until(lambda: tab.text("#job-st") == "succeeded", page)
    until(lambda: tab.text("#sc-0") == "ok 2", page)
    assert page.locator("#pending").count() == 0
    assert focused(tab) == "h-page"  # the button that had it is gone
    assert page.evaluate("window.stayed")
    assert page.locator("#tl li").count() >= 4
    assert tab.text("#alarm") == ""


def test_cancel_and_force_are_asked_without_leaving_the_engines_page(tab, stack, engine):
    engine.busy(1)
    stack.submit(engine, timeout_s=300)
    tab.goto(f"/engines/{engine.name}")
    page = tab.page
    page.locator("#pending").wait_for()
    until(lambda: page.get_attribute("[data-gate=why-flush]", "aria-disabled") == "true", page)
    page.click("[data-dialog=force]")
    page.click("#force button:has-text('Force drain')")
    page.locator("h2:has-text('mode drain')").wait_for()
    page.click("#pending button:has-text('Cancel')")
    until(lambda: page.locator("#pending").count() == 0, page)
    until(lambda: "cancelled" in tab.text("#recent_rows"), page)
    until(lambda: page.get_attribute("[data-gate=why-flush]", "aria-disabled") is None, page)


def test_a_new_job_and_its_end_appear_in_the_lists(tab, stack, engine):
    tab.goto("/jobs")
    job_id = stack.submit(engine, timeout_s=300)
    row = tab.page.locator(f"#job-{job_id}")
    row.wait_for()
    until(lambda: "succeeded" in row.inner_text(), tab.page)


def test_numbers_change_in_place_and_a_focused_row_keeps_its_focus(tab, engine):
    tab.goto(f"/?q={engine.name}")
    tab.page.focus(f"#e-{engine.name} a.main >> nth=0")
    engine.busy(5)
    until(lambda: tab.text(f"#e-{engine.name}-run") == "10", tab.page)
    assert tab.page.evaluate("document.activeElement.textContent") == engine.name
    engine.idle()
    until(lambda: tab.text(f"#e-{engine.name}-run") == "0", tab.page)


def test_an_engine_that_goes_silent_is_seen_to_be_unreachable(tab, engine):
    engine.busy(2)
    tab.goto(f"/engines/{engine.name}")
    until(lambda: tab.text("#eng-st") == "busy", tab.page)
    engine.stop()
    until(lambda: tab.text("#eng-st") == "unreachable", tab.page)
    page = tab.page
    assert "No news from" in tab.text("#eng-banner")
    assert tab.text("#r0-run") == "–"
    until(lambda: "is-stale" in (page.get_attribute("#r0-run", "class") or ""), page)
    assert "is-stale" in (page.get_attribute("#r0-w", "class") or "")
    assert tab.text("#r0-w").startswith("v1")
    assert "unreachable" in tab.text("#alarm")
    page.click("[data-gate=why-flush]", force=True)
    assert page.url.endswith(f"/engines/{engine.name}")
    engine.start()
    until(lambda: tab.text("#eng-st") == "busy", page)
    assert tab.text("#eng-banner") == ""
    assert "is-stale" not in (page.get_attribute("#r0-run", "class") or "")


def test_a_console_that_hangs_is_offline_and_heals(tab, stack, engine):  # L04
    engine.busy(1)
    job_id = stack.submit(engine, timeout_s=300)
    tab.goto(f"/jobs/{job_id}")
    page = tab.page
    page.locator("#job-st:has-text('waiting for idle')").wait_for()
    web = stack.parts["web"]
    web.send_signal(signal.SIGSTOP)
    try:
        until(lambda: tab.text("#live").startswith("Offline since"), page)
        assert page.locator("#blind").is_visible()
        assert "Offline since" in tab.text("#alarm")
        assert page.get_attribute("[name=by_s]", "aria-disabled") == "true"
        assert page.get_attribute("[name=by_s]", "aria-describedby") == "why-blind"
        page.click("[name=by_s]", force=True)
        assert "is-off" in (page.get_attribute("#pending", "class") or "")
        engine.idle()  # what happens meanwhile must not be lost
        wait_until(lambda: engine.journal.effects == [job_id])
    finally:
        web.send_signal(signal.SIGCONT)
    until(lambda: tab.text("#live") == "Live", page)
    until(lambda: tab.text("#job-st") == "succeeded", page)
    assert page.locator("#blind").is_hidden()


def test_a_part_that_is_down_is_named_while_it_is(tab, stack, engine):
    tab.goto(f"/engines/{engine.name}")
    until(lambda: tab.text("#eng-st") == "idle", tab.page)
    assert tab.text("#parts") == ""
    stack.kill("reconcile")
    until(lambda: "reconciler does not run" in tab.text("#parts"), tab.page)
    stack.start("reconcile")
    until(lambda: tab.text("#parts") == "", tab.page)


def test_a_console_that_is_started_anew_is_found_again(tab, stack, engine):
    tab.goto(f"/engines/{engine.name}")
    stack.kill("web")
    until(lambda: tab.text("#live").startswith("Offline since"), tab.page)
    until(lambda: tab.text("#r0-run") == "–", tab.page)
    stack.start("web")
    until(lambda: tab.text("#live") == "Live", tab.page)
    until(lambda: tab.text("#r0-run") == "0", tab.page)


def test_a_log_out_elsewhere_ends_the_page_and_says_so(chromium, stack):
    one = seat(chromium, stack.url).log_in(stack.password)
    other = one.page.context.new_page()
    other.goto(f"{stack.url}/jobs")
    other.click(".user-menu summary")
    other.click("text=Sign out")
    other.locator("h1:has-text('Sign in')").wait_for()
    until(lambda: "log-in has ended" in one.text("#blind"), one.page)
    one.page.click("#blind-now")
    one.page.locator("h1:has-text('Sign in')").wait_for()


def test_keys_and_palette_go_places_and_change_nothing(tab, engine):
    tab.goto("/")
    page = tab.page
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    tab.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type(f"flush {engine.name}")
    until(lambda: page.locator("#pal-list [role=option]").count() == 1, page)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/flush?engine={engine.name}")
    tab.goto("/")
    page.keyboard.press("/")
    page.keyboard.type(engine.name)
    page.keyboard.press("Enter")  # it may be on another page of the list
    page.wait_for_url(f"**/?q={engine.name}")
    until(lambda: page.locator("#engines tbody tr:visible").count() == 1, page)
    assert engine.submits() == []


def test_a_filter_holds_for_engines_that_come_later(tab, stack, engine):
    # Sorted before all others, so on this page of the list.
    with FakeEngine(stack.run_dir, name=f"a-{uuid.uuid4().hex[:6]}") as first:
        stack.register(first)
        tab.goto("/")
        page, shown = tab.page, tab.page.locator("#engines tbody tr:visible")
        page.keyboard.press("/")
        page.keyboard.type(first.name)
        until(lambda: shown.count() == 1, page)
        with FakeEngine(stack.run_dir, name=f"a-{uuid.uuid4().hex[:6]}") as later:
            stack.register(later)
            page.locator(f"#engines tr:has-text('{later.name}')").wait_for(state="attached")
            page.wait_for_timeout(200)
            assert shown.count() == 1
        assert not page.is_visible("#none-typed")
        page.keyboard.type("-nothing")
        page.locator("#none-typed").wait_for()
        assert shown.count() == 0


def test_the_plan_follows_the_form_without_moving_focus(tab, engine):
    engine.busy(2)
    tab.goto(f"/flush?engine={engine.name}")
    page = tab.page
    page.focus("[name=mode][value=wait]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    until(lambda: "4 end" in tab.text("#plan"), page)
    assert page.evaluate("document.activeElement.value") == "abort"
    assert '"mode":"abort"' in tab.text("#code")


def test_the_theme_and_the_zone_are_kept(chromium, stack):
    one = seat(chromium, stack.url, theme="dark").log_in(stack.password)
    theme = "document.documentElement.dataset.bsTheme"
    assert one.page.evaluate(theme) == "dark"
    one.page.click("[data-theme-toggle]")
    one.goto("/audit")
    assert one.page.evaluate(theme) == "light"
    assert one.faults() == []


def test_try_it_tells_what_the_engine_said(tab, engine):
    tab.goto(f"/engines/{engine.name}")
    page = tab.page
    page.fill("#try-p", " ")
    page.click("#try [type=submit]")
    page.locator("#try-p-err:has-text('Write a prompt')").wait_for()
    assert page.get_attribute("#try-p", "aria-invalid") == "true"
    page.fill("#try-p", "hello")
    page.click("#try [type=submit]")  # the fake engine has no HTTP port
    page.locator("#try-err:has-text('The engine says')").wait_for()


def test_try_it_shows_no_numbers_of_an_earlier_answer(tab, engine):
    tab.goto(f"/engines/{engine.name}")
    page, held = tab.page, []
    usage = '{"prompt_tokens":7,"cached_tokens":0,"completion_tokens":3,"ttft_ms":9,"dp_rank":0}'
    page.route(
        "**/try",
        lambda route: route.fulfill(
            content_type="application/x-ndjson",
            body=f'{{"text":"yes","usage":{usage}}}\n{{"done":true}}\n',
        ),
    )
    page.fill("#try-p", "hello")
    page.click("#try [type=submit]")
    page.locator("#try[data-ended='1']").wait_for()
    assert "prompt_tokens 7" in page.inner_text("#try-use")
    page.unroute("**/try")
    page.route("**/try", lambda route: held.append(route))  # never answered
    page.click("#try [type=submit]")
    page.locator("#try-stop").wait_for()
    assert page.inner_text("#try-use b").strip() == "–"
    assert "7" not in page.inner_text("#try-use")
    page.click("#try-stop")
    page.unroute("**/try")
