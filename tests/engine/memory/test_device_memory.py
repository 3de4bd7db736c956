"""Which GPU a rank has. What a GPU has free is asked on a card: tests/bench/gpu.sh."""

from __future__ import annotations

import pytest
import torch

from engine.memory.device_memory import device_of_rank


def test_ranks_take_gpus_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_rank("cuda", rank) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_on_a_cpu_all_share_it() -> None:
    assert device_of_rank("cpu", 3) == "cpu"
