"""Llama and Qwen on a GPU: the layers of `LlamaTorch` on Triton kernels, decode steps as graphs.

Importing it imports triton. The registry chooses it, the runner calls it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.gpu.page_table import PageTable
from engine.kernels.gpu.paged_extend import Tiles, tile_shape
from engine.memory.device_memory import refuse_without_room
from engine.memory.device_pool import DevicePool
from engine.models.base import TensorSource
from engine.models.config import ModelConfig
from engine.models.cuda_graph import CudaRecorder
from engine.models.decode_graphs import DecodeGraphs, DecodeNumbers, Recorder
from engine.models.llama import weights_bytes
from engine.models.llama_torch import LlamaTorch
from engine.models.operators_triton import Placed, TritonOperators
from engine.models.step_inputs import StepInputs


class LlamaGPU:
    """A `StepModel`. Its graphs are its own: a model that is swapped out and in again, over the
    same pool, finds them as they were."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        page_size: int,
        device: torch.device,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare for weights on `device`. CUDA graphs unless another recorder is given."""
        operators = TritonOperators(config, device)
        self._layers = LlamaTorch(config, dtype, page_size, device, operators)
        self._decode = _DecodeStep(self._layers, operators, config.context_len)
        self._graphs = DecodeGraphs(self._decode, recorder or CudaRecorder(device), device)
        self._device = device
        self._weights_bytes = weights_bytes(config, dtype)
        self.kv_layout = self._layers.kv_layout

    @property
    def recorded(self) -> list[int]:
        """Batch sizes whose decode step is recorded."""
        return self._graphs.recorded

    def load(self, source: TensorSource) -> None:
        """Take the weights, on a stream of its own: steps of a model that serves do not wait.

        On a GPU the kernels are compiled, too, if this is the process's first model. Raises
        MemoryError where the device has no room beside what it holds.
        """
        self._graphs.forget()
        if self._device.type != "cuda":
            self._layers.load(source)
            return
        refuse_without_room(self._device, self._weights_bytes)
        beside = torch.cuda.Stream(self._device)
        with torch.cuda.stream(beside):
            self._layers.load(source)
            self.compile_kernels()
        beside.synchronize()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor under its name, on the CPU, from what is computed with."""
        return self._layers.tensors()

    def bind(self, pool: DevicePool) -> None:
        """Use `pool` from now on; graphs over another one are forgotten."""
        if not self._layers.is_bound_to(pool):
            self._graphs.forget()
        self._layers.bind(pool)

    def unbind(self) -> None:
        """Let go of the pool, and of the graphs, which hold its addresses."""
        self._graphs.forget()
        self._layers.unbind()

    def compile_kernels(self) -> None:
        """Compile, and load, every kernel that a step may need, so that no request waits for it:
        over a pool of one page, with tokens that only pad. Needs weights and no pool."""
        pool = DevicePool(self.kv_layout, self._decode.num_layers, 1, self._device)
        with torch.inference_mode():
            for num_splits in (1, 2):
                self._layers.choose(self._decode.padding(pool, num_splits))

    def greedy(self, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the most likely token of each row (R,), and whether its logits are finite."""
        bucket = self._graphs.bucket_of(inputs)
        chosen = None if bucket is None else self._graphs.greedy(inputs, bucket)
        if chosen is not None:
            return chosen[0], chosen[1].astype(np.bool_)
        found = self._layers.greedy(inputs)
        if not len(inputs.rows) and self._device.type == "cuda":
            # Nothing was fetched, so nothing was waited for; but pages that are copied next, or
            # weights that are dropped, must not be in use any more when this returns.
            torch.cuda.synchronize(self._device)
        return found

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Return the rows' state after the last norm (R, hidden)."""
        bucket = self._graphs.bucket_of(inputs)
        hidden = None if bucket is None else self._graphs.hidden(inputs, bucket)
        return self._layers.hidden(inputs) if hidden is None else hidden

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Return fp32 logits (R, V), and which rows are all finite."""
        return self._layers.logits(hidden)


class _DecodeStep:
    """A `GraphModel`. Does not know the graphs: a cycle would keep weights beyond their time."""

    def __init__(self, layers: LlamaTorch, operators: TritonOperators, context_tokens: int) -> None:
        self._layers, self._operators = layers, operators
        self._context_tokens = context_tokens

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return self._layers.num_layers

    def decode_hidden(self, numbers: DecodeNumbers) -> torch.Tensor:
        """As the interface says. Splits for the longest context: a graph serves every length."""
        splits = self._operators.num_splits(len(numbers.ids), self._context_tokens)
        return self._trunk(numbers, splits, self._layers.pool)

    def choose(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        return self._layers.choose(hidden)

    def padding(self, pool: DevicePool, num_splits: int) -> torch.Tensor:
        """Run a step of one token that only pads; return (1, hidden)."""
        zero = torch.zeros(1, dtype=torch.int32, device=self._layers.device)
        numbers = DecodeNumbers(zero, zero, PageTable(zero - 1, zero, zero))
        return self._trunk(numbers, num_splits, pool, tiles=zero)

    def _trunk(
        self,
        numbers: DecodeNumbers,
        num_splits: int,
        pool: DevicePool,
        tiles: torch.Tensor | None = None,
    ) -> torch.Tensor:
        layout = self._layers.kv_layout
        none = numbers.ids[:0] if tiles is None else tiles
        placed = Placed(
            ids=numbers.ids,
            rows=numbers.rows,
            table=numbers.table,
            decode_rows=numbers.rows,
            num_splits=num_splits,
            tiles=Tiles(none, none, tile_shape(layout.dtype, layout.head_dim)),
        )
        return self._layers.trunk(self._operators.step(placed, pool))
