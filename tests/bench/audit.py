"""How long `bin/audit-verify` takes for a log of a million entries, beside reading and hashing it.

    python -m tests.bench.audit [--entries N]

The floor is what any check must do: read the file, parse each line and take one SHA-256 of each
body, by the same Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from console.chain import GENESIS, body_digest, entry_hash
from console.signing import Signer, line_of

VERIFY = Path(__file__).parents[2] / "bin" / "audit-verify"


def lines(count: int, key: Signer) -> Iterator[bytes]:
    """An export of `count` entries of the size that a job's steps have."""
    whole, head = hashlib.sha256(), GENESIS

    def counted(document: dict[str, object]) -> bytes:
        line = (line_of(document) + "\n").encode()
        whole.update(line)
        return line

    at = "2026-01-01T00:00:00.000000Z"
    header = {"export": 1, "first": 1, "before": head.hex(), "filter": "", "at": at, "by": "bench"}
    yield counted(header)
    for seq in range(1, count + 1):
        body = line_of(
            {
                "action": "job.succeeded", "actor": {"id": 1, "ip": "10.0.0.1", "name": "ana",
                "request": "3f2a" * 8, "token": "qsc_abcdefgh", "via": "api"}, "at": at,
                "engine": "qwen3-32b-a", "job": f"00000000-0000-7000-8000-{seq:012}",
                "object": "flush_cache on qwen3-32b-a", "stage": "outcome", "v": 1,
                "ranks": [{"dp_rank": r, "state": "succeeded", "message": ""} for r in range(4)],
            }
        )  # fmt: skip
        head = entry_hash(head, seq, body_digest(body))
        yield counted({"body": body, "hash": head.hex(), "seq": seq})
    record = {
        "closing": 1, "is_segment": False, "first": 1, "last": count, "head": head.hex(),
        "sha256": whole.hexdigest(), "at": at, "by": "bench",
    }  # fmt: skip
    yield (key.sign(record) + "\n").encode()


def floor_s(path: Path) -> float:
    """Reading, parsing and hashing, and nothing checked."""
    started = time.perf_counter()
    with path.open("rb") as file:
        for line in file:
            hashlib.sha256(json.loads(line).get("body", "").encode()).digest()
    return time.perf_counter() - started


def main() -> int:
    """Print seconds and their ratio; 1 when the export does not verify."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    count = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as folder:
        key_path, path = Path(folder) / "key.pem", Path(folder) / "export.jsonl"
        key_path.write_text(Signer.new().private_pem())
        key = Signer.read(key_path)
        public = Path(folder) / "key.pub"
        public.write_text(key.public_pem)
        with path.open("wb") as file:
            file.writelines(lines(count, key))
        size = path.stat().st_size
        floor = floor_s(path)
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-I", str(VERIFY), str(path), str(public)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        took = time.perf_counter() - started
    print(done.stdout, end="")
    print(
        f"{count:,} entries, {size / 1e6:.0f} MB: verified in {took:.1f} s, {count / took:,.0f}/s"
    )
    print(f"reading, parsing and one hash each: {floor:.1f} s; ratio {took / floor:.2f}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
