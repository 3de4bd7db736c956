"""Stand-in for Volcengine's `eic`: the names that SGLang's adapter uses, on files of a folder.

The folder is EIC_FOLDER; without it no server is there. `faults` in it names calls that fail.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace


class StatusCode(IntEnum):
    SUCCESS = 0
    PARTIAL_FAILED = 1
    KEY_NOT_EXIST = 2
    FAILED = 3


class LogLevel(IntEnum):
    INFO = 2


class TransportType(IntEnum):
    TCP = 1
    RDMA = 3


class MemoryType(IntEnum):
    MEMORY_DEFAULT = 0
    MEMORY_CUDA = 1


class InitOption(SimpleNamespace):
    pass


class MemoryInfo(SimpleNamespace):
    pass


class _Option:
    def __init__(self) -> None:
        self.ns = ""
        self.ttl_second = -1


class SetOption(_Option):
    pass


class GetOption(_Option):
    pass


class ExistOption(_Option):
    pass


class DelOption(_Option):
    pass


class StringVector(list[str]):
    pass


class IOBuffers:
    def __init__(self) -> None:
        self.items: list[tuple[int, int]] = []

    def append(self, address: int, size: int, registered: bool) -> None:
        self.items.append((address, size))


class _Outcome:
    def __init__(self, codes: list[StatusCode]) -> None:
        self.status_codes = codes


def _whole(codes: list[StatusCode]) -> StatusCode:
    good = codes.count(StatusCode.SUCCESS)
    if good == len(codes):
        return StatusCode.SUCCESS
    return StatusCode.PARTIAL_FAILED if good else StatusCode.FAILED


class Client:
    def init(self, instance: str, endpoint: str, option: InitOption) -> int:
        self._folder = Path(os.environ.get("EIC_FOLDER", "/nowhere"))
        assert Path(option.log_dir).is_dir()
        return 0 if self._folder.is_dir() else -1

    def register_memory(self, buffers: IOBuffers, info: MemoryInfo) -> bool:
        return True

    def _fails(self, call: str) -> bool:
        faults = self._folder / "faults"
        return faults.exists() and call in faults.read_text()

    def _path(self, key: str, option: _Option) -> Path:
        return self._folder / f"{option.ns}@{key}"

    def mset(
        self, keys: StringVector, buffers: IOBuffers, option: SetOption
    ) -> tuple[StatusCode, _Outcome]:
        if self._fails("mset"):
            return StatusCode.FAILED, _Outcome([StatusCode.FAILED] * len(keys))
        for key, (address, size) in zip(keys, buffers.items, strict=True):
            path = self._path(key, option)
            temporary = path.with_name(secrets.token_hex(8))
            temporary.write_bytes(ctypes.string_at(address, size))
            temporary.rename(path)
        return StatusCode.SUCCESS, _Outcome([StatusCode.SUCCESS] * len(keys))

    def mget(
        self, keys: StringVector, option: GetOption, buffers: IOBuffers
    ) -> tuple[StatusCode, IOBuffers, _Outcome]:
        if self._fails("mget"):
            return StatusCode.FAILED, buffers, _Outcome([])
        codes = []
        for key, (address, size) in zip(keys, buffers.items, strict=True):
            path = self._path(key, option)
            if not path.exists():
                codes.append(StatusCode.KEY_NOT_EXIST)
                continue
            value = path.read_bytes()[:size]
            ctypes.memmove(address, value, len(value))
            codes.append(StatusCode.SUCCESS)
        return _whole(codes), buffers, _Outcome(codes)

    def mexist(self, keys: StringVector, option: ExistOption) -> tuple[StatusCode, _Outcome]:
        codes = [
            StatusCode.SUCCESS if self._path(key, option).exists() else StatusCode.KEY_NOT_EXIST
            for key in keys
        ]
        return _whole(codes), _Outcome(codes)

    def mdel(self, keys: StringVector, option: DelOption) -> tuple[StatusCode, _Outcome]:
        for key in keys:
            self._path(key, option).unlink(missing_ok=True)
        return StatusCode.SUCCESS, _Outcome([StatusCode.SUCCESS] * len(keys))
