"""A real Chromium for tests: logged-in pages that record every complaint, and axe."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.fakes.waiting import PATIENCE_S

AXE = (Path(__file__).parents[2] / "vendor" / "axe.min.js").read_text()
# The colours of the dark theme; all else is the same page.
RULES = {
    "light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
    "dark": ["color-contrast", "link-in-text-block"],
}
SIZES = {"wide": (1280, 720), "narrow": (390, 844)}
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_WATCH = (
    "addEventListener('securitypolicyviolation', e =>"
    " (window.__csp = window.__csp || []).push(e.violatedDirective + ' ' + e.blockedURI))"
)
_WIDE_TABLES = """[...document.querySelectorAll('.stackable')]
  .filter(t => t.scrollWidth > t.clientWidth + 1)
  .map(t => 'table wider than its card: ' + t.textContent.trim().slice(0, 60))"""
_RUN = """rules => axe.run(document, {runOnly: rules}).then(r => r.violations.flatMap(v =>
  v.nodes.map(n => v.id + ': ' + n.html.slice(0, 160) + ' :: '
    + ((n.any[0] || n.all[0] || n.none[0] || {}).message || ''))))"""


def _program() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("QUIESCE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """One Chromium. Its driver keeps an event loop, so leave before an async test runs."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=_program(), args=FLAGS)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a file of tests; their conftest takes it up."""
    with browser() as made:
        yield made


@dataclass
class Seat:
    """One tab at one size, and what it complained of since `calm` was last called."""

    page: Page
    url: str
    size: tuple[int, int]
    complaints: list[str] = field(default_factory=list)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def watch(self) -> Seat:
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"PAGEERROR {error}"))
        self.page.add_init_script(_WATCH)
        return self

    def goto(self, path: str, *, is_live: bool = True) -> Seat:
        """Open a page and wait until its socket is live and its fonts are there."""
        self.page.goto(self.url + path)
        if is_live:
            self.page.locator("#live[data-state=live]").wait_for()
        self.page.evaluate("document.fonts.ready")
        return self

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).inner_text().split())

    def log_in(self, password: str, user: str = "admin") -> Seat:
        self.page.goto(f"{self.url}/login")
        self.page.fill("#u", user)
        self.page.fill("#p", password)
        self.page.click("button[type=submit]")
        self.page.locator("#live").wait_for()
        return self

    def faults(self, *, status: int = 200) -> list[str]:
        """axe in both themes, sideways scroll, CSP and console complaints."""
        found: list[str] = []
        self.page.evaluate(AXE)
        was = self.page.evaluate("document.documentElement.dataset.bsTheme")
        for theme, rules in RULES.items():
            self.page.evaluate("t => { document.documentElement.dataset.bsTheme = t }", theme)
            found += [f"{theme} {one}" for one in self.page.evaluate(_RUN, rules)]
        self.page.evaluate("t => { document.documentElement.dataset.bsTheme = t }", was)
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        if wide > self.size[0]:
            found.append(f"scrolls sideways: {wide} of {self.size[0]}")
        found += self.page.evaluate(_WIDE_TABLES)
        found += self.page.evaluate("window.__csp || []")
        expected = f"status of {status}"
        complaints = _but_replaced_plans(self.complaints)
        found += [one for one in complaints if status == 200 or expected not in one]
        self.complaints.clear()
        return found


def _but_replaced_plans(complaints: list[str]) -> list[str]:
    """htmx calls it an error when a newer request takes the place of one that is on its way."""
    kept: list[str] = []
    for one in complaints:
        if one.startswith("htmx:sendAbort") and kept and kept[-1].startswith("htmx:afterRequest"):
            kept.pop()
        else:
            kept.append(one)
    return kept


def seat(made: Browser, url: str, size: str = "wide", theme: str = "light") -> Seat:
    """A tab of its own, not logged in."""
    width, height = SIZES[size]
    context: BrowserContext = made.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        has_touch=width < 500,
        is_mobile=width < 500,
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    return Seat(context.new_page(), url, (width, height)).watch()


def shot(one: Seat, name: str) -> None:
    """Pictures of the page in both themes, for people, in the folder QUIESCE_SCREENSHOTS."""
    folder = os.environ.get("QUIESCE_SCREENSHOTS", "")
    if "/" not in folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        one.page.evaluate("t => { document.documentElement.dataset.bsTheme = t }", theme)
        path = Path(folder) / f"{name.replace(' ', '-')}-{theme}-{one.size[0]}.png"
        one.page.screenshot(path=path, full_page=True)
    one.page.evaluate("document.documentElement.dataset.bsTheme = 'light'")


def until(check: Callable[[], bool], page: Page) -> None:
    """Wait while the page goes on living (its policy forbids Playwright's own polling)."""
    gives_up_at = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < gives_up_at, f"not within {PATIENCE_S} s"
        page.wait_for_timeout(50)
