"""Tokens, users, groups, pending and settings in a real browser: their look, and their stories."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.console.pages.chromium import SIZES, seat, shot, until
from tests.fakes.engine import FakeEngine
from tests.fakes.plain_http import request
from tests.fakes.stack import Stack

pytestmark = pytest.mark.browser

PASSWORD = "a-long-enough-password-7"


@pytest.fixture(scope="module")
def engine(stack: Stack) -> Iterator[FakeEngine]:
    with FakeEngine(stack.run_dir, name="access-a") as made:
        stack.register(made)
        stack.request("PATCH", "/engines/access-a", json={"labels": {"env": "prod", "team": "a"}})
        yield made


@pytest.fixture(scope="module")
def people(stack: Stack, engine: FakeEngine) -> dict[str, str]:
    """name → username: of each kind that pages show."""
    tail = uuid.uuid4().hex[:6]
    made = {name: f"{name}.{tail}" for name in ("vera", "olga", "emil", "push")}
    grants = {
        "vera": [{"role": "viewer", "engines": ""}],
        "olga": [
            {"role": "operator", "engines": "env=prod,team in (a, b)", "max_timeout_s": 300,
             "modes": ["wait", "drain"], "may_force": False},
            {"role": "auditor", "engines": ""},
        ],
        "emil": [{"role": "viewer", "engines": "env=nowhere"}],
        "push": [{"role": "pusher", "engines": "name=access-a"}],
    }  # fmt: skip
    for name, username in made.items():
        is_service = name == "push"
        if is_service:
            stack.manage("create_user", username, "--service")
        else:
            stack.manage("create_user", username, "--password-stdin", said=PASSWORD)
        path = f"/users/{username}"
        for grant in stack.request("GET", path).json()["grants"]:
            stack.request("DELETE", f"{path}/grants/{grant['id']}")
        for grant in grants[name]:
            assert stack.request("POST", f"{path}/grants", json=grant).status_code == 200
    scopes = ["--scope", "fleet:read", "--scope", "jobs:flush", "--scope", "weights:update"]
    stack.manage("create_token", made["push"], "ci-7", *scopes, "--days", "3")
    stack.manage("create_token", made["push"], "a-name-that-is-long-and-has-no-blank" * 2)
    old = stack.manage("create_token", made["olga"], "laptop").stdout.strip()
    stack.manage("revoke_token", old, "--reason", "found in a build log")
    engine.busy(2)
    stack.submit(engine, timeout_s=600)
    stack.ask(engine, on_conflict="queue", timeout_s=30)
    return made


PAGES = {
    "tokens": "/tokens",
    "tokens filtered": "/tokens?show=active",
    "token new": "/tokens/new",
    "users": "/users",
    "user": "/users/{olga}",
    "user disabled": "/users/{push}",
    "user new": "/new-user",
    "register": "/register",
    "engine settings": "/engines/access-a/settings",
    "pending": "/pending",
}
AS_OTHERS = {
    "engine of a viewer": ("vera", "/engines/access-a", 200),
    "users of a viewer": ("vera", "/users", 200),
    "pending of a viewer": ("vera", "/pending", 200),
    "audit of a viewer": ("vera", "/audit", 403),
    "fleet of a stranger to it": ("emil", "/", 200),
}


def test_every_page_is_clean_at_both_sizes(stack, chromium, people):
    stack.manage("set_user", people["push"], "--disable")
    faults = {}
    for size in SIZES:
        one = seat(chromium, stack.url, size).log_in(stack.password)
        for name, path in PAGES.items():
            one.goto(path.format(**people))
            one.page.wait_for_timeout(100)
            shot(one, name)
            faults[name, size] = one.faults()
        others = {
            who: seat(chromium, stack.url, size).log_in(PASSWORD, people[who])
            for who in ("vera", "emil")
        }
        for name, (who, path, status) in AS_OTHERS.items():
            others[who].goto(path)
            others[who].page.wait_for_timeout(100)
            shot(others[who], name)
            faults[name, size] = others[who].faults(status=status)
    stack.manage("set_user", people["push"], "--enable")
    assert {where: found for where, found in faults.items() if found} == {}


def test_what_one_may_not_do_is_there_greyed_out_with_the_role_it_needs(stack, chromium, people):
    one = seat(chromium, stack.url).log_in(PASSWORD, people["vera"]).goto("/engines/access-a")
    flush = one.page.locator("a", has_text="Flush…").first
    assert flush.get_attribute("aria-disabled") == "true"
    assert "needs the role operator" in (flush.get_attribute("title") or "")
    flush.click(force=True)
    assert one.page.url.endswith("/engines/access-a")
    for button in one.page.locator("[data-steer] button").all():
        assert button.get_attribute("aria-disabled") == "true"
    answer = one.page.goto(f"{stack.url}/flush?engine=access-a")
    assert answer is not None and answer.status == 403
    assert "jobs:flush needs the role operator" in one.text("main")


def test_a_token_is_created_used_and_revoked(stack, chromium):
    one = seat(chromium, stack.url).log_in(stack.password).goto("/tokens")
    one.page.click("text=New token")
    one.page.click("text=Create token")
    assert "Name it" in one.text("main")
    name = f"story-{uuid.uuid4().hex[:6]}"
    one.page.fill("#t-name", name)
    one.page.check("input[value='jobs:flush']")
    one.page.click("text=Create token")
    text = one.page.locator("#secret").inner_text()
    shot(one, "token made")
    assert one.faults(status=422) == []
    header = {"Authorization": f"Bearer {text}"}
    me = request("GET", f"{stack.url}/api/v1/me", headers=header).json()
    assert set(me["acts"]) == {"fleet:read", "jobs:flush"}
    one.page.reload()  # posted once more: the form's key is used up
    assert "has made a token already" in one.text("main")
    assert text not in one.page.content()
    one.complaints.clear()
    one.goto("/tokens")
    row = one.page.locator("tr", has_text=name)
    assert text not in one.page.content() and "127.0.0.1" in row.inner_text()
    row.locator("button").click()
    dialog = one.page.locator("dialog[open]")
    dialog.locator("input[name=reason]").fill("the story ends")
    assert one.faults() == []
    dialog.locator("button[type=submit]").click()
    one.page.locator("tr", has_text="the story ends").wait_for()
    assert request("GET", f"{stack.url}/api/v1/me", headers=header).status_code == 401


# Each socket of a page is known to the test, which can keep it from opening others.
SOCKETS = """
const Real = WebSocket;
window.sockets = [];
window.held = false;
window.WebSocket = class extends Real {
  constructor(url) { super(window.held ? `${url}nowhere/` : url); window.sockets.push(this); }
};
"""


def test_a_role_is_taken_while_a_page_is_open(stack, chromium, people):
    username = people["vera"]
    watcher = seat(chromium, stack.url).log_in(PASSWORD, username)
    watcher.page.add_init_script(SOCKETS)
    watcher.goto("/engines/access-a")
    admin = seat(chromium, stack.url).log_in(stack.password).goto(f"/users/{username}")
    admin.page.locator("button", has_text="Take").click()
    admin.page.locator("text=No role").wait_for()
    banner = watcher.page.locator("#blind")
    said = ("Your roles have changed", "not for you to see")
    until(lambda: any(words in banner.inner_text() for words in said), watcher.page)
    if watcher.page.evaluate("sockets.length") == 1:  # else it may have been away just then
        assert said[0] in banner.inner_text()
    shot(watcher, "role taken")
    assert watcher.faults() == []
    watcher.page.click("#blind-now")
    watcher.page.locator("text=fleet:read needs the role").wait_for()
    admin.page.select_option("#g-role", "viewer")
    admin.page.locator("button", has_text="Give").click()
    admin.page.locator("table >> text=viewer").wait_for()
    assert watcher.goto("/engines/access-a").text("h1") == "access-a"


def test_a_role_that_is_taken_while_the_socket_is_away_is_noticed(stack, chromium, people):
    username = people["vera"]
    watcher = seat(chromium, stack.url).log_in(PASSWORD, username)
    watcher.page.add_init_script(SOCKETS)
    watcher.goto("/engines/access-a")
    admin = seat(chromium, stack.url).log_in(stack.password).goto(f"/users/{username}")
    watcher.page.evaluate("held = true; sockets.at(-1).close()")
    watcher.page.locator("#live:not([data-state=live])").wait_for()
    admin.page.locator("button", has_text="Take").click()
    admin.page.locator("text=No role").wait_for()
    watcher.page.evaluate("held = false")
    banner = watcher.page.locator("#blind")
    until(lambda: "not for you to see" in banner.inner_text(), watcher.page)
    shot(watcher, "gone")
    assert watcher.page.locator("#live").get_attribute("data-state") == "offline"
    watcher.page.click("#blind-now")
    watcher.page.locator("text=fleet:read needs the role").wait_for()
    admin.page.select_option("#g-role", "viewer")
    admin.page.locator("button", has_text="Give").click()
    admin.page.locator("table >> text=viewer").wait_for()


def test_an_engine_is_registered_changed_and_removed(stack, chromium):
    name = f"story-{uuid.uuid4().hex[:6]}"
    one = seat(chromium, stack.url).log_in(stack.password).goto("/register")
    one.page.fill("#e-name", name)
    one.page.fill("#e-ctl", "tcp://10.0.0.7:5600")
    one.page.fill("#e-evt", "tcp://10.0.0.7:5601")
    one.page.locator("button", has_text="Register").click()
    assert "needs the engine's public key" in one.text("main")
    one.page.fill("#e-key", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7")
    one.page.fill("#e-lab", "env=story")
    one.page.locator("button", has_text="Register").click()
    one.page.locator("h1", has_text=name).wait_for()
    one.goto(f"/engines/{name}/settings")
    one.page.fill("#e-lab", "env=told")
    one.page.locator("button", has_text="Save").click()
    one.page.locator("h1", has_text=name).wait_for()
    assert stack.engine(name)["labels"] == {"env": "told"}
    one.goto(f"/engines/{name}/settings")
    one.page.locator("button", has_text="Remove").click()
    one.page.locator("#rm-err").wait_for()
    one.page.fill("#rm-name", name)
    one.page.locator("button", has_text="Remove").click()
    one.page.locator("h1", has_text="Fleet").wait_for()
    assert stack.request("GET", f"/engines/{name}").status_code == 404
    actions = stack.request("GET", f"/audit?engine={name}").json()["items"]
    assert [one["action"] for one in actions] == [
        "engine.removed", "engine.changed", "engine.registered",
    ]  # fmt: skip
