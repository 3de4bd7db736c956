"""The story of a storage backend, in the browser, on a real model and two ranks: attach, hit what
was stored, detach and find it again, change weights and come back, switch and undo, clear, give up.

QUIESCE_SCREENSHOTS=1 also writes docs/screenshots/.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.console.pages.chromium import SIZES, Seat, seat, until
from tests.fakes.supervised import Supervised, supervised
from tests.fakes.waiting import wait_until
from tests.system.storage_stack import (
    ATTACH,
    SMALL,
    Rereads,
    Store,
    done,
    flush,
    from_storage,
    generate,
    make_bare,
    segments,
    until_idle,
    valkey_store,
    view,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

SHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
WITH_SHOTS = os.environ.get("QUIESCE_SCREENSHOTS") == "1"
BACKEND = "/engines/local/backend"
NUM_TOKENS = 300


def perturb(folder: Path) -> None:
    """Zero one layer's projection, in the file itself: other tokens, same shapes."""
    (path,) = folder.glob("*.safetensors")
    with path.open("r+b") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        name = next(one for one in sorted(header) if one.endswith("layers.0.mlp.down_proj.weight"))
        begin, end = header[name]["data_offsets"]
        file.seek(8 + header_bytes + begin)
        file.write(bytes(end - begin))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """A root with the model, and other weights of the same shape."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(smollm2_dir, root / "smollm2")
    shutil.copytree(smollm2_dir, root / "smollm2-other")
    perturb(root / "smollm2-other")
    return root


@pytest.fixture(scope="module")
def quiesce(models: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    with supervised(models / "smollm2", cpu_ext_dir, "--dp-size", "2") as made:
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with valkey_store(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="module")
def tab(quiesce: Supervised, chromium: Browser) -> Seat:
    return seat(chromium, quiesce.base).log_in(quiesce.password)


@pytest.fixture
def bare(quiesce: Supervised) -> None:
    """Nothing is attached, and nothing stored."""
    make_bare(quiesce)


@pytest.fixture
def first(quiesce: Supervised, bare: None) -> dict[str, Any]:
    """The answer to the prompt, computed and stored in an attached `file`."""
    done(quiesce, ATTACH, backend="file", config=SMALL)
    made = generate(quiesce)
    until_idle(quiesce)
    return made


class Load:
    """Requests on both ranks, from start to end of a `with`; each must end whole."""

    def __init__(self, quiesce: Supervised) -> None:
        self._quiesce = quiesce
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(4)]
        self._replies: list[dict[str, Any]] = []

    def _run(self, number: int) -> None:
        ids = [number + 5, *range(200, 500)]
        reply = generate(self._quiesce, ids, NUM_TOKENS, routed_dp_rank=number % 2)
        self._replies.append(reply)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: all(r["running"] for r in view(self._quiesce)["ranks"]))
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()
        ends = [reply["meta_info"]["finish_reason"]["type"] for reply in self._replies]
        assert len(ends) == 4 and set(ends) <= {"length", "stop"}


def confirm(tab: Seat, form: str, why: str, *, name: str = "") -> str:
    """Write the reason, press the button, see the job succeed; its id."""
    page = tab.page
    page.fill(f"#{form}-why", why)
    if name:
        assert page.get_attribute(f"#{form}-go", "aria-disabled") == "true"
        page.fill(f"#{form}-name", name)
    until(lambda: page.get_attribute(f"#{form}-go", "aria-disabled") is None, page)
    page.click(f"#{form}-go")
    page.wait_for_url(re.compile("/jobs/"))
    until(lambda: tab.text("#job-st") == "succeeded", page)
    return page.url.rpartition("/")[2]


def attach_file(tab: Seat) -> None:
    """From the list of backends: the menu, the form, its plan, the button."""
    page = tab.page
    tab.goto("/backends")
    page.click("text=Attach or switch")
    page.click(f".menu-box a[href='{BACKEND}/attach']")
    page.wait_for_url(re.compile("/backend/attach"))
    page.check("[name=backend][value=file]")
    page.click("details.fold summary")
    page.fill("#s-prefetch_threshold", "16")
    until(lambda: '"prefetch_threshold": 16' in tab.text("#side"), page)
    assert "nothing is attached now" in tab.text("#plan")
    page.evaluate("scrollTo(0, 0)")  # else the header lies over fields, which are then small
    assert tab.faults() == []
    confirm(tab, "a", "Keep what the prompts share")
    assert "All 2 ranks write to file" in tab.text("#next")


def undo(tab: Seat) -> None:
    """The button of a job's page, its form, the job."""
    tab.page.click("#undo a")
    tab.page.wait_for_url(re.compile("undo="))
    assert tab.page.locator("[type=password]").count() == 0
    confirm(tab, "a", "It was right before")


def again(quiesce: Supervised) -> dict[str, Any]:
    """The prompt once more, with nothing in L1 and L2."""
    flush(quiesce)
    return generate(quiesce)


def shoot(
    chromium: Browser,
    quiesce: Supervised,
    name: str,
    path: str,
    sizes: tuple[str, ...] = (*SIZES,),
    wait_ms: int = 400,
) -> None:
    for theme in ("light", "dark"):
        for size in sizes:
            width, _ = SIZES[size]
            one = seat(chromium, quiesce.base, size, theme).log_in(quiesce.password).goto(path)
            one.page.wait_for_timeout(wait_ms)
            one.page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png")
            one.page.context.close()


def test_what_is_stored_is_hit_whatever_happens_to_the_tiers_above(
    tab: Seat, quiesce: Supervised, bare: None
) -> None:
    page = tab.page
    attach_file(tab)
    first = generate(quiesce)
    assert from_storage(first) == 0
    tab.goto(BACKEND)
    until(lambda: "37 pages" in tab.text("#ranktable"), page)
    hit = again(quiesce)
    assert from_storage(hit) >= 500 and hit["text"] == first["text"]
    until(lambda: re.search(r"\d+ %", tab.text("#ranktable")) is not None, page)
    assert "2 of 2 as desired" in tab.text("#be-want") and "drift" not in tab.text("main")
    assert tab.faults() == []
    tab.goto("/")
    assert "L3 file" in tab.text("main")

    until_idle(quiesce)
    files = segments(quiesce)
    tab.goto("/engines/local/do/detach_storage_backend")
    assert "Deletes nothing" in tab.text("#plan") and "37 pages" in tab.text("#plan")
    confirm(tab, "o", "The disk moves house")
    assert "stays in the store; clear would delete it" in tab.text("#next")
    assert segments(quiesce) == files
    assert from_storage(again(quiesce)) == 0
    undo(tab)
    assert from_storage(again(quiesce)) >= 500


def test_pages_of_other_weights_are_never_hit_and_are_there_when_they_return(
    tab: Seat, quiesce: Supervised, first: dict[str, Any]
) -> None:
    page = tab.page
    tab.goto("/weights/new?engine=local")
    page.fill("#w-path", "smollm2-other")
    until(lambda: "headers are in order" in tab.text("#plan"), page)
    confirm(tab, "w", "A newer model", name="local")
    other = again(quiesce)
    assert from_storage(other) == 0 and other["text"] != first["text"]
    tab.goto("/engines/local/weights")
    page.click("text=/Return to .*…/ >> nth=0")
    page.wait_for_url(re.compile("/weights/return"))
    confirm(tab, "w", "The older one was better", name="local")
    back = again(quiesce)
    assert from_storage(back) >= 500 and back["text"] == first["text"]


def test_a_switch_under_load_is_one_job_and_undone_by_one(
    chromium: Browser, tab: Seat, quiesce: Supervised, store: Store, first: dict[str, Any]
) -> None:
    page, text = tab.page, first["text"]
    if WITH_SHOTS:
        with Rereads(quiesce):
            shoot(chromium, quiesce, "backend", BACKEND, wait_ms=30_000)
    with Load(quiesce):
        tab.goto(BACKEND)
        page.click("text=Switch…")
        page.wait_for_url(re.compile("/backend/attach"))
        page.check("[name=backend][value=valkey]")
        page.locator("#s-url").wait_for()
        page.fill("#s-url", store.config["url"])
        page.fill("#s-password", store.password)
        until(lambda: "Detach file" in tab.text("#side"), page)
        assert store.password not in page.content()
        confirm(tab, "a", "The fleet shares this one")
        assert "in place of file" in tab.text("#next")
    path = page.url.removeprefix(quiesce.base)
    if WITH_SHOTS:
        shoot(chromium, quiesce, "job-switch", path, ("wide",))
    assert store.password not in page.content()
    assert tab.faults() == []
    assert again(quiesce)["text"] == text
    hit = again(quiesce)
    assert from_storage(hit) >= 500 and hit["text"] == text and store.keys() > 30
    undo(tab)
    assert from_storage(again(quiesce)) >= 500
    tab.goto("/backends")
    until(lambda: "file" in tab.text("#b-local"), page)


def test_clear_deletes_and_a_forced_detach_waits_for_nothing(
    tab: Seat, quiesce: Supervised, first: dict[str, Any]
) -> None:
    page = tab.page
    assert from_storage(again(quiesce)) >= 500
    until_idle(quiesce)
    files = segments(quiesce)
    tab.goto("/engines/local/do/clear_storage_backend")
    assert "for good" in tab.text("#plan")
    assert tab.faults() == []
    confirm(tab, "o", "A prompt held a secret", name="local")
    assert not set(files) & set(segments(quiesce))
    assert from_storage(again(quiesce)) == 0
    with Load(quiesce):
        tab.goto("/engines/local/do/detach_storage_backend")
        page.check("[name=force]")
        until(lambda: "it waits for nothing" in tab.text("#plan"), page)
        confirm(tab, "o", "The disk hangs", name="local")
        assert any(rank["running"] for rank in view(quiesce)["ranks"]), "it must not have waited"
    tab.goto("/backends")
    until(lambda: "nothing attached" in tab.text("#b-local"), page)
    assert tab.faults() == []
