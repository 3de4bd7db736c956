"""A Llama's layers in torch operators: any device, any CPU. The kernels are compared with these."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from numpy.typing import NDArray

from engine.kernels.paged_attention import (
    AttentionPlan,
    DecodeParts,
    ExtendPart,
    attend,
    store_kv,
)
from engine.memory.device_pool import DevicePool
from engine.models.config import ModelConfig
from engine.models.rope import rope_tables
from engine.models.step_inputs import StepInputs


class TorchOperators:
    """`Operators`."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        cos, sin = rope_tables(config, config.context_len)
        self._cos, self._sin = cos.to(device), sin.to(device)  # (context, D/2)

    def begin(self, inputs: StepInputs, pool: DevicePool) -> TorchStep:
        """Work out, once for all layers, where tokens lie and what they see."""
        pos = self._send(inputs.pos)
        plan = make_plan(inputs, pool.layout.page_size, self._device)
        angles = self._cos[pos][:, None], self._sin[pos][:, None]  # (T, 1, D/2) each
        ids, rows = self._send(inputs.ids), self._send(inputs.rows)
        return TorchStep(self._config, pool, plan, angles, ids, rows)

    def _send(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


class TorchStep:
    """`StepOperators`."""

    def __init__(
        self,
        config: ModelConfig,
        pool: DevicePool,
        plan: AttentionPlan,
        angles: tuple[torch.Tensor, torch.Tensor],
        ids: torch.Tensor,
        rows: torch.Tensor,
    ) -> None:
        self._config, self._pool, self._plan = config, pool, plan
        self._cos, self._sin = angles
        self.ids, self.rows = ids, rows

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        x = x.float()
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self._config.rms_norm_eps)
        return (x * scale * weight.float()).to(weight.dtype)

    def add_norm(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        x += y
        return self.norm(x, weight)

    def attend(
        self,
        qkv: torch.Tensor,
        layer: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
    ) -> torch.Tensor:
        """As the interface says."""
        config, pool = self._config, self._pool
        k_pool, v_pool = pool.k[layer], pool.v[layer]
        q, k, v = qkv.view(len(qkv), -1, config.head_dim).split(
            [config.num_heads, *[config.num_kv_heads] * 2], dim=1
        )
        if q_norm is not None and k_norm is not None:
            q, k = self.norm(q, q_norm), self.norm(k, k_norm)
        store_kv(rotate(k, self._cos, self._sin), v, k_pool, v_pool, self._plan)
        y = attend(rotate(q, self._cos, self._sin), k_pool, v_pool, self._plan)  # (T, H, D)
        return y.view(len(qkv), -1)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As the interface says."""
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate) * up


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x (T, heads, D) by fp32 tables (T, 1, D/2); returns x's dtype."""
    a, b = x.float().chunk(2, dim=-1)  # (T, heads, D/2) each
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def make_plan(inputs: StepInputs, page_size: int, device: torch.device) -> AttentionPlan:
    """Work out, once for all layers, where tokens lie and what they see."""
    lengths = np.diff(inputs.start)
    part_of = np.repeat(np.arange(len(lengths)), lengths)  # (T,)
    page_of = inputs.pages[inputs.first_page[part_of] + inputs.pos // page_size]
    extends = [_extend_part(inputs, int(r), page_size, device) for r in np.flatnonzero(lengths > 1)]
    ones = np.flatnonzero(lengths == 1)
    return AttentionPlan(
        page_of_token=torch.from_numpy(page_of.astype(np.int64)).to(device),
        slot_of_token=torch.from_numpy(inputs.pos % page_size).to(device),
        decodes=_decode_parts(inputs, ones, page_size, device) if len(ones) else None,
        extends=extends,
    )


def _extend_part(inputs: StepInputs, part: int, page_size: int, device: torch.device) -> ExtendPart:
    rows = slice(int(inputs.start[part]), int(inputs.start[part + 1]))
    context = int(inputs.pos[rows.stop - 1]) + 1
    first = inputs.first_page[part]
    pages = inputs.pages[first : first + -(-context // page_size)]
    pos = torch.from_numpy(inputs.pos[rows]).to(device)
    visible = torch.arange(context, device=device) <= pos[:, None]  # (tokens, context)
    return ExtendPart(rows, torch.from_numpy(pages.astype(np.int64)).to(device), visible)


def _decode_parts(
    inputs: StepInputs, parts: NDArray[np.int64], page_size: int, device: torch.device
) -> DecodeParts:
    rows = inputs.start[parts]
    pos = inputs.pos[rows]
    width = int(pos.max()) // page_size + 1
    # A short part's row is filled up with its own pages' neighbours; `visible` hides them.
    at = inputs.first_page[parts][:, None] + np.arange(width)  # (B, W)
    pages = inputs.pages[np.minimum(at, len(inputs.pages) - 1)].astype(np.int64)
    visible = np.arange(width * page_size) <= pos[:, None]  # (B, W * S)
    return DecodeParts(*(torch.from_numpy(array).to(device) for array in (rows, pages, visible)))
