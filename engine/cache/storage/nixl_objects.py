"""Pages as objects of an S3 bucket, by NIXL's OBJ plugin: `quiesce/<identity>/<key>`.

NIXL can neither list nor delete objects, and never says why something failed; boto3 does, and is
imported only then. An object that is shorter than a page is read without an error, so the end of a
page is marked before it is read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from engine.cache.storage import allowed
from engine.cache.storage.base import Site, Status, StorageError
from engine.cache.storage.nixl_transfer import Agent, TransferError
from engine.protocol.storage_configs import NixlConfig

_MARK_BYTES = 16
_MANY = 1000  # of one request to delete; what S3 allows
_PORTS = {"http": 80, "https": 443}


class NixlObjects:
    """Objects under one prefix, shared by all ranks."""

    def __init__(self, config: NixlConfig, site: Site) -> None:
        self._config, self._site = config, site
        self._prefix = f"quiesce/{site.identity.hex()}/"
        self._reads: Agent | None = None
        self._writes: Agent | None = None
        self._client: Any = None  # Any: boto3 makes its clients' types while it runs

    def open(self, deadline: float) -> None:
        if len(self._config.bucket) < 3:
            raise StorageError("bucket has 3 characters or more")
        url = self._endpoint()
        self._reads = Agent("OBJ", self._params(url), self._site.pool)
        self._writes = Agent("OBJ", self._params(url), self._site.pool)
        page = self._site.pool[: self._site.record_bytes]
        name = f"{self._prefix}probe-{self._site.dp_rank}"
        limit_s = max(0.1, min(self._config.io_timeout, (deadline - time.monotonic()) / 2))
        try:
            self._writes.move("WRITE", [name], [page], limit_s)
            self._reads.move("READ", [name], [page], limit_s)
        except (TransferError, TimeoutError) as error:
            where = f"{url.hostname}:{url.port or _PORTS[url.scheme]}"
            reason = self._reason(limit_s) or str(error)
            raise StorageError(f"bucket at {where} cannot be used: {reason}") from error

    def _endpoint(self) -> SplitResult:
        text = self._config.endpoint_override
        try:
            url = urlsplit(text or f"https://s3.{self._config.region}.amazonaws.com")
            if url.scheme not in _PORTS or not url.hostname or url.username is not None:
                raise ValueError("no address")
            allowed.endpoint(
                self._site, url.hostname, url.port or _PORTS[url.scheme], "endpoint_override"
            )
        except ValueError as error:
            raise StorageError("endpoint_override is not http(s)://host:port") from error
        return url

    def _params(self, url: SplitResult) -> dict[str, str]:
        config = self._config
        params = {
            "bucket": config.bucket,
            "scheme": url.scheme,
            "region": config.region,
            "use_virtual_addressing": "false",
            "num_threads": str(config.num_threads),
            "req_checksum": "required",
        }
        if config.endpoint_override:
            params["endpoint_override"] = config.endpoint_override
        if config.access_key:
            params |= {"access_key": config.access_key, "secret_key": config.secret_key}
        return params

    def _reason(self, limit_s: float) -> str:
        """Why the bucket cannot be used, as far as S3 says so."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._s3(limit_s).head_bucket(Bucket=self._config.bucket)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            return {"404": "there is no such bucket", "403": "access is denied"}.get(code, code)
        except BotoCoreError as error:
            return type(error).__name__
        return ""

    def _s3(self, limit_s: float) -> Any:
        """A client that can list and delete. Raises StorageError without boto3."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise StorageError("objects are deleted with boto3: install quiesce[nixl]") from error
        if self._client is None:
            config = self._config
            self._client = boto3.client(
                "s3",
                endpoint_url=config.endpoint_override or None,
                region_name=config.region,
                aws_access_key_id=config.access_key or None,
                aws_secret_access_key=config.secret_key or None,
                config=Config(
                    connect_timeout=limit_s,
                    read_timeout=limit_s,
                    retries={"max_attempts": 1},
                    s3={"addressing_style": "path"},
                ),
            )
        return self._client

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [self._prefix + key.hex() for key in keys]

    def exist(self, keys: Sequence[bytes]) -> list[bool]:
        assert self._reads is not None, "exist before open"
        return self._reads.are_there(self._names(keys))

    def get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> list[Status]:
        assert self._reads is not None, "get before open"
        names, mark = self._names(keys), secrets.token_bytes(_MARK_BYTES)
        for buffer in buffers:
            buffer[-_MARK_BYTES:] = mark
        statuses = [Status.OK] * len(keys)
        try:
            self._reads.move("READ", names, buffers, self._config.io_timeout)
        except TransferError:
            # One that is missing fails its batch: ask which are there, and read those alone.
            statuses = self._get_singly(names, buffers)
        return [
            Status.MISS if status == Status.OK and buffer[-_MARK_BYTES:] == mark else status
            for buffer, status in zip(buffers, statuses, strict=True)
        ]

    def _get_singly(self, names: Sequence[str], buffers: Sequence[memoryview]) -> list[Status]:
        assert self._reads is not None, "get before open"
        statuses = [Status.MISS] * len(names)
        there = [i for i, found in enumerate(self._reads.are_there(names)) if found]
        parts = [there] if len(there) < len(names) else [[i] for i in there]
        while parts:
            part = parts.pop()
            if self._read(part, names, buffers):
                for i in part:
                    statuses[i] = Status.OK
            elif len(part) > 1:
                parts = [[i] for i in part]
            else:
                statuses[part[0]] = Status.ERROR
        return statuses

    def _read(
        self, part: Sequence[int], names: Sequence[str], buffers: Sequence[memoryview]
    ) -> bool:
        assert self._reads is not None, "get before open"
        pages = [buffers[i] for i in part]
        try:
            if part:
                self._reads.move("READ", [names[i] for i in part], pages, self._config.io_timeout)
        except TransferError:
            return False
        return True

    def put(self, keys: Sequence[bytes], records: Sequence[memoryview]) -> list[Status]:
        assert self._writes is not None, "put before open"
        names, limit_s = self._names(keys), self._config.io_timeout
        try:
            self._writes.move("WRITE", names, records, limit_s)
        except TransferError:
            statuses = []
            for name, record in zip(names, records, strict=True):
                try:
                    self._writes.move("WRITE", [name], [record], limit_s)
                except TransferError:
                    statuses.append(Status.ERROR)
                else:
                    statuses.append(Status.OK)
            return statuses
        return [Status.OK] * len(keys)

    def delete(self, keys: Sequence[bytes]) -> None:
        self._delete(self._names(keys))

    def _delete(self, names: Sequence[str]) -> None:
        client = self._s3(self._config.io_timeout)
        for start in range(0, len(names), _MANY):
            objects = [{"Key": name} for name in names[start : start + _MANY]]
            client.delete_objects(
                Bucket=self._config.bucket, Delete={"Objects": objects, "Quiet": True}
            )

    def clear(self, deadline: float) -> int:
        from botocore.exceptions import BotoCoreError, ClientError

        gone = 0
        try:
            pages = self._s3(self._config.io_timeout).get_paginator("list_objects_v2")
            for found in pages.paginate(Bucket=self._config.bucket, Prefix=self._prefix):
                if time.monotonic() > deadline:
                    raise StorageError(f"{gone} pages were cleared, then the time was over")
                names = [item["Key"] for item in found.get("Contents", [])]
                self._delete(names)
                gone += sum("/probe-" not in name for name in names)
        except (BotoCoreError, ClientError) as error:
            raise StorageError(
                f"{gone} pages were cleared, then: {type(error).__name__}"
            ) from error
        return gone

    def close(self) -> None:
        self._reads = self._writes = None
        if self._client is not None:
            self._client.close()
            self._client = None
