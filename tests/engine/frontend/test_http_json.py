"""Bodies are strict JSON: what is refused here would end the process further down."""

from __future__ import annotations

import pytest

from engine.frontend.http_errors import HTTPError
from engine.frontend.http_json import parse
from engine.frontend.query import is_natural


@pytest.mark.parametrize(
    "body",
    [
        rb'{"text": "\ud800"}',
        rb'{"\udc00": 1}',
        rb'{"a": {"b": ["x", "\uD83D"]}}',
        b'{"text": "\xed\xa0\x80"}',  # the same in what Python calls surrogatepass
        '{"text": "a"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        rb'{"\ud800": 1, "\ud800": 2}',  # named in the message
        b'{"a": 1e999}',
        b'{"a": -1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 18446744073709551616}',
        b'{"a": -9223372036854775809}',
        b'{"a": NaN}',
    ],
)
def test_what_is_no_text_or_no_number_is_refused(body: bytes) -> None:
    with pytest.raises(HTTPError) as caught:
        parse(body)
    assert caught.value.status == 400
    assert len(caught.value.message.encode()) < 400


def test_escapes_and_large_numbers_that_mean_something_are_kept() -> None:
    assert parse(rb'{"a": "\ud83d\ude00\u0000 \\ud800"}') == {"a": "😀\0 \\ud800"}
    assert parse(b'{"a": [18446744073709551615, -9223372036854775808, 1e308]}') == {
        "a": [2**64 - 1, -(2**63), 1e308]
    }


@pytest.mark.parametrize(
    ("text", "answer"),
    [("0", True), ("17", True), ("9" * 5000, False), ("²", False), ("-1", False), ("", False)],
)
def test_a_natural_number_is_one_that_int_takes(text: str, answer: bool) -> None:
    assert is_natural(text) is answer
