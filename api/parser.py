"""JSON bodies, strictly: UTF-8, one value a key, bounded numbers; NaN is left to the schema."""

from __future__ import annotations

import json
from typing import Any  # a parsed body is any JSON object

from django.http import HttpRequest
from ninja.parser import Parser

from console.exceptions import BadRequest, UnsupportedMediaType


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadRequest(f"the key {twice[:60]!r} occurs twice in one object")
    return found


def json_read(body: bytes) -> Any:
    """The value of `body`. Raises BadRequest; accepts NaN, so that its field can be named."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_pairs)
        # A lone surrogate is no text: no database takes it.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest("the body is not valid UTF-8") from error
    except UnicodeEncodeError as error:
        raise BadRequest("the body holds half of a surrogate pair") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error.msg} at {error.pos}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise BadRequest("the body holds a number that is too long") from error
    return value


class StrictParser(Parser):
    """ninja's hook for bodies."""

    def parse_body(self, request: HttpRequest) -> Any:
        """The body's value. Raises UnsupportedMediaType, BadRequest."""
        if request.content_type != "application/json":
            raise UnsupportedMediaType("send the body as application/json")
        return json_read(request.body)
