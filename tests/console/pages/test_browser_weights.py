"""Weights in a real browser: the form's plan, an upload that breaks off, the job as it goes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser

from tests.console.pages.chromium import Seat, seat, until
from tests.console.test_weights_flow import big_file
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack

pytestmark = pytest.mark.browser


@pytest.fixture
def one(stack: Stack, chromium: Browser) -> Seat:
    return seat(chromium, stack.url).log_in(stack.password)


def confirm(one: Seat, engine: FakeEngine) -> None:
    one.page.fill("#w-why", "step 41200")
    assert one.page.get_attribute("#w-go", "aria-disabled") == "true"
    one.page.fill("#w-name", engine.name)
    until(lambda: one.page.get_attribute("#w-go", "aria-disabled") is None, one.page)
    one.page.click("#w-go")
    one.page.wait_for_url(re.compile("/jobs/"))


def test_a_folder_is_looked_at_staged_and_served_while_the_page_tells(stack, stack_engine, one):
    stack_engine.weights.stage_s = 3.0
    one.goto(f"/weights/new?engine={stack_engine.name}")
    one.page.fill("#w-path", "v9")
    until(lambda: "there is no such folder" in one.text("#plan"), one.page)
    one.page.fill("#w-path", "v2")
    until(lambda: "headers are in order" in one.text("#plan"), one.page)
    assert '"model_path": "/srv/models/v2"' in one.text("#code")
    confirm(one, stack_engine)
    until(lambda: one.text("#job-st") == "preparing", one.page)
    until(
        lambda: "0 of 2 GB" not in one.text("#all-x") and "MB/s" in one.text("#all-rate"), one.page
    )
    until(lambda: "verifying" in one.text("#j0-st"), one.page)
    until(lambda: one.text("#job-st") == "succeeded", one.page)
    assert "Pause, as measured" in one.text("#pause")
    assert "All 2 ranks serve v2" in one.text("#next")
    one.goto(f"/engines/{stack_engine.name}/weights")
    assert "served now" in one.text("#lineage")
    one.page.click("text=Return to v1… >> nth=0")
    one.page.wait_for_url(re.compile("/weights/return"))
    confirm(one, stack_engine)
    until(lambda: one.text("#job-st") == "succeeded", one.page)
    assert stack_engine.weights.version == "v1"
    assert one.faults() == []


def test_a_file_is_uploaded_again_from_where_it_broke_off(stack, stack_engine, one, tmp_path):
    content = big_file(20 << 20, b"\x05")  # three pieces
    path = tmp_path / "merged.safetensors"
    path.write_bytes(content)
    sent: list[str] = []

    def flaky(route, request):
        if request.method == "PATCH":
            sent.append(request.url.rpartition("=")[2])
            if len(sent) == 2:
                route.abort("connectionreset")
                return
        route.continue_()

    one.page.route("**/api/v1/uploads/**", flaky)
    one.goto(f"/weights/new?engine={stack_engine.name}")
    one.page.check("[name=source][value=tensors]")
    one.page.locator("#w-files").set_input_files(path)
    one.page.locator("#up-0 rect.f-done").wait_for()
    assert "sha256" in one.text("#up-0 .num")
    assert sent == ["0", str(8 << 20), str(8 << 20), str(16 << 20)]
    until(lambda: "21 MB" in one.text("#plan"), one.page)
    confirm(one, stack_engine)
    until(lambda: one.text("#job-st") == "succeeded", one.page)
    (files,) = stack_engine.weights.uploads.values()
    assert bytes(files["merged.safetensors"]) == content
    one.complaints.clear()  # of the piece that was broken off


def test_what_is_no_safetensors_is_refused_beside_its_name(stack, stack_engine, one, tmp_path):
    path = tmp_path / "pickle.safetensors"
    path.write_bytes(b"\x80\x04\x95" + b"x" * 200)
    one.goto(f"/weights/new?engine={stack_engine.name}&source=tensors")
    one.page.locator("#w-files").set_input_files(path)
    until(lambda: "failed" in one.text("#up-0 .st"), one.page)
    assert "not a whole safetensors file" in one.text("#up-0 .num")
    assert "Choose a file" in one.text("#w-state")


def test_a_small_form_is_reached_from_the_engine_and_its_effect_is_seen(stack, stack_engine, one):
    one.goto(f"/engines/{stack_engine.name}")
    one.page.click(".ops-menu summary")
    one.page.click("text=Pause…")
    one.page.wait_for_url(re.compile("/do/pause_generation"))
    one.page.check("[value=in_place]")
    one.page.fill("#o-why", "a look at the heap")
    one.page.click("#o-go")
    one.page.wait_for_url(re.compile("/jobs/"))
    until(lambda: one.text("#job-st") == "succeeded", one.page)
    one.goto(f"/engines/{stack_engine.name}")
    until(lambda: one.text("#eng-st") == "paused", one.page)
    assert "new requests are held" in one.text("#eng-cond")
    stack.submit(stack_engine, kind="continue_generation")
    until(lambda: one.text("#eng-st") == "idle", one.page)
    until(lambda: one.text("#eng-cond") == "", one.page)
    assert one.faults() == []


def test_the_banner_comes_and_goes_with_a_mixed_fleet(stack, stack_engine, one):
    one.goto(f"/engines/{stack_engine.name}")
    stack_engine.fail_ranks = {1}
    stack.ended(
        stack.submit(stack_engine, kind="update_weights_from_disk", model_path="/srv/models/v2"),
    )
    until(lambda: "versions" in one.text("#mixed"), one.page)
    stack_engine.fail_ranks = set()
    stack.ended(stack.submit(stack_engine, kind="repair"))
    until(lambda: "1 rank on v1" not in one.text("#mixed"), one.page)
