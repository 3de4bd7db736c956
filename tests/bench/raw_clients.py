"""The same bytes through each medium's own client: what a backend of ours is measured beside.

Each takes batches of pages as the engine's threads make them, and returns seconds a turn: writes,
then reads. Nothing is checked but that all was kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # clients without types
from urllib.parse import urlsplit

from engine.cache.storage.addresses import addresses_in
from engine.memory.host_pool import HostPool
from engine.protocol.storage_configs import MooncakeConfig

BATCH = 32
Names = Sequence[str]
Call = Callable[[Names, list[memoryview]], None]
Client = tuple[Call, Call]  # put, get


@contextmanager
def _files(folder: Path, config: dict[str, Any], pool: HostPool) -> Iterator[Client]:
    """A file a page, through the page cache."""
    own = folder / "raw-files"
    own.mkdir()

    def put(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            (own / name).write_bytes(page)

    def get(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            with (own / name).open("rb", buffering=0) as file:
                assert file.readinto(page) == len(page)

    yield put, get


@contextmanager
def _redis(folder: Path, config: dict[str, Any], pool: HostPool) -> Iterator[Client]:
    """redis-py, pipelined."""
    import redis

    client = redis.Redis(host="127.0.0.1", port=urlsplit(config["url"]).port or 0, protocol=2)

    def put(names: Names, pages: list[memoryview]) -> None:
        pipe = client.pipeline(transaction=False)
        for name, page in zip(names, pages, strict=True):
            pipe.set(name, page)
        assert all(pipe.execute())

    def get(names: Names, pages: list[memoryview]) -> None:
        for found, page in zip(client.mget(names), pages, strict=True):
            page[:] = found

    yield put, get
    client.close()


@contextmanager
def _mooncake(folder: Path, config: dict[str, Any], pool: HostPool) -> Iterator[Client]:
    """The vendor's store, on registered memory."""
    from mooncake.store import MooncakeDistributedStore

    full = MooncakeConfig(**config)
    store: Any = MooncakeDistributedStore()
    code = store.setup(
        full.local_hostname, full.metadata_server, full.global_segment_size,
        full.local_buffer_size, full.protocol, full.device_name, full.master_server_address,
    )  # fmt: skip
    assert code == 0, code
    memory = memoryview(pool.memory)
    start = addresses_in(memory, [memory])[0]
    assert store.register_buffer(start, len(memory)) == 0

    def put(names: Names, pages: list[memoryview]) -> None:
        at = addresses_in(memory, pages)
        assert set(store.batch_put_from(list(names), at, [len(page) for page in pages])) == {0}

    def get(names: Names, pages: list[memoryview]) -> None:
        at, sizes = addresses_in(memory, pages), [len(page) for page in pages]
        assert store.batch_get_into(list(names), at, sizes) == sizes

    yield put, get
    store.unregister_buffer(start)
    store.close()


@contextmanager
def _s3(folder: Path, config: dict[str, Any], pool: HostPool) -> Iterator[Client]:
    """boto3, an object at a time."""
    import boto3

    client: Any = boto3.client(
        "s3",
        endpoint_url=config["endpoint_override"],
        aws_access_key_id=config["access_key"],
        aws_secret_access_key=config["secret_key"],
        region_name="us-east-1",
    )

    def put(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            client.put_object(Bucket=config["bucket"], Key=name, Body=bytes(page))

    def get(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            page[:] = client.get_object(Bucket=config["bucket"], Key=name)["Body"].read()

    yield put, get


@contextmanager
def _rocksdb(folder: Path, config: dict[str, Any], pool: HostPool) -> Iterator[Client]:
    """RocksDB through the package that aibrix uses."""
    import rocksdict

    path = str(folder / "raw-rocksdb")
    database: Any = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True))

    def put(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            database[name.encode()] = bytes(page)

    def get(names: Names, pages: list[memoryview]) -> None:
        for name, page in zip(names, pages, strict=True):
            page[:] = database[name.encode()]

    yield put, get
    database.close()


# By the bench's names; "file" is measured beside its disk with O_DIRECT.
CLIENTS = {
    "file, O_DIRECT off": ("a file a page", _files),
    "valkey, tcp": ("redis-py", _redis),
    "mooncake, tcp": ("its own store", _mooncake),
    "nixl, POSIX": ("a file a page", _files),
    "nixl, OBJ (moto)": ("boto3", _s3),
    "aibrix, RocksDB": ("rocksdict", _rocksdb),
}


def raw_client(
    name: str, folder: Path, config: dict[str, Any], pool: HostPool, pages: int, reps: int
) -> tuple[str, list[float], list[float]]:
    """(what it is, writes, reads) of the client beside this backend."""
    words, made = CLIENTS[name]
    own = folder / f"raw-{os.urandom(4).hex()}"
    own.mkdir()
    writes: list[float] = []
    reads: list[float] = []
    with made(own, config, pool) as (put, get):
        for turn in range(reps + 1):
            names = [os.urandom(24).hex() for _ in range(pages)]
            spans = [_seconds(put, names, pool, 0), _seconds(get, names, pool, pages)]
            if turn:
                writes.append(spans[0])
                reads.append(spans[1])
    return words, writes, reads


def _seconds(call: Call, names: Names, pool: HostPool, at: int) -> float:
    start = time.perf_counter()
    for first in range(0, len(names), BATCH):
        some = names[first : first + BATCH]
        call(some, [pool.record(at + first + i) for i in range(len(some))])
    return time.perf_counter() - start
