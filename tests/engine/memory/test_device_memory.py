"""Which GPU a rank has, and what it takes there. What is free is asked on a card: gpu.sh."""

from __future__ import annotations

import pytest
import torch

from engine.memory import device_memory
from engine.memory.device_memory import (
    default_kv_bytes,
    device_of_rank,
    refuse_without_room,
)


def test_ranks_take_gpus_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_rank("cuda", rank) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_on_a_cpu_all_share_it() -> None:
    assert device_of_rank("cpu", 3) == "cpu"


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: 100_000)
    device = torch.device("cuda:0")
    assert default_kv_bytes(device, 2) == 40_000
    assert default_kv_bytes(device, 3) == 20_000


def test_weights_without_room_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_bytes", lambda device: 10_500_000_000)
    device = torch.device("cuda:1")
    refuse_without_room(device, 9_000_000_000)
    with pytest.raises(MemoryError, match=r"cuda:1: 10\.5 GB are free, 11\.0 GB are needed"):
        refuse_without_room(device, 10_000_000_000)
