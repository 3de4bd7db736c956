"""Request bodies, read strictly: JSON only, no duplicate keys, no NaN, bounded, typed.

A field that SGLang has and we do not implement is accepted at SGLang's default, which means "not
used", and refused by name otherwise; a field nobody knows is refused. One rule for every route.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from engine.frontend.http_errors import HTTPError

MAX_BODY_BYTES = 32 << 20
BODY_S = 120.0
_T = TypeVar("_T")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*?)`")
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_body(request: Request) -> bytes:
    """The whole body. Raises HTTPError: 413 beyond the limit, without reading further; 408."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                chunks.append(chunk)
    except TimeoutError as error:
        raise HTTPError(408, f"the body did not arrive within {BODY_S:.0f} s") from error
    return b"".join(chunks)


def _too_large() -> HTTPError:
    return HTTPError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")


async def read_json(
    request: Request, kind: type[_T], unimplemented: Mapping[str, tuple[object, ...]] | None = None
) -> _T:
    """The body as `kind`. `unimplemented` maps a field to the values that mean "not used"."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPError(400, "Unsupported Media Type: Only 'application/json' is allowed")
    document = parse(await read_body(request))
    if not isinstance(document, dict):
        raise HTTPError(400, "the body must be a JSON object")
    return convert(document, kind, unimplemented or {})


def parse(body: bytes) -> object:
    """Strict JSON in UTF-8. Raises HTTPError 400."""
    try:
        document = json.loads(
            body.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_integer,
            parse_float=_finite,
        )
        if b"\\u" in body and _SURROGATE.search(json.dumps(document, ensure_ascii=False)):
            raise ValueError("an escape is half of a surrogate pair, which is no character")
    except (ValueError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else _shown(str(error))
        raise HTTPError(400, f"the body is no valid JSON: {text[:200]}") from error
    return document


def _shown(text: str) -> str:
    """A message that may quote the body, as text that can be sent."""
    return text.encode(errors="backslashreplace").decode()


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


def _integer(text: str) -> int:
    """msgspec 0.23 ends the process when it makes a float of an integer that is too large."""
    value = int(text)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"the integer {text[:20]}… does not fit 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def convert(
    document: dict[str, Any], kind: type[_T], unimplemented: Mapping[str, tuple[object, ...]]
) -> _T:
    """A JSON object as `kind`. Raises HTTPError 400 that names the field."""
    rest = dict(document)
    for name, unused in unimplemented.items():
        if name in rest:
            value = rest.pop(name)
            if value not in unused:
                raise HTTPError(
                    400, f"{name} is not implemented by this engine; leave it out", param=name
                )
    try:
        return msgspec.convert(rest, kind)
    except msgspec.ValidationError as error:
        raise HTTPError(400, str(error), param=_field_of(str(error))) from error


def _field_of(message: str) -> str | None:
    unknown, path = _UNKNOWN.search(message), _PATH.search(message)
    parts = [match.group(1) for match in (path, unknown) if match and match.group(1)]
    return ".".join(parts) or None
