"""Request bodies, read strictly: JSON only, no duplicate keys, no NaN, bounded, typed.

A field that SGLang has and we do not implement is accepted at SGLang's default, which means "not
used", and refused by name otherwise; a field nobody knows is refused. One rule for every route.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from engine.frontend.http_errors import HTTPError
from engine.protocol import strict_json

MAX_BODY_BYTES = 32 << 20
BODY_S = 120.0
_T = TypeVar("_T")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*?)`")


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
        return strict_json.parse(body.decode())
    except ValueError as error:
        text = _shown(str(error))
        raise HTTPError(400, f"the body is no valid JSON: {text[:200]}") from error


def _shown(text: str) -> str:
    """A message that may quote the body, as text that can be sent."""
    return text.encode(errors="backslashreplace").decode()


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
