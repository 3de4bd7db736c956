"""Settings of each storage backend: one struct a backend, read strictly, secrets marked.

A form, its help and its checks are made from these structs (`fields_of`); so is every refusal.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec

from engine.protocol import strict_json
from engine.protocol.storage import MAX_CONFIG_CHARS, StorageBackend

GIB = 1 << 30
MIB = 1 << 20
_QUOTED = re.compile(r"Invalid enum value .*?(?= - at|$)", re.DOTALL)
_SECRET = {"secret": True}
_PATH = {"path": True}
_ENDPOINT = {"endpoint": True}


def _meta(description: str, /, **more: Any) -> msgspec.Meta:  # Any: what msgspec.Meta takes
    return msgspec.Meta(description=description, **more)


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every backend may be told: when and how long a request waits for its pages."""

    prefetch_threshold: Annotated[
        int,
        _meta(
            "Look into storage for a prompt that lacks at least so many tokens, in whole pages.",
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    prefetch_timeout_base: Annotated[
        float, _meta("Seconds that a request waits with policy timeout.", ge=0, le=600)
    ] = 1.0
    prefetch_timeout_per_ki_token: Annotated[
        float, _meta("Further seconds for each 1,024 tokens.", ge=0, le=600)
    ] = 0.25
    prefetch_timeout_max: Annotated[
        float, _meta("Seconds after which no request waits on, whatever the policy.", gt=0, le=600)
    ] = 30.0
    hicache_storage_pass_prefix_keys: Annotated[
        bool, _meta("Tell the backend the keys of the pages before those it is asked for.")
    ] = False
    io_timeout: Annotated[
        float,
        _meta("Seconds after which a call that has not come back is given up.", gt=0, le=120),
    ] = 5.0


_Folder = Annotated[
    str,
    _meta(
        "Folder under an allowed storage root; empty: kv-storage in the first one.",
        max_length=4096,
        extra_json_schema=_PATH,
    ),
]


class FileConfig(StorageConfig, frozen=True, kw_only=True):
    """Packed segments in a folder."""

    file_storage_path: _Folder = ""
    max_size: Annotated[int, _meta("Bytes that each rank may keep.", ge=1 << 16, le=1 << 50)] = (
        8 * GIB
    )
    min_free_space: Annotated[
        int, _meta("Bytes of the disk that are left free.", ge=0, le=1 << 50)
    ] = GIB
    segment_size: Annotated[
        int, _meta("Bytes of one file; the oldest is evicted as a whole.", ge=1 << 16, le=64 * GIB)
    ] = 64 * MIB
    direct_io: Annotated[
        Literal["auto", "on", "off"],
        _meta("Bypass the page cache: where the disk allows it, always, or never."),
    ] = "auto"


class ValkeyConfig(StorageConfig, frozen=True, kw_only=True):
    """Valkey 7.2 or newer, Redis 6.2 or newer."""

    url: Annotated[
        str,
        _meta(
            "valkey://host:port/db, valkeys:// for TLS, unix:///socket?db=0. No password in it.",
            min_length=1,
            max_length=1024,
            pattern=r"^(valkeys?|rediss?|unix)://[^@\s]+$(?!\n)",
            extra_json_schema=_ENDPOINT,
        ),
    ]
    username: Annotated[str, _meta("ACL user.", max_length=256)] = ""
    password: Annotated[
        str, _meta("Kept by the engine only.", max_length=1024, extra_json_schema=_SECRET)
    ] = ""
    prefix: Annotated[
        str,
        _meta(
            "Keys begin with it. They also carry the fingerprint of model, weights and layout.",
            min_length=1,
            max_length=64,
            pattern=r"^[A-Za-z0-9:_.-]+$(?!\n)",
        ),
    ] = "quiesce"
    connect_timeout: Annotated[
        float, _meta("Seconds to connect, at attach and at each reconnect.", gt=0, le=60)
    ] = 1.0
    ttl: Annotated[int, _meta("Seconds until a page expires; 0: never.", ge=0, le=31_536_000)] = 0


class MooncakeConfig(StorageConfig, frozen=True, kw_only=True):
    """Mooncake store."""

    master_server_address: Annotated[
        str,
        _meta(
            "host:port of mooncake_master.",
            min_length=3,
            max_length=512,
            pattern=r"^[^\s/@]+:\d{1,5}$(?!\n)",
            extra_json_schema=_ENDPOINT,
        ),
    ]
    local_hostname: Annotated[
        str,
        _meta("How other clients reach this one; often one a rank.", min_length=1, max_length=256),
    ] = "127.0.0.1"
    metadata_server: Annotated[
        str,
        _meta(
            "P2PHANDSHAKE, or http://host:port/metadata.",
            min_length=1,
            max_length=512,
            extra_json_schema=_ENDPOINT,
        ),
    ] = "P2PHANDSHAKE"
    protocol: Annotated[Literal["tcp", "rdma"], _meta("Transport.")] = "tcp"
    device_name: Annotated[str, _meta("RDMA devices, by comma.", max_length=512)] = ""
    global_segment_size: Annotated[
        int, _meta("Bytes of memory that each rank gives to the store.", ge=0, le=1 << 46)
    ] = 512 * MIB
    local_buffer_size: Annotated[
        int, _meta("Bytes of the client's own transfer buffer.", ge=MIB, le=1 << 40)
    ] = 16 * MIB


class NixlConfig(StorageConfig, frozen=True, kw_only=True):
    """NIXL: files (POSIX) or an S3 bucket (OBJ)."""

    plugin: Annotated[Literal["POSIX", "OBJ"], _meta("Where pages go: files, or objects.")] = (
        "POSIX"
    )
    path: _Folder = ""
    posix_api: Annotated[
        Literal["auto", "uring", "aio", "posix_aio"],
        _meta("POSIX: how the kernel is asked; auto: the first of these that works here."),
    ] = "auto"
    use_direct_io: Annotated[bool, _meta("POSIX: bypass the page cache.")] = False
    min_free_space: Annotated[
        int, _meta("POSIX: bytes of the disk that are left free.", ge=0, le=1 << 50)
    ] = GIB
    bucket: Annotated[str, _meta("OBJ: bucket, 3 characters or more.", max_length=63)] = ""
    endpoint_override: Annotated[
        str,
        _meta(
            "OBJ: http(s)://host:port of the S3 server.",
            max_length=512,
            extra_json_schema=_ENDPOINT,
        ),
    ] = ""
    region: Annotated[str, _meta("OBJ: region.", max_length=64)] = "us-east-1"
    access_key: Annotated[
        str, _meta("OBJ: access key.", max_length=256, extra_json_schema=_SECRET)
    ] = ""
    secret_key: Annotated[
        str, _meta("OBJ: secret key.", max_length=256, extra_json_schema=_SECRET)
    ] = ""
    num_threads: Annotated[int, _meta("OBJ: threads of the S3 client.", ge=1, le=64)] = 4


class AibrixConfig(StorageConfig, frozen=True, kw_only=True):
    """AIBrix KVCache with an L2 on this machine."""

    l2_backend: Annotated[Literal["ROCKSDB", "SHFS"], _meta("What keeps the pages.")] = "ROCKSDB"
    path: _Folder = ""
    l1_capacity_gb: Annotated[
        float,
        _meta(
            "GiB of memory of AIBrix's own first level; 0: none, the host's is there.",
            ge=0,
            le=1024,
        ),
    ] = 0.0
    min_free_space: Annotated[
        int, _meta("Bytes of the disk that are left free.", ge=0, le=1 << 50)
    ] = GIB
    ttl: Annotated[int, _meta("ROCKSDB: seconds until a page expires.", ge=1, le=31_536_000)] = (
        86_400
    )


class Hf3fsConfig(StorageConfig, frozen=True, kw_only=True):
    """3FS through USRBIO."""

    file_path_prefix: Annotated[
        str,
        _meta(
            "Path on the 3FS mount; each rank has a file of its own beside it.",
            max_length=4096,
            extra_json_schema=_PATH,
        ),
    ] = ""
    file_size: Annotated[int, _meta("Bytes of each rank's file.", ge=1 << 16, le=1 << 50)] = 8 * GIB
    numjobs: Annotated[int, _meta("Clients a rank, each with its own rings.", ge=1, le=64)] = 2
    entries: Annotated[int, _meta("Pages that a ring takes at once.", ge=1, le=1024)] = 8
    client_timeout: Annotated[float, _meta("Seconds that a batch may take.", gt=0, le=120)] = 5.0


class EicConfig(StorageConfig, frozen=True, kw_only=True):
    """EIC of Volcengine."""

    remote_url: Annotated[
        str,
        _meta(
            "eic://host:port",
            min_length=1,
            max_length=512,
            pattern=r"^eic://[^@\s/]+:\d{1,5}$(?!\n)",
            extra_json_schema=_ENDPOINT,
        ),
    ]
    eic_instance_id: Annotated[str, _meta("Instance.", min_length=1, max_length=128)]
    eic_thread_num: Annotated[int, _meta("Threads of the client.", ge=1, le=64)] = 2
    eic_trans_type: Annotated[int, _meta("Transport number of the client.", ge=0, le=16)] = 3
    eic_namespace: Annotated[str, _meta("Namespace of the keys.", max_length=128)] = ""
    eic_kv_ttl: Annotated[
        int, _meta("Seconds until a page expires; 0: never.", ge=0, le=31_536_000)
    ] = 0
    eic_log_dir: _Folder = ""


CONFIGS: dict[StorageBackend, type[StorageConfig]] = {
    StorageBackend.FILE: FileConfig,
    StorageBackend.VALKEY: ValkeyConfig,
    StorageBackend.MOONCAKE: MooncakeConfig,
    StorageBackend.NIXL: NixlConfig,
    StorageBackend.AIBRIX: AibrixConfig,
    StorageBackend.HF3FS: Hf3fsConfig,
    StorageBackend.EIC: EicConfig,
}


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, for forms and help. `low` and `high` are inclusive bounds unless exclusive."""

    name: str
    kind: Literal["text", "secret", "path", "endpoint", "integer", "number", "flag", "choice"]
    help: str
    is_required: bool
    default: str | int | float | bool | None = None
    choices: list[str] = []
    low: float | None = None
    high: float | None = None
    is_low_exclusive: bool = False
    max_length: int | None = None
    pattern: str = ""
    is_common: bool = False  # every backend has it


def fields_of(backend: StorageBackend) -> list[Field]:
    """The settings of a backend, its own before those that all have."""
    config = CONFIGS[backend]
    schema = msgspec.json.schema(config)
    body = schema["$defs"][config.__name__]
    required = set(body.get("required", []))
    common = set(StorageConfig.__struct_fields__)
    found = [
        _field(name, part, is_required=name in required, is_common=name in common)
        for name, part in body["properties"].items()
    ]
    return sorted(found, key=lambda field: (field.is_common, not field.is_required))


def _field(name: str, part: dict[str, Any], *, is_required: bool, is_common: bool) -> Field:
    kind: Any = {"integer": "integer", "number": "number", "boolean": "flag"}.get(
        part.get("type", "string"), "text"
    )
    for mark in ("secret", "path", "endpoint"):
        if part.get(mark):
            kind = mark
    choices = list(part.get("enum", []))
    return Field(
        name=name,
        kind="choice" if choices else kind,
        help=part.get("description", ""),
        is_required=is_required,
        default=part.get("default"),
        choices=choices,
        low=part.get("minimum", part.get("exclusiveMinimum")),
        high=part.get("maximum"),
        is_low_exclusive="exclusiveMinimum" in part,
        max_length=part.get("maxLength"),
        pattern=part.get("pattern", ""),
        is_common=is_common,
    )


def secrets_of(backend: StorageBackend) -> frozenset[str]:
    """The settings whose values are never stored or shown."""
    return frozenset(field.name for field in fields_of(backend) if field.kind == "secret")


def read_object(text: str, what: str = "extra_config") -> dict[str, Any]:
    """A JSON object; nothing and null are an empty one. Raises ValueError, quoting no value."""
    if len(text) > MAX_CONFIG_CHARS:
        raise ValueError(f"{what} is longer than {MAX_CONFIG_CHARS} characters")
    if not text.strip():
        return {}
    try:
        document = strict_json.parse(text, constant=float)
    except ValueError as error:
        raise ValueError(f"{what} is no valid JSON: {_unquoted(error)}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"{what} must be a JSON object")
    for name, value in document.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{what}: {_shown(name)} must be a finite number")
    return document


def _shown(name: str) -> str:
    return repr(name[:64].encode("ascii", "backslashreplace").decode())


def _unquoted(error: ValueError) -> str:
    """What is wrong, without the text around it: that may be a secret."""
    message = getattr(error, "msg", None)  # of a json.JSONDecodeError, which quotes nothing
    if message is not None:
        return f"{message} at character {getattr(error, 'pos', 0)}"
    return str(error)


def read_config(backend: StorageBackend, document: dict[str, Any]) -> StorageConfig:
    """The settings. Raises ValueError that names the key, and never its value."""
    kind = CONFIGS[backend]
    unknown = sorted(set(document) - set(kind.__struct_fields__))
    if unknown:
        known = ", ".join(field.name for field in fields_of(backend))
        raise ValueError(f"{_shown(unknown[0])} is no setting of {backend}; it has {known}")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        text = str(error).replace("Object missing required field", f"{backend} needs the setting")
        text = _QUOTED.sub("a value that is none of its choices", text)
        raise ValueError(text.replace(" - at `$.", ": setting `")) from error
