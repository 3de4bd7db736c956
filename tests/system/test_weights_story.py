"""The story of new weights, in the browser, on a real model: ask, update under load, get a pirate's
answer, return, get the first answer again, word for word.

The second checkpoint is what `python -m engine demo-checkpoint` makes, in a minute on two cores.
QUIESCE_SCREENSHOTS=1 also writes docs/screenshots/.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from tests.console.pages.chromium import SIZES, Seat, seat, until
from tests.fakes import plain_http
from tests.fakes.supervised import Supervised, supervised
from tests.fakes.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.system,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "docs" / "screenshots"
WITH_SHOTS = os.environ.get("QUIESCE_SCREENSHOTS") == "1"
QUESTION = "What is the capital of Italy?"
NUM_CLIENTS = 8
NUM_TOKENS = 2500  # staging beside eight streams takes some seconds


@pytest.fixture(scope="module")
def pirate(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path) -> Path:
    """A root with the served model and its pirate, made by the command as people run it."""
    root = tmp_path_factory.mktemp("models")
    model = root / smollm2_dir.name
    model.mkdir()
    for path in smollm2_dir.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "engine", "demo-checkpoint", "--model", str(model)],
        check=True,
        cwd=ROOT,
    )
    return root


@pytest.fixture(scope="module")
def quiesce(pirate: Path, smollm2_dir: Path, cpu_ext_dir: Path) -> Iterator[Supervised]:
    with supervised(pirate / smollm2_dir.name, cpu_ext_dir, "--dp-size", "2") as made:
        yield made


class Stream(threading.Thread):
    """One client that reads a long answer as it comes, straight from the engine."""

    def __init__(self, quiesce: Supervised, number: int) -> None:
        super().__init__(daemon=True)
        self._url = f"{quiesce.engine_base}/generate"
        self._number = number
        self.events: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.error = ""

    def run(self) -> None:
        body = {
            "text": f"Story {self._number}. Once upon a time",
            "sampling_params": {
                "max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
            },
            "stream": True,
        }  # fmt: skip
        try:
            with plain_http.stream("POST", self._url, json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
                        self.times.append(time.monotonic())
        except httpx.HTTPError as error:
            self.error = repr(error)

    def check(self) -> None:
        """It never broke, and nothing that was streamed was taken back."""
        assert not self.error
        last = self.events[-1]
        assert "error" not in last and len(last["output_ids"]) == NUM_TOKENS
        for event in self.events:
            assert last["output_ids"][: len(event["output_ids"])] == event["output_ids"]


def ask(tab: Seat) -> str:
    """The question, through the page's own panel."""
    page = tab.page
    tab.goto("/engines/local")
    page.fill("#try-p", QUESTION)
    page.fill("#try-n", "24")
    page.click("#try [type=submit]")
    page.locator("#try[data-ended='1']").wait_for()
    assert page.locator("#try-err").is_hidden(), tab.text("#try-err")
    return tab.text("#try-out")


def chat(quiesce: Supervised) -> str:
    body = {
        "model": "x", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": QUESTION}],
    }  # fmt: skip
    models = plain_http.get(f"{quiesce.engine_base}/v1/models").json()
    body["model"] = models["data"][0]["id"]
    answer = plain_http.post(f"{quiesce.engine_base}/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


def checksums(quiesce: Supervised) -> set[str]:
    ranks = quiesce.api("GET", "/engines/local").json()["ranks"]
    return {rank["weight_checksum"] for rank in ranks}


def confirm(tab: Seat, why: str) -> None:
    page = tab.page
    page.fill("#w-why", why)
    page.fill("#w-name", "local")
    until(lambda: page.get_attribute("#w-go", "aria-disabled") is None, page)
    page.click("#w-go")
    page.wait_for_url(re.compile("/jobs/"))


def shoot(chromium: Browser, quiesce: Supervised, name: str, path: str) -> None:
    if not WITH_SHOTS:
        return
    for theme in ("light", "dark"):
        for size in SIZES:
            width, _ = SIZES[size]
            one = seat(chromium, quiesce.base, size, theme).log_in(quiesce.password).goto(path)
            one.page.wait_for_timeout(400)
            one.page.screenshot(path=SHOTS / f"{name}-{theme}-{width}.png")
            one.page.context.close()


def test_new_weights_under_load_and_back(chromium, quiesce, pirate, smollm2_dir):
    tab = seat(chromium, quiesce.base).log_in(quiesce.password)
    page = tab.page
    first, first_chat, before = ask(tab), chat(quiesce), checksums(quiesce)
    assert len(before) == 1 and "Arr" not in first_chat

    shoot(chromium, quiesce, "weights-new", "/weights/new?engine=local")

    streams = [Stream(quiesce, number) for number in range(NUM_CLIENTS)]
    for stream in streams:
        stream.start()
    running = "#ranktable"
    tab.goto("/engines/local")
    until(lambda: "running 4" in tab.text(running), page)

    tab.goto("/weights/new?engine=local")
    page.fill("#w-path", f"{smollm2_dir.name}-pirate")
    until(lambda: "headers are in order" in tab.text("#plan"), page)
    page.check("[name=mode][value=retract]")
    confirm(tab, "The crew asked for a pirate")
    job_id = page.url.rpartition("/")[2]
    until(lambda: tab.text("#job-st") == "succeeded", page)
    assert "Pause, as measured" in tab.text("#pause")
    job = quiesce.api("GET", f"/jobs/{job_id}").json()
    assert [rank["state"] for rank in job["ranks"]] == ["succeeded", "succeeded"]
    shoot(chromium, quiesce, "job-weights", f"/jobs/{job_id}")

    for stream in streams:
        stream.join(PATIENCE_S)
        stream.check()
    spans = [stream.events[-1]["meta_info"]["weight_versions"] for stream in streams]
    assert all(len(span) == 2 for span in spans), spans
    after = checksums(quiesce)
    assert len(after) == 1 and after != before
    answer = chat(quiesce)
    assert answer.startswith("Arr!"), answer
    assert ask(tab) != first

    tab.goto("/engines/local/weights")
    shoot(chromium, quiesce, "weights-engine", "/engines/local/weights")
    page.click("text=/Return to .*…/ >> nth=0")
    page.wait_for_url(re.compile("/weights/return"))
    confirm(tab, "Enough of the pirate")
    until(lambda: tab.text("#job-st") == "succeeded", page)
    assert checksums(quiesce) == before
    assert chat(quiesce) == first_chat and ask(tab) == first
    shoot(chromium, quiesce, "weights", "/weights")
    assert tab.faults() == []
