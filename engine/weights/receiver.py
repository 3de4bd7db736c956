"""The process that stands in a trainer's group for one rank: joins, receives broadcasts, leaves.

gloo and nccl end their process when a peer sends what they do not expect. Here that ends no
request: the rank sees its receiver gone. Tensors go into a file that both have mapped; talk is one
JSON line each way. Run by engine.weights.receiver_client as `python -m engine receiver`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from engine.weights.expected import DTYPES


class Member:
    """One membership. Methods raise RuntimeError, ValueError or OSError with the peer's reason."""

    def __init__(self, said: dict[str, Any]) -> None:
        """Join as SGLang's trainers expect it: torch's own helper for a group beside the default
        one, over a store that only it uses."""
        self._device = "cuda" if said["backend"] == "nccl" else "cpu"
        ends = time.monotonic() + said["timeout_s"]
        store = dist.TCPStore(
            said["master_address"],
            said["master_port"],
            said["world_size"],
            is_master=False,
            timeout=timedelta(seconds=said["timeout_s"]),
            wait_for_workers=False,
        )
        left = timedelta(seconds=max(0.1, ends - time.monotonic()))
        store.set_timeout(left)
        prefixed = dist.PrefixStore(said["group_name"], store)
        prefixed.set_timeout(left)
        self._group, _ = c10d._new_process_group_helper(
            said["world_size"],
            said["rank"],
            [],
            dist.Backend(said["backend"]),
            prefixed,
            group_name=said["group_name"],
            timeout=left,
        )

    def receive(self, said: dict[str, Any]) -> None:
        """Broadcasts into the file, one tensor after another, or all as one run of bytes."""
        ends = time.monotonic() + said["timeout_s"]
        with Path(said["path"]).open("r+b") as file:
            data = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
            if said["is_flat"]:
                self._broadcast(data, ends)
                _tell({"done": len(data)})
            start = 0
            for dtype, shape in zip(said["dtypes"], said["shapes"], strict=True):
                if said["is_flat"]:
                    break
                kind = DTYPES[dtype]
                end = start + math.prod(shape) * kind.itemsize
                self._broadcast(data[start:end].view(kind), ends)
                start = end
                _tell({"done": end})

    def _broadcast(self, target: torch.Tensor, ends: float) -> None:
        left = timedelta(seconds=max(0.05, ends - time.monotonic()))
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, left
        tensor = target if self._device == "cpu" else target.to(self._device)
        self._group.broadcast([tensor], options).wait(left)
        if tensor is not target:
            target.copy_(tensor)


def _tell(said: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the rank is gone, and with it whoever wanted to know
        os._exit(1)


def _end_with(parent: int) -> None:
    """Not by PR_SET_PDEATHSIG: that is the end of the thread that started this process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Serve one rank until its end of the pipe closes."""
    torch.set_num_threads(1)
    os.nice(10)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    member: Member | None = None
    for line in sys.stdin:
        said = json.loads(line)
        try:
            if said["what"] == "join":
                member = Member(said)
            elif member is not None:
                member.receive(said)
        except (RuntimeError, ValueError, OSError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _tell({"error": first[:300]})
            break
        _tell({"ok": True})
    sys.stdout.flush()
    os._exit(0)  # a group that lost its peers may wait for them at its end
