"""How much of a GPU's memory may still be taken, and which GPU a rank has. Knows no model."""

from __future__ import annotations

import torch

_KV_SHARE = 0.4  # of what is free before weights are loaded: two copies of those fit beside it
_SPARE = 1.1  # asked for beyond the weights themselves: what torch holds back cannot all be used


def device_of_rank(kind: str, rank: int) -> str:
    """The rank's own GPU, as far as there are enough; they are dealt out in turns."""
    if kind != "cuda":
        return kind
    return f"cuda:{rank % int(torch.cuda.device_count())}"


def free_bytes(device: torch.device) -> int:
    """What the driver still has, and what torch holds of it and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + unused)


def default_kv_bytes(device: torch.device, num_ranks: int) -> int:
    """A rank's share of its GPU for pages, where no setting says how much."""
    ranks_here = -(-num_ranks // int(torch.cuda.device_count()))
    return int(free_bytes(device) * _KV_SHARE) // ranks_here


def refuse_without_room(device: torch.device, size_bytes: int) -> None:
    """Raise MemoryError, with the numbers, unless so much can be taken, and a little to spare."""
    free, needed = free_bytes(device), size_bytes * _SPARE
    if free < needed:
        raise MemoryError(
            f"not enough memory on {device}: {free / 1e9:.1f} GB are free, "
            f"{needed / 1e9:.1f} GB are needed"
        )
