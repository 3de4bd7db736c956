"""Secrets of a storage backend: kept by the engine, known by their fingerprints, found nowhere."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from django.test import RequestFactory
from django.views.debug import ExceptionReporter
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from console.project.reports import ValuesHidden
from engine.protocol import AttachStorage, KeepSecrets
from tests.console.canaries import TOLD_BACK, canary, typed_everywhere, words
from tests.fakes.engine import FakeEngine
from tests.fakes.stack import Stack
from tests.fakes.waiting import PATIENCE_S, wait_until

CANARIES = {
    "password": "canary-pass-6f1d",
    "rank": "canary-rank-92ab",
    "replaced": "canary-next-0c7e",
    "nested": "canary-nest-5d20",
    "url": "canary-user-url-1b44",
    "list": "canary-list-url-7e93",
    "unknown": "canary-unknown-3a58",
    "typed": "canary-typed-c8f6",
    "form": "canary-form-e1d7",
    "gone": "canary-gone-44b2",
    "broken": "canary-broken-9d0f",
}
URL = "valkey://kv.internal:6379/0"


def valkey(**config: object) -> dict[str, object]:
    return {"backend": "valkey", "config": {"url": URL, **config}}


REFUSED: list[dict[str, object]] = [
    {"backend": "valkey", "config": {"url": URL, "nested": {"password": CANARIES["nested"]}}},
    {"backend": "valkey", "config": {"url": f"valkey://u:{CANARIES['url']}@kv.internal:6379/0"}},
    {"backend": "valkey", "config": {"url": [f"valkey://u:{CANARIES['list']}@a:1/0"] * 2}},
    valkey(xyz_tok=CANARIES["unknown"]),
    valkey(password={"value": CANARIES["typed"]}),
    valkey(password=CANARIES["typed"], ttl=-1),
    {"backend": "nonesuch", "config": {"password": CANARIES["typed"]}},
    {"config": {"password": CANARIES["typed"]}},
    {"backend": "valkey", "config": json.dumps({"password": CANARIES["typed"]})},
    {
        "backend": "mooncake",
        "config": {
            "master_server_address": "m:1",
            "metadata_server": f"http://u:{CANARIES['url']}@m:2/metadata",
        },
    },
    {**valkey(), "rank_configs": {"1": {"password": 7, "secret": CANARIES["rank"]}}},
    {**valkey(password=CANARIES["typed"]), "config_id": "0" * 16},
]


@pytest.fixture(scope="module")
def watched() -> Iterator[Stack]:
    """A stack of its own, with every log at DEBUG, debug pages on, and Redis overheard."""
    made = Stack(env={"QUIESCE_LOG_LEVEL": "DEBUG", "QUIESCE_DEBUG": "1"})
    try:
        made.up()
        yield made
    finally:
        made.down()


class Overheard:
    """Every command that Redis gets: hints, doorbells with their arguments, snapshots."""

    def __init__(self, stack: Stack) -> None:
        self.lines: list[str] = []
        self._monitor = redis.Redis(port=stack.redis_port).monitor()
        self._monitor.__enter__()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for command in self._monitor.listen():
                self.lines.append(str(command["command"]))
        except (redis.RedisError, OSError, ValueError, AttributeError):
            return  # the stack is gone

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Live:
    """What the live socket brings to a browser."""

    def __init__(self, stack: Stack, cookie: str, topics: list[str]) -> None:
        self.socket = connect(
            f"ws://127.0.0.1:{stack.port}/ws/live/",
            origin=stack.url,
            additional_headers={"Cookie": f"quiesce_sid={cookie}"},
            proxy=None,
        ).__enter__()
        self.socket.send(json.dumps({"type": "subscribe", "topics": topics}))
        self.messages: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            for message in self.socket:
                self.messages.append(str(message))

    def close(self) -> None:
        self.socket.close()


def dumped(stack: Stack) -> str:
    """Every row of every table, and the bytes of the files around the database."""
    connection = sqlite3.connect(stack.dir / "console.sqlite3", timeout=PATIENCE_S)
    try:
        rows = "\n".join(connection.iterdump())
    finally:
        connection.close()
    files = [path for path in Path(stack.dir).rglob("*") if path.is_file()]
    return rows + "".join(path.read_bytes().decode("latin-1") for path in files)


def redis_dump(stack: Stack) -> str:
    client = stack.redis()
    found = []
    for key in client.scan_iter():
        found.append(repr((key, client.dump(key))))
        if client.type(key) == b"string":
            found.append(repr(client.get(key)))
    return "\n".join(found)


def leaks(text: str) -> list[str]:
    found = [name for name, value in CANARIES.items() if value in text]
    return found + [name for name in words() if canary(name) in text]


@pytest.mark.process
def test_no_secret_is_anywhere_but_in_what_the_engine_was_told(watched):
    """S03: nor in the export, the stream of events, the broker, its messages, or a DEBUG log."""
    said: list[httpx.Response] = []
    with FakeEngine(watched.run_dir) as engine, watched.login() as browser:
        watched.register(engine)
        heard = Overheard(watched)
        topics = ["fleet", "jobs", f"engine:{engine.name}"]
        live = Live(watched, browser.cookies["quiesce_sid"], topics)
        job_ids = accepted_jobs(watched, engine, browser, said)
        refused_requests(watched, engine, browser, said)
        typed = dict(typed_everywhere(watched, engine, browser))
        said += [answer for answer in typed.values() if answer is not None]
        unreachable(watched, engine, said)
        ((entries,),) = watched.sql("SELECT max(seq) FROM console_auditentry")
        pages = [browser.get(path) for path in shown_paths(engine, job_ids, entries)]
        assert [page.status_code for page in pages] == [200] * len(pages)
        replies = [
            watched.request("GET", path)
            for path in (
                *("/jobs", "/audit", "/engines", "/backends", f"/engines/{engine.name}"),
                *("/audit/export", "/audit/export?form=csv", "/events?since=0&for_s=0"),
                *(f"/jobs/{job_id}" for job_id in job_ids),
            )
        ]
        assert [reply.status_code for reply in replies] == [200] * len(replies)
        wait_until(lambda: any(job_ids[-1] in message for message in live.messages))
        live.close()
        told = [got.command for got in engine.commands(KeepSecrets)]
    everything = {
        "answers": "".join(f"{one.text}{one.headers}" for one in said),
        "pages": "".join(page.text for page in pages),
        "replies": "".join(reply.text for reply in replies),
        "live": "\n".join(live.messages),
        "redis commands": heard.text,
        "redis": redis_dump(watched),
        "database and logs": dumped(watched),
    }
    assert len(CANARIES) + len(words()) >= 50
    assert "run_job" in everything["redis commands"]
    assert "hmac:" in everything["database and logs"]
    found = {name: leaks(text) for name, text in everything.items()}
    found["answers"] = [name for name in found["answers"] if name not in TOLD_BACK]
    assert {name: leaked for name, leaked in found.items() if leaked} == {}
    values = [value for command in told for value in command.values.values()]
    for name in ("password", "rank", "replaced", "form"):
        assert CANARIES[name] in values, name
    for name in ("nested", "url", "list", "unknown", "typed"):
        assert CANARIES[name] not in values, name


def accepted_jobs(stack, engine, browser, said) -> list[str]:
    """By the API, again with the same key, as a switch, and by the form."""
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = {
        "engine": engine.name,
        "kind": "attach_storage_backend",
        "params": {
            **valkey(password=CANARIES["password"]),
            "rank_configs": {"1": {"password": CANARIES["rank"]}},
        },
    }
    one = stack.request("POST", "/jobs", json=first, headers=key)
    assert one.status_code == 202, one.text
    stack.ended(one.json()["id"])
    again = stack.request("POST", "/jobs", json=first, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, one.json()["id"])
    other = {**first, "params": valkey(password=CANARIES["replaced"], ttl=5)}
    wrong = stack.request("POST", "/jobs", json=other, headers=key)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "idempotency_key_reused")
    plan = stack.request("POST", "/jobs?dry_run=true", json=first)
    assert plan.json()["params"]["config"]["password"] == "hmac:pending"
    other["params"]["replace"] = True
    two = stack.request("POST", "/jobs", json=other)
    assert two.status_code == 202, two.text
    stack.ended(two.json()["id"])
    form = {
        "csrfmiddlewaretoken": browser.csrf,
        "key": str(uuid.uuid4()),
        "backend": "valkey",
        "replace": "1",
        "s-url": URL,
        "mode": "wait",
        "timeout_s": "30",
    }
    path, headers = f"/engines/{engine.name}/backend/attach", {"Origin": stack.url}
    bad = browser.post(
        path, data={**form, "s-password": CANARIES["form"], "s-ttl": "x"}, headers=headers
    )
    assert bad.status_code == 422
    preview = browser.post(
        f"/engines/{engine.name}/backend/plan",
        data={**form, "s-password": CANARIES["form"]},
        headers=headers,
    )
    assert "(secret, told to the engine only)" in preview.text.replace("&quot;", '"')
    good = browser.post(
        path, data={**form, "s-password": CANARIES["form"], "reason": "why"}, headers=headers
    )
    assert good.status_code == 303, good.text[:3000]
    three = good.headers["Location"].rpartition("/")[2]
    stack.ended(three)
    said += [one, again, wrong, plan, two, bad, preview, good]
    states = [stack.job(one)["state"] for one in (one.json()["id"], two.json()["id"], three)]
    assert states == ["succeeded"] * 3
    sent = engine.submits(three)[0].operation
    assert isinstance(sent, AttachStorage)
    assert json.loads(sent.config) == {"url": URL}
    assert sent.secrets == three
    return [one.json()["id"], two.json()["id"], three]


def refused_requests(stack, engine, browser, said) -> None:
    """Each is refused by a name, and none of them becomes a job."""
    before = stack.sql("SELECT count(*) FROM console_job")
    for params in REFUSED:
        for query in ("", "?dry_run=true"):
            answer = stack.request(
                "POST",
                f"/jobs{query}",
                json={"engine": engine.name, "kind": "attach_storage_backend", "params": params},
            )
            assert answer.status_code == 422, (params, answer.text)
            said.append(answer)
    raw = f'{{"engine": "{engine.name}", "params": {{"password": "{CANARIES["broken"]}"'
    said.append(
        stack.request("POST", "/jobs", content=raw, headers={"Content-Type": "application/json"})
    )
    assert said[-1].status_code == 400
    no_proof = browser.post(
        f"/engines/{engine.name}/backend/attach", data={"s-password": CANARIES["broken"]}
    )
    assert no_proof.status_code == 403
    said.append(no_proof)
    engine.storage.refuse_secrets = f"no room for {CANARIES['gone']}"
    answer = stack.ask(
        engine, kind="attach_storage_backend", **valkey(password=CANARIES["gone"]), replace=True
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "engine_refused")
    said.append(answer)
    engine.storage.refuse_secrets = ""
    assert stack.sql("SELECT count(*) FROM console_job") == before


def unreachable(stack, engine, said) -> None:
    """Without its engine nothing is stored, not even a fingerprint."""
    before = stack.sql("SELECT count(*) FROM console_job")
    engine.drop_everything = True
    answer = stack.ask(
        engine, kind="attach_storage_backend", **valkey(password=CANARIES["gone"]), replace=True
    )
    engine.drop_everything = False
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_unreachable")
    assert answer.headers["Retry-After"]
    said.append(answer)
    assert stack.sql("SELECT count(*) FROM console_job") == before


def shown_paths(engine, job_ids, entries) -> list[str]:
    return [
        *("/", "/jobs", "/audit", "/backends", f"/engines/{engine.name}"),
        *(
            f"/engines/{engine.name}/backend",
            f"/engines/{engine.name}/backend/attach?backend=valkey",
        ),
        f"/engines/{engine.name}/backend/attach?undo={job_ids[-1]}",
        *(f"/jobs/{job_id}" for job_id in job_ids),
        *(f"/audit?job={job_id}" for job_id in job_ids),
        *(f"/audit/{seq}" for seq in range(1, entries + 1)),
    ]


def test_a_debug_page_names_variables_and_shows_none_of_them(settings):
    settings.DEBUG = True
    kept = uuid.uuid4().hex  # so that no line of source has it
    request = RequestFactory().post("/x", {"s-password": kept})
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        reporter = ExceptionReporter(request, type(error), error, error.__traceback__)
    assert isinstance(reporter.filter, ValuesHidden)
    for text in (reporter.get_traceback_html(), reporter.get_traceback_text()):
        assert "broken" in text
        assert kept not in text
    assert "s-password" in reporter.get_traceback_html()


def test_no_log_of_ours_repeats_a_value_that_is_refused(caplog):
    from console.exceptions import Invalid
    from console.params import params_of

    caplog.set_level(logging.DEBUG)
    for params in REFUSED:
        with pytest.raises(Invalid) as refused:
            params_of("attach_storage_backend", params)
        error: BaseException | None = refused.value
        while error is not None:
            assert not leaks(f"{error}{error!r}"), params
            error = error.__cause__ or error.__context__
    assert not leaks(caplog.text)
