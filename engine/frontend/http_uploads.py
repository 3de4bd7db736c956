"""Reads safetensors bytes of a request into files of an upload: a raw body, or a form's files.

Nothing is held in memory, and nothing stays of an upload that was not whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import MultipartParseError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from engine.frontend.http_errors import HTTPError
from engine.tensorfiles.errors import TensorFileError
from engine.tensorfiles.header import Entry, read_header
from engine.tensorfiles.text import plain

_CHUNK_BYTES = 1 << 20
_IDLE_S = 60.0  # a sender that is silent for so long has left
RAW = ("application/octet-stream", "application/x-safetensors")


async def receive(
    request: Request, folder: Path, first: int, max_bytes: int
) -> tuple[list[Path], dict[str, str]]:
    """Write the request's files into `folder`, numbered from `first` on; return them, and a form's
    other fields. Raises HTTPError: 400, 408, 413, or 507 where the disk has no room."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    written: list[Path] = []
    try:
        if media_type in RAW:
            written.append(folder / f"part-{first:05d}.safetensors")
            await _write(written[0], _bounded(request, max_bytes))
            return written, {}
        if media_type == "multipart/form-data":
            return await _form(request, folder, first, max_bytes, written)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise HTTPError(507, f"cannot keep the upload: {error.strerror}") from error
        raise
    raise HTTPError(415, f"send safetensors as {RAW[0]}, or as files of a multipart/form-data form")


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() and len(declared) < 19 else 0
    stream = request.stream()
    while True:
        if size > max_bytes:
            raise HTTPError(413, f"an update has at most {max_bytes} bytes")
        try:
            async with asyncio.timeout(_IDLE_S):
                chunk = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise HTTPError(408, f"nothing came for {_IDLE_S:.0f} s") from error
        if not declared:
            size += len(chunk)
        yield chunk


async def _form(
    request: Request, folder: Path, first: int, max_bytes: int, written: list[Path]
) -> tuple[list[Path], dict[str, str]]:
    """Starlette spools a form's files to the system's temporary folder; they are moved from it."""
    parser = MultiPartParser(
        request.headers, _bounded(request, max_bytes), max_files=1000, max_fields=50
    )
    try:
        form = await parser.parse()
    except (MultiPartException, MultipartParseError, KeyError) as error:
        raise HTTPError(400, f"the form cannot be read: {error}") from error
    fields: dict[str, str] = {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                path = folder / f"part-{first + len(written):05d}.safetensors"
                written.append(path)
                await asyncio.to_thread(_copy, value.file, path)
            elif name in fields:
                raise HTTPError(400, f"form field {name} is given twice", param=name)
            else:
                fields[name] = value
    finally:
        await form.close()
    if not written:
        raise HTTPError(400, "the form holds no file")
    return written, fields


def _copy(source: BinaryIO, path: Path) -> None:
    with path.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


async def _write(path: Path, chunks: AsyncGenerator[bytes, None]) -> None:
    with path.open("xb") as file:
        async for chunk in chunks:
            file.write(chunk)
        await asyncio.to_thread(_sync, file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def entries(paths: list[Path]) -> dict[str, Entry]:
    """The headers of files just written. Raises HTTPError for one that is no safetensors file."""
    found: dict[str, Entry] = {}
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            held = read_header(fd, "the upload")
        except TensorFileError as error:
            raise HTTPError(400, plain(str(error))) from error
        finally:
            os.close(fd)
        twice = sorted(held.keys() & found.keys())
        if twice:
            raise HTTPError(400, f"tensor {twice[0]} is sent twice", param=twice[0])
        found |= held
    return found
