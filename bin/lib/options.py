"""Options of bin/run: flags, each with a QUIESCE_* variable behind it. Standard library only.

A bad value is one sentence and exit status 2, before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

HOST_LAYOUTS = ("page_first", "layer_first", "page_first_direct", "page_head")


@dataclass(frozen=True)
class Options:
    """What a start was asked for, checked as far as that goes without installing anything."""

    port: int
    engine_port: int
    state_dir: Path
    dp_size: int
    model: Path | None
    device: str
    dtype: str
    weights_roots: tuple[Path, ...]  # empty: the folder that holds the model's
    storage_roots: tuple[Path, ...]
    storage_endpoints: tuple[str, ...]  # empty: this machine
    host_layout: str
    hicache_ratio: str
    has_engine: bool
    database_url: str
    redis_url: str


def fail(sentence: str, status: int = 2) -> NoReturn:
    """One sentence on standard error, and out."""
    print(f"quiesce: {sentence}", file=sys.stderr)
    sys.exit(status)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (bin/run --help lists the options)")


def _default(name: str, fallback: str) -> str:
    return os.environ.get(name, "").strip() or fallback


def read(arguments: list[str]) -> Options:
    """Options of this start. Exits with a sentence when one is wrong."""
    parser = _Parser(
        prog="bin/run",
        description="Start the engine and its console. DATABASE_URL and REDIS_URL choose an "
        "external PostgreSQL and Redis; without them both are embedded.",
    )
    add = parser.add_argument
    add("--port", default=_default("QUIESCE_PORT", "8000"), help="console (8000)")
    add("--engine-port", default=_default("QUIESCE_ENGINE_PORT", "30000"), help="engine (30000)")
    add("--state-dir", default=_default("QUIESCE_STATE_DIR", "var"), help="all state (var/)")
    add("--dp-size", default=_default("QUIESCE_DP_SIZE", "2"), help="data-parallel ranks (2)")
    add("--model", default=_default("QUIESCE_MODEL", ""), help="Hugging Face folder")
    add("--device", default=_default("QUIESCE_DEVICE", "cpu"), help="cpu | cuda")
    add("--dtype", default=_default("QUIESCE_DTYPE", "bfloat16"), help="bfloat16 | float32")
    add(
        "--weights-root",
        action="append",
        default=[root for root in _default("QUIESCE_WEIGHTS_ROOTS", "").split(os.pathsep) if root],
        help="folder under which weights may be loaded; repeatable (the model's parent)",
    )
    add(
        "--storage-root",
        action="append",
        default=[root for root in _default("QUIESCE_STORAGE_ROOTS", "").split(os.pathsep) if root],
        help="folder under which a KV storage backend may keep files; repeatable (the state "
        "folder)",
    )
    add(
        "--storage-endpoint",
        action="append",
        default=_default("QUIESCE_STORAGE_ENDPOINTS", "").split(),
        help="host:port, host:* or * that a KV storage backend may connect to; repeatable (this "
        "machine)",
    )
    add(
        "--hicache-mem-layout",
        default=_default("QUIESCE_HICACHE_MEM_LAYOUT", "page_first"),
        help=" | ".join(HOST_LAYOUTS),
    )
    add(
        "--hicache-ratio",
        default=_default("QUIESCE_HICACHE_RATIO", "2.0"),
        help="size of the KV tier on the host, as a multiple of the device's (2.0)",
    )
    add(
        "--no-engine",
        action="store_true",
        default=_default("QUIESCE_NO_ENGINE", "0").lower() in ("1", "true", "yes"),
        help="console only",
    )
    args = parser.parse_args(arguments)
    model = Path(args.model).expanduser().resolve() if args.model else None
    if model is not None and not (model / "config.json").is_file():
        fail(f"no model at {model}: it has no config.json")
    roots = tuple(Path(root).expanduser().resolve() for root in args.weights_root)
    for root in roots:
        if not root.is_dir():
            fail(f"no folder at {root}, named by --weights-root")
    storage = tuple(Path(root).expanduser().resolve() for root in args.storage_root)
    for root in storage:
        if not root.is_dir():
            fail(f"no folder at {root}, named by --storage-root")
    state_dir = Path(args.state_dir).expanduser().resolve()
    port, engine_port = _number("--port", args.port), _number("--engine-port", args.engine_port)
    if port == engine_port:
        fail(f"--port and --engine-port are both {port}")
    return Options(
        port=port,
        engine_port=engine_port,
        state_dir=state_dir,
        dp_size=_number("--dp-size", args.dp_size, 1, 64),
        model=model,
        device=_word("--device", args.device, ("cpu", "cuda")),
        dtype=_word("--dtype", args.dtype, ("bfloat16", "float32")),
        weights_roots=roots,
        storage_roots=storage or (state_dir,),
        storage_endpoints=tuple(args.storage_endpoint),
        host_layout=_word("--hicache-mem-layout", args.hicache_mem_layout, HOST_LAYOUTS),
        hicache_ratio=_ratio("--hicache-ratio", args.hicache_ratio),
        has_engine=not args.no_engine,
        database_url=_default("DATABASE_URL", ""),
        redis_url=_default("REDIS_URL", ""),
    )


def _number(flag: str, text: str, low: int = 1, high: int = 65535) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        fail(f"{flag} is {text!r}; it must be a whole number from {low} to {high}")
    return int(text)


def _ratio(flag: str, text: str) -> str:
    try:
        is_good = 0 < float(text) <= 1000
    except ValueError:
        is_good = False
    if not is_good:
        fail(f"{flag} is {text!r}; it must be a number above 0, at most 1000")
    return text


def _word(flag: str, text: str, words: tuple[str, ...]) -> str:
    if text not in words:
        fail(f"{flag} is {text!r}; it must be one of {', '.join(words)}")
    return text
