"""The story of a flush, in the browser, against a real model: press a button, see the engine obey.

QUIESCE_SCREENSHOTS=1 also writes docs/screenshots/.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.pages.chromium import SIZES, Seat, seat, until
from tests.fakes import plain_http
from tests.fakes.supervised import Supervised, supervised
from tests.fakes.waiting import PATIENCE_S

pytestmark = [pytest.mark.system, pytest.mark.browser]

SHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
WITH_SHOTS = os.environ.get("QUIESCE_SCREENSHOTS") == "1"
NUM_TOKENS = 900 if WITH_SHOTS else 350


def prompt() -> str:
    """About 300 tokens that no other test sends."""
    story = "The harbour was quiet, and the pilot counted the ships again. " * 22
    return f"{uuid.uuid4()}: {story}"


@pytest.fixture(scope="module")
def quiesce(smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    with supervised(smollm2_dir, cpu_ext_dir, "--dp-size", "2") as made:
        yield made


@pytest.fixture(scope="module")
def tab(quiesce: Supervised, chromium: Browser) -> Seat:
    return seat(chromium, quiesce.base).log_in(quiesce.password)


class Generation(threading.Thread):
    """A long request straight to the engine; `ended_at` is when its last byte came."""

    def __init__(self, quiesce: Supervised) -> None:
        super().__init__(daemon=True)
        self._url = f"{quiesce.engine_base}/generate"
        self.status = 0
        self.num_tokens = 0

    def run(self) -> None:
        body = {
            "text": "Tell the whole story of the lighthouse keeper, slowly.",
            "sampling_params": {
                "max_new_tokens": NUM_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        answer = plain_http.post(self._url, json=body)
        self.status = answer.status_code
        self.num_tokens = answer.json()["meta_info"]["completion_tokens"]


def try_it(tab: Seat, text: str) -> dict[str, int]:
    """Send the prompt through the page; its usage."""
    page = tab.page
    tab.goto("/engines/local")
    page.fill("#try-p", text)
    page.fill("#try-n", "8")
    page.click("#try [type=submit]")
    page.locator("#try[data-ended='1']").wait_for()
    assert page.locator("#try-err").is_hidden(), tab.text("#try-err")
    assert len(tab.text("#try-out")) > 3
    names = ("prompt_tokens", "cached_tokens", "dp_rank")
    return {name: int(tab.text(f"[data-use={name}]").split()[0]) for name in names}


def shoot(
    chromium: Browser, quiesce: Supervised, name: str, path: str, sizes: tuple[str, ...] = (*SIZES,)
) -> None:
    for theme in ("light", "dark"):
        for size in sizes:
            width, _ = SIZES[size]
            one = seat(chromium, quiesce.base, size, theme).log_in(quiesce.password).goto(path)
            one.page.wait_for_timeout(400)
            one.page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png")
            one.page.context.close()


def test_a_flush_waits_for_idle_counts_down_and_succeeds(chromium, tab, quiesce):
    page = tab.page
    text = prompt()
    cold, warm = try_it(tab, text), try_it(tab, text)
    assert cold["cached_tokens"] < 32  # the chat template is the same for all
    assert warm["cached_tokens"] >= 256
    assert warm["dp_rank"] == cold["dp_rank"]

    generation = Generation(quiesce)
    generation.start()
    until(lambda: "running 1" in tab.text("#ranktable"), page)

    page.click("text=Flush…")
    page.wait_for_url("**/flush?engine=local")
    page.click("[data-to='300']")
    page.fill("#f-why", "Clear prompts of the leaked test set")
    page.fill("#f-name", "local")
    page.click("#f-go")
    page.wait_for_url("**/jobs/*")
    page.locator("#job-st:has-text('waiting for idle')").wait_for()
    job_id = page.url.rpartition("/")[2]
    assert "running 1" in tab.text("#blockers")
    first = tab.text("#left-s")
    until(lambda: tab.text("#left-s") != first, page)
    if WITH_SHOTS:
        shoot(chromium, quiesce, "job-waiting", f"/jobs/{job_id}")
        shoot(chromium, quiesce, "engine", "/engines/local", ("wide",))
    assert generation.is_alive(), "the flush must have waited"

    until(lambda: tab.text("#job-st") == "succeeded", page)
    generation.join(PATIENCE_S)
    assert (generation.status, generation.num_tokens) == (200, NUM_TOKENS)
    job = quiesce.api("GET", f"/jobs/{job_id}").json()
    assert [rank["state"] for rank in job["ranks"]] == ["succeeded", "succeeded"]
    until(lambda: tab.text("#sc-0") == "ok 2", page)

    assert try_it(tab, text)["cached_tokens"] == 0
    assert tab.faults() == []


def test_stop_ends_the_engines_work_and_a_refusal_is_the_engines_own(tab, quiesce):
    page = tab.page
    tab.goto("/engines/local")
    page.fill("#try-p", f"{uuid.uuid4()}: tell a long story")
    page.fill("#try-n", "256")
    page.click("#try [type=submit]")
    until(lambda: len(tab.text("#try-out")) > 20, page)
    page.click("#try-stop")
    page.locator("#try[data-ended='1']").wait_for()
    until(lambda: quiesce.api("GET", "/engines/local").json()["idle"], page)
    page.fill("#try-p", "☃" * 9000)  # some tokens each: more than the context holds
    page.click("#try [type=submit]")
    page.locator("#try[data-ended='2']").wait_for()
    assert "The engine says:" in tab.text("#try-err")
    assert "tokens" in tab.text("#try-err")


def test_an_engine_that_is_killed_is_seen_and_comes_back(tab, quiesce):
    tab.goto("/engines/local")
    quiesce.child("engine serve").kill()
    until(lambda: tab.text("#eng-st") == "unreachable", tab.page)
    assert quiesce.api("GET", "/engines/local").json()["online"] is False
    assert "No news from local" in tab.text("#eng-banner")
    assert tab.page.get_attribute("[data-gate=why-flush]", "aria-disabled") == "true"
    until(lambda: tab.text("#eng-st") == "idle", tab.page)
    assert quiesce.api("GET", "/engines/local").json()["online"] is True
    assert try_it(tab, prompt())["cached_tokens"] == 0
