"""A trainer as a process of its own: joins the engine's group as rank 0 and broadcasts tensors.

Run as `python trainer.py MASTER_PORT WORLD_SIZE SEED PLAN`; reads nothing of the engine. PLAN is
`all`, `flat`, `flat:SIZE` (buckets of so many tensors), `wide` (in float32, whatever was said),
`die:N` (when a line comes, it SIGKILLs itself after N tensors), `stop:N` (lives on, sends no more
after N) or `wait` (joins and sends when a line comes).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.engine.weights.checkpoints import weights_of

NAME = "weight_update_group"


def join(port: int, world: int) -> object:
    """As SGLang's trainers do it: a store of its own, and a group beside the default one."""
    timeout = timedelta(seconds=30)
    store = dist.TCPStore("127.0.0.1", port, world, is_master=True, timeout=timeout,
                          wait_for_workers=False)  # fmt: skip
    group, _ = c10d._new_process_group_helper(
        world, 0, [], dist.Backend("gloo"), dist.PrefixStore(NAME, store), group_name=NAME,
        timeout=timeout,
    )  # fmt: skip
    c10d._world.pg_group_ranks[group] = {i: i for i in range(world)}
    return group


def main(port: int, world: int, seed: int, plan: str) -> None:
    torch.set_num_threads(1)
    tensors = weights_of(seed)
    names = sorted(tensors)
    group = join(port, world)
    print("joined", flush=True)
    what, _, count = plan.partition(":")
    if what == "flat":
        size = int(count or len(names))
        for first in range(0, len(names), size):
            some = [tensors[n].contiguous().flatten() for n in names[first : first + size]]
            flat = torch.cat([t.view(torch.uint8) for t in some])
            sys.stdin.readline()
            group.broadcast(flat, 0).wait()  # type: ignore[attr-defined]
    else:
        if what in ("wait", "die"):
            sys.stdin.readline()
        for done, name in enumerate(names):
            if what in ("die", "stop") and done == int(count):
                if what == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(600)
            tensor = tensors[name].float() if what == "wide" else tensors[name]
            group.broadcast(tensor.contiguous(), 0).wait()  # type: ignore[attr-defined]
    print("sent", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
