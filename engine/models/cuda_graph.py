"""Records CUDA graphs, with torch's own means; all graphs of one recorder share their memory.

They may, because they are replayed one after another, and what one has computed is read before the
next is launched. Other threads go on meanwhile: staging copies weights, the host tier copies pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.log import get_logger

log = get_logger()


class CudaRecorder:
    """A `Recorder` for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)
        self._pool: Any = None  # torch's handle of the memory that is shared

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Run `call` once, so that kernels are compiled and libraries set up; then record it."""
        current = torch.cuda.current_stream(self._device)
        beside = self._beside
        beside.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        reserved = torch.cuda.memory_reserved(self._device)
        with torch.cuda.stream(beside):
            call()
            beside.synchronize()
            # "thread_local": only this thread must not do what cannot be recorded. torch's own
            # context manager would empty the allocator's cache first, which takes tens of ms.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = call()
            finally:
                graph.capture_end()
        current.wait_stream(beside)
        self._pool = graph.pool()
        taken = torch.cuda.memory_reserved(self._device) - reserved
        log.debug("cuda graph recorded", device_bytes=taken)
        return graph.replay, result
