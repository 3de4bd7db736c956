"""A Llama's layers on Triton kernels: seven launches a layer, four of them matrix products.

Runs on a GPU; under Triton's interpreter, in tests, on a CPU too. Importing it imports triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.gpu.norms import add_norm
from engine.kernels.gpu.page_table import PageTable
from engine.kernels.gpu.paged_decode import attend_decodes, splits_for
from engine.kernels.gpu.paged_extend import Tiles, attend_extends, tile_shape
from engine.kernels.gpu.rotate_store import Rotary, rotate_store
from engine.kernels.gpu.silu_mul import silu_mul
from engine.memory.device_pool import DevicePool
from engine.models.config import ModelConfig
from engine.models.packed_inputs import (
    decode_rows,
    extend_tiles,
    first_page_of_token,
    pack,
    send,
)
from engine.models.rope import rope_tables
from engine.models.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Placed:
    """Tensors of one step, int32 on the device, and how its decodes are split."""

    ids: torch.Tensor  # (T,)
    rows: torch.Tensor  # (R,)
    table: PageTable
    decode_rows: torch.Tensor  # (B,)
    num_splits: int
    tiles: Tiles


class TritonOperators:
    """`Operators`."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        cos, sin = rope_tables(config, config.context_len)
        self._cos, self._sin = cos.to(device), sin.to(device)  # (context, D/2)
        self._processors = _processors(device)

    def begin(self, inputs: StepInputs, pool: DevicePool) -> TritonStep:
        """Send the step's numbers to the device."""
        shape = tile_shape(pool.layout.dtype, self._config.head_dim)
        alone, tiles = decode_rows(inputs), extend_tiles(inputs, shape.rows)
        numbers, places = pack(
            [
                *(inputs.ids, inputs.pos, first_page_of_token(inputs), inputs.rows),
                *(alone, *tiles, inputs.pages),
            ]
        )
        sent = send(numbers, self._device)
        ids, pos, first_page, rows, alone_there, row, stop, pages = (sent[p] for p in places)
        longest = int(inputs.pos[alone].max()) + 1 if len(alone) else 0
        return self.step(
            Placed(
                ids=ids,
                rows=rows,
                table=PageTable(pos, first_page, pages),
                decode_rows=alone_there,
                num_splits=self.num_splits(len(alone), longest),
                tiles=Tiles(row, stop, shape),
            ),
            pool,
        )

    def step(self, placed: Placed, pool: DevicePool) -> TritonStep:
        """The operators of a step whose numbers are there already."""
        return TritonStep(self._config, pool, placed, (self._cos, self._sin))

    def num_splits(self, requests: int, context_tokens: int) -> int:
        """Among how many programs each context of a decode is split."""
        return splits_for(requests, self._config.num_kv_heads, context_tokens, self._processors)


class TritonStep:
    """`StepOperators`."""

    def __init__(
        self,
        config: ModelConfig,
        pool: DevicePool,
        placed: Placed,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        self._eps, self._pool, self._placed = config.rms_norm_eps, pool, placed
        self._angles = angles
        self.ids, self.rows = placed.ids, placed.rows

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        return add_norm(x, None, weight, self._eps)

    def add_norm(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        return add_norm(x, y, weight, self._eps)

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> torch.Tensor:
        """As the interface says."""
        placed = self._placed
        k_pool, v_pool = self._pool.k[layer], self._pool.v[layer]
        rotary = Rotary(*self._angles, q_norm, k_norm, self._eps)
        q = rotate_store(qkv, k_pool, v_pool, placed.table, rotary)  # (T, H, D)
        out = torch.empty_like(q)
        attend_decodes(q, k_pool, v_pool, placed.table, placed.decode_rows, out, placed.num_splits)
        attend_extends(q, k_pool, v_pool, placed.table, placed.tiles, out)
        return out.view(len(qkv), -1)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        return silu_mul(gate_up)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
