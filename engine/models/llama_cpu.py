"""Llama through the compiled CPU library: a whole step is one call.

Owns the packed weights and the library's handle. Sums are added in a fixed order per token, so a
request's results are the same bits alone, in a batch, in chunks or behind a shared prefix.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.cpu.library import CLayer, CPULibrary, CShape, CStep, CTables, CTokens
from engine.kernels.cpu.team_size import TeamSize
from engine.memory.device_pool import DevicePool
from engine.memory.host_arena import HostArena
from engine.memory.kv_layout import KVLayout
from engine.models.base import TensorSource
from engine.models.config import ModelConfig
from engine.models.llama import (
    LayerWeights,
    TopWeights,
    layer_weights,
    named_layer,
    named_top,
    top_weights,
)
from engine.models.rope import rope_tables
from engine.models.step_inputs import StepInputs

OPTIONAL = ("qkv_bias", "q_norm", "k_norm")  # None in most models
# CLayer's, in its order.
TENSORS = ("norm1", "qkv", "o", "norm2", "gate_up", "down", *OPTIONAL)
MAX_HEADS_PER_KV_HEAD = 12  # MAX_ROWS of attention.h
WEIGHT_SLAB_BYTES = 64 << 20


def why_unsupported(config: ModelConfig) -> str | None:
    """Return what about the model the library cannot do, or None."""
    if config.hidden_size % 16 or config.ffn_size % 16:
        return f"hidden {config.hidden_size} or ffn {config.ffn_size} is no multiple of 16"
    if config.num_heads // config.num_kv_heads > MAX_HEADS_PER_KV_HEAD:
        return f"{config.num_heads} heads share {config.num_kv_heads} kv heads"
    return None


class LlamaCPU:
    """A `StepModel`."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, page_size: int, library: CPULibrary
    ) -> None:
        """Take a library that was compiled for `dtype`, `page_size` and the model's head_dim."""
        self._config = config
        self._dtype = dtype
        self.library = library
        self.kv_layout = KVLayout(
            config.num_kv_heads, config.head_dim, page_size, dtype, is_interleaved=True
        )
        self._rope = rope_tables(config, config.context_len)
        self._arena = HostArena(WEIGHT_SLAB_BYTES)
        self._top: TopWeights | None = None
        self._layers: list[LayerWeights] = []
        self._pool: DevicePool | None = None
        self._handle: int | None = None
        self._team = TeamSize()

    def load(self, source: TensorSource) -> None:
        """Pack the weights; over the present ones if there are, so that pointers stay valid."""
        top = top_weights(source, self._config, self._dtype)
        if self._top is None:
            self._top = TopWeights(
                self._like(top.embed), self._like(top.norm), self._packed_like(top.head)
            )
        self._top.embed.copy_(top.embed)
        self._top.norm.copy_(top.norm)
        self.library.pack(top.head, out=self._top.head)
        for index in range(self._config.num_layers):
            self._load_layer(index, layer_weights(source, self._config, index, self._dtype))

    def _load_layer(self, index: int, new: LayerWeights) -> None:
        if index == len(self._layers):
            self._layers.append(
                LayerWeights(
                    norm1=self._like(new.norm1),
                    qkv=self._packed_like(new.qkv),
                    o=self._packed_like(new.o),
                    norm2=self._like(new.norm2),
                    gate_up=self._packed_like(new.gate_up),
                    down=self._packed_like(new.down),
                    qkv_bias=self._like_if(new.qkv_bias),
                    q_norm=self._like_if(new.q_norm),
                    k_norm=self._like_if(new.k_norm),
                )
            )
        kept, pack = self._layers[index], self.library.pack
        kept.norm1.copy_(new.norm1)
        kept.norm2.copy_(new.norm2)
        for name in OPTIONAL:
            there, come = getattr(kept, name), getattr(new, name)
            if there is not None and come is not None:
                there.copy_(come)
        pack(new.qkv, out=kept.qkv)
        pack(new.o, out=kept.o)
        pack(new.gate_up, halves=True, out=kept.gate_up)
        pack(new.down, out=kept.down)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._arena.zeros(tensor.shape, tensor.dtype)

    def _like_if(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else self._like(tensor)

    def _packed_like(self, weight: torch.Tensor) -> torch.Tensor:
        return self._arena.zeros((self.library.packed_elements(weight),), weight.dtype)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor under its name, unpacked from what is computed with."""
        assert self._top is not None, "no weights are loaded"
        c, top = self._config, self._top
        head = top.embed if c.is_tied else self._dense(top.head, c.vocab_size, c.hidden_size)
        yield from named_top(TopWeights(top.embed, top.norm, head), c)
        qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        for index, kept in enumerate(self._layers):
            dense = LayerWeights(
                norm1=kept.norm1,
                qkv=self._dense(kept.qkv, qkv, c.hidden_size),
                o=self._dense(kept.o, c.hidden_size, c.num_heads * c.head_dim),
                norm2=kept.norm2,
                gate_up=self._dense(kept.gate_up, 2 * c.ffn_size, c.hidden_size, halves=True),
                down=self._dense(kept.down, c.hidden_size, c.ffn_size),
                qkv_bias=kept.qkv_bias,
                q_norm=kept.q_norm,
                k_norm=kept.k_norm,
            )
            yield from named_layer(dense, c, index)

    def _dense(self, packed: torch.Tensor, n: int, k: int, *, halves: bool = False) -> torch.Tensor:
        return self.library.unpack(packed, (n, k), halves=halves)

    def bind(self, pool: DevicePool) -> None:
        """Point the library at the weights and at `pool`."""
        assert self._top is not None, "load the weights before binding a pool"
        assert pool.layout == self.kv_layout, f"{pool.layout} != {self.kv_layout}"
        if self._handle is None:
            self._handle = self._new_handle(self._top)
        self._pool = pool
        for index, weights in enumerate(self._layers):
            tensors = [getattr(weights, name) for name in TENSORS]
            tensors += [pool.k[index], pool.v[index]]
            pointers = [None if t is None else t.data_ptr() for t in tensors]
            self.library.set_layer(self._handle, index, ctypes.byref(CLayer(*pointers)))

    def unbind(self) -> None:
        """Let go of the pool; the library is told of another before the next step."""
        self._pool = None

    def _new_handle(self, top: TopWeights) -> int:
        c = self._config
        shape = CShape(
            c.hidden_size, c.ffn_size, c.num_heads, c.num_kv_heads, c.vocab_size, c.num_layers,
            c.rms_norm_eps,
        )  # fmt: skip
        tables = CTables(*(t.data_ptr() for t in (top.embed, top.norm, top.head, *self._rope)))
        handle: int | None = self.library.new(ctypes.byref(shape), ctypes.byref(tables))
        if handle is None:
            raise MemoryError("no memory for the CPU model")
        weakref.finalize(self, self.library.free, handle)
        return handle

    def greedy(self, inputs: StepInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the most likely token of each row (R,), and whether its logits are finite."""
        chosen = np.empty(len(inputs.rows), np.int64)
        is_finite = np.empty(len(inputs.rows), np.bool_)
        self._forward(inputs, None, chosen, is_finite)
        return chosen, is_finite

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """Return the rows' state after the last norm (R, hidden)."""
        # At least one row, so that there is an address: null would ask for the head.
        out = torch.empty(max(1, len(inputs.rows)), self._config.hidden_size, dtype=self._dtype)
        self._forward(inputs, out, None, None)
        return out[: len(inputs.rows)]

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.bool_]]:
        """Return fp32 logits (R, V), and which rows are all finite."""
        assert self._handle is not None, "bind a pool first"
        rows = hidden.shape[0]
        out = torch.empty(rows, self._config.vocab_size)
        is_finite = torch.empty(rows, dtype=torch.bool)
        self.library.logits(self._handle, hidden.contiguous(), out, is_finite)
        return out, is_finite.numpy()

    def _forward(
        self,
        inputs: StepInputs,
        hidden: torch.Tensor | None,
        chosen: NDArray[np.int64] | None,
        is_finite: NDArray[np.bool_] | None,
    ) -> None:
        assert self._handle is not None, "bind a pool first"
        tokens = CTokens(
            inputs.pos.ctypes.data,
            inputs.start.ctypes.data,
            inputs.first_page.ctypes.data,
            inputs.pages.ctypes.data,
            len(inputs.ids),
            len(inputs.start) - 1,
        )
        stalled_ns = ctypes.c_int64()
        threads = self._team.next(torch.get_num_threads())
        step = CStep(
            tokens,
            inputs.ids.ctypes.data,
            inputs.rows.ctypes.data,
            len(inputs.rows),
            threads,
            None if hidden is None else hidden.data_ptr(),
            None if chosen is None else chosen.ctypes.data,
            None if is_finite is None else is_finite.ctypes.data,
            ctypes.pointer(stalled_ns),
        )
        start = time.perf_counter()
        self.library.forward(self._handle, step)
        self._team.stepped(threads, stalled_ns.value / 1e9, time.perf_counter() - start)
