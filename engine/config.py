"""Settings of the engine: frozen, checked once when built, passed as one JSON file to each process.

Knows no tensor library; `launch` makes one from the command line and every child reads it.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.protocol import CachePolicies, HostLayout

Positive = Annotated[int, msgspec.Meta(gt=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


# Exit status of a child that would fail the same way again: its model cannot be used.
CANNOT_START = 78


class OperationTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants of operation-protocol.md § 2, in seconds."""

    heartbeat_s: float = 0.5
    margin_s: float = 0.5
    budget_s: float = 5.0  # for one commit, or one undo
    resend_s: float = 0.5
    online_s: float = 3.0  # a report older than this no longer proves anything
    silent_s: float = 10.0  # a rank of a waiting operation that is not heard for so long ends it
    open_s: float = 30.0  # for opening and probing a storage backend on every rank, likewise
    stage_s: float = 600.0  # for staging weights on every rank, before the caller's deadline counts

    @property
    def grace_s(self) -> float:
        """From the deadline to the end of a lease: a commit and an undo fit."""
        return 2 * self.budget_s + 2 * self.margin_s


class ConfigError(ValueError):
    """A setting is wrong; the sentence names it."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the processes of one engine agree on."""

    model_path: str
    run_dir: str  # sockets and logs of this engine; 0700
    journal_path: str
    ext_cache_dir: str  # compiled CPU kernels
    weights_dir: str  # weights that were pushed: uploads, and what a trainer sent
    weights_roots: tuple[str, ...] = ()  # folders under which weights may be loaded from disk
    weight_version: str = "default"  # of the weights that it is started with
    forget_weights: bool = False  # serve those, not what was pushed before this start
    max_upload_bytes: Positive = 64 << 30  # of one weight update
    launch: str = ""  # names this start of the whole engine
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: Port = 30000
    dp_size: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    page_size: Literal[1, 4, 16, 32, 64] = 16
    hierarchical: bool = False  # an L2 on the host, and below it what is attached
    hicache_ratio: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 2.0  # host pool ÷ device pool
    hicache_size_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0  # of one rank; 0 = by the ratio
    host_layout: HostLayout = HostLayout.PAGE_FIRST
    policies: CachePolicies = CachePolicies()  # at the first start; an operation changes them
    storage_dir: str = ""  # settings of attached backends, secrets and all
    storage_roots: tuple[str, ...] = ()  # folders under which a backend may keep files
    storage_endpoints: tuple[str, ...] = ()  # host:port, host:* or *: what it may connect to
    max_total_tokens: int = 0  # of one rank's device pool; 0 = from memory
    kv_bytes: int = 0  # of one rank's device pool when max_total_tokens is 0; 0 = a share of memory
    chunked_prefill_tokens: Positive = 512
    max_running_requests: Positive = 64
    max_queued_requests: Positive = 1024
    max_held_requests: Positive = 1024
    context_len: int = 0  # 0 = the model's
    threads: int = 0  # per rank; 0 = cores ÷ ranks
    http_url: str = ""  # where others reach host and port, if those do not tell
    control_tcp: str = ""  # tcp://IP:PORT where the console connects; empty = a socket in run_dir
    events_tcp: str = ""  # where the event stream is published, likewise
    curve_key: str = ""  # file of the engine's secret key: needed for tcp
    authorized_keys: str = ""  # file of the consoles' public keys, likewise
    api_key: str = ""
    admin_api_key: str = ""
    cors_origins: tuple[str, ...] = ()
    effect_log: str = ""  # file that every rank notes its effects in; empty: none
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    poison_freed_pages: bool = False  # tests: a read of a freed page gives NaN
    times: OperationTimes = OperationTimes()

    @property
    def model_name(self) -> str:
        """What /v1/models lists."""
        return self.served_model_name or self.model_path

    @property
    def control_address(self) -> str:
        """Where the console connects."""
        return self.control_tcp or f"ipc://{self.run_dir}/control.sock"

    @property
    def events_address(self) -> str:
        """Where the event stream is published."""
        return self.events_tcp or f"ipc://{self.run_dir}/events.sock"

    @property
    def is_tcp(self) -> bool:
        """Whether a socket for the console is bound to a network address."""
        return bool(self.control_tcp or self.events_tcp)

    @property
    def ranks_address(self) -> str:
        """Private: ranks connect here."""
        return f"ipc://{self.run_dir}/ranks.sock"

    @property
    def launch_address(self) -> str:
        """Private: the frontend connects to `launch` here."""
        return f"ipc://{self.run_dir}/launch.sock"


# A unix socket path longer than this cannot be bound (sun_path, with room for the name).
_MAX_RUN_DIR = 80


def check(config: EngineConfig) -> EngineConfig:
    """The same config, or ConfigError with one sentence."""
    if not (Path(config.model_path) / "config.json").is_file():
        raise ConfigError(f"no model at {config.model_path}: it has no config.json")
    if len(config.run_dir) > _MAX_RUN_DIR:
        raise ConfigError(
            f"run folder {config.run_dir} is {len(config.run_dir)} characters long; a socket path "
            f"allows {_MAX_RUN_DIR}"
        )
    if config.max_total_tokens < 0 or config.kv_bytes < 0 or config.context_len < 0:
        raise ConfigError("max_total_tokens, kv_bytes and context_len must be 0 or positive")
    if 0 < config.max_total_tokens < config.page_size:
        raise ConfigError(f"max_total_tokens {config.max_total_tokens} is less than one page")
    for flag, address in (
        ("--control-address", config.control_tcp),
        ("--events-address", config.events_tcp),
    ):
        if address and not _is_tcp_address(address):
            raise ConfigError(
                f"{flag} is {address!r}; it must be tcp://IP:PORT, with an address of this machine"
            )
    if config.is_tcp and config.control_tcp == config.events_tcp:
        raise ConfigError("--control-address and --events-address must differ")
    return config


def _is_tcp_address(text: str) -> bool:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not text.startswith("tcp://") or not (port.isascii() and port.isdigit()):
        return False
    try:
        number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    is_bracketed = host.startswith("[") and host.endswith("]")
    return (number.version == 6) == is_bracketed and 1 <= int(port) <= 65535


def read(path: str) -> EngineConfig:
    """The config that `launch` wrote. Raises ConfigError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=EngineConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read engine config {path}: {error}") from error


def write(config: EngineConfig, path: str) -> None:
    """Write for the children, readable by the owner only (it holds keys)."""
    target = Path(path)
    target.touch(mode=0o600)
    target.write_bytes(msgspec.json.encode(config))
