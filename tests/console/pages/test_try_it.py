"""Try it: limits are the server's, the engine's words are passed on as they are."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from console.pages.completion import MAX_PROMPT_CHARS, Asked, EngineSaid, complete
from console.pages.try_it import _Turn
from tests.fakes.waiting import PATIENCE_S

PATH = "/engines/local/try"
TEXT = Asked("p", 7, as_chat=False)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"prompt": " ", "max_tokens": "8"}, "prompt"),
        ({"max_tokens": "8"}, "prompt"),
        ({"prompt": "x" * (MAX_PROMPT_CHARS + 1), "max_tokens": "8"}, "prompt"),
        ({"prompt": "x", "max_tokens": "257"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "0"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "-1"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "1e2"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "9" * 5000}, "max_tokens"),
        ({"prompt": "x"}, "max_tokens"),
    ],
)
def test_a_bad_field_is_named(page, engine, data, field):
    answer = page.post(PATH, data)
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_it_is_for_people_by_post_and_for_engines_that_answer(page, client, engine, seen):
    assert page.get(PATH).status_code == 405
    good = {"prompt": "x", "max_tokens": "8"}
    assert page.post("/engines/nobody/try", good).status_code == 404
    never = page.post(PATH, good)
    assert never.status_code == 503 and "never seen" in never.json()["error"]
    seen(age_s=9)
    assert page.post(PATH, good).status_code == 503
    client.logout()
    assert client.post(PATH, good).status_code == 401


def test_a_person_has_one_turn_at_a_time(page, engine, seen, user):
    seen()
    turn = _Turn(user.pk)
    assert turn.take()
    answer = page.post(PATH, {"prompt": "x", "max_tokens": "8"})
    assert (answer.status_code, answer.json()["error"]) == (
        409,
        "A completion of yours is still running. One at a time.",
    )
    _Turn(user.pk).give()  # not its own: it stays taken
    assert not _Turn(user.pk).take()
    turn.give()
    assert _Turn(user.pk).take()


@asynccontextmanager
async def engine_that_answers(*chunks: bytes, status: str = "200 OK", hang: bool = False):
    """An HTTP server that sends `chunks`; yields its address and what it was asked."""
    asked: list[dict] = []
    gone = asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for chunk in chunks:
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            await writer.drain()
            await asyncio.sleep(0.005)
        if hang:
            await reader.read()
        else:
            writer.write(b"0\r\n\r\n")
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}", asked, gone


def _event(text: str, cached: int = 3) -> bytes:
    meta = {"prompt_tokens": 5, "cached_tokens": cached, "completion_tokens": 1, "dp_rank": 1}
    return b"data: " + json.dumps({"text": text, "meta_info": meta}).encode() + b"\n\n"


async def gather(address: str) -> list:
    return [piece async for piece in complete(address, TEXT)]


async def test_text_that_grows_is_passed_on_as_what_is_new():
    whole = _event("He") + _event("Hello") + _event("Hello, é") + b"data: [DONE]\n\n"
    cuts = [whole[:9], whole[9:70], whole[70:]]
    async with engine_that_answers(*cuts) as (address, asked, _):
        pieces = await gather(address)
    assert [piece.text for piece in pieces] == ["He", "llo", ", é"]
    assert pieces[-1].usage["cached_tokens"] == 3 and pieces[-1].usage["dp_rank"] == 1
    assert asked[0]["sampling_params"]["max_new_tokens"] == 7 and asked[0]["stream"] is True


async def test_a_chat_is_asked_as_one_and_its_numbers_come_with_the_end():
    def chunk(**body: object) -> bytes:
        return (
            b"data: " + json.dumps({"object": "chat.completion.chunk", **body}).encode() + b"\n\n"
        )

    def choice(finish: str | None = None, **delta: object) -> list[dict]:
        return [{"index": 0, "delta": delta, "finish_reason": finish}]

    usage = {
        "prompt_tokens": 9, "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip
    metadata = {"weight_version": "v2", "dp_rank": 1}
    events = (
        chunk(choices=choice(role="assistant", content="")) + chunk(choices=choice(content="Arr"))
        + chunk(choices=choice("stop", content="!"))
        + chunk(choices=[], usage=usage, metadata=metadata) + b"data: [DONE]\n\n"
    )  # fmt: skip
    async with engine_that_answers(events) as (address, asked, _):
        pieces = [piece async for piece in complete(address, Asked("p", 7))]
    assert "".join(piece.text for piece in pieces) == "Arr!"
    told: dict = {}
    for piece in pieces:
        told |= piece.usage
    assert (told["cached_tokens"], told["dp_rank"], told["weight_version"]) == (4, 1, "v2")
    assert told["finish_reason"] == "stop"
    assert asked[0]["messages"] == [{"role": "user", "content": "p"}]
    assert asked[0]["max_tokens"] == 7 and asked[0]["stream"] is True


async def test_a_refusal_is_the_engines_own_sentence():
    body = json.dumps({"error": {"message": "prompt of 9000 tokens is longer than 2048"}}).encode()
    async with engine_that_answers(body, status="400 Bad Request") as (address, _, _):
        with pytest.raises(EngineSaid) as said:
            await gather(address)
    assert (said.value.message, said.value.status) == (
        "prompt of 9000 tokens is longer than 2048",
        400,
    )


async def test_an_error_in_the_stream_and_a_stream_that_breaks_off_are_told():
    bad = b'data: {"error": {"message": "rank 0 died"}}\n\n'
    async with engine_that_answers(_event("a"), bad) as (address, _, _):
        with pytest.raises(EngineSaid, match="rank 0 died"):
            await gather(address)
    async with engine_that_answers(_event("a")) as (address, _, _):
        with pytest.raises(EngineSaid, match="broke off"):
            await gather(address)


async def test_nobody_there_is_told_at_once():
    with pytest.raises(EngineSaid, match="does not answer"):
        await gather("http://127.0.0.1:1")


async def test_a_reader_who_leaves_ends_the_engines_work():
    async with engine_that_answers(_event("a"), hang=True) as (address, _, gone):
        pieces = complete(address, TEXT)
        assert (await anext(pieces)).text == "a"
        await pieces.aclose()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
