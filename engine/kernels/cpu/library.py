"""Typed calls into the compiled library: the Python twin of the structs in `step.cpp`.

Tensors go in as raw pointers; whoever calls keeps them alive and guarantees shapes and ranges,
because a wrong index here is memory corruption, not an exception. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch


class CShape(Structure):
    """Sizes of a model."""

    _fields_ = (
        ("hidden", c_int64),
        ("ffn", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("vocab", c_int64),
        ("layers", c_int64),
        ("eps", c_float),
    )


class CTables(Structure):
    """Tensors outside the layers; `head` is packed."""

    _fields_ = tuple((name, c_void_p) for name in ("embed", "norm", "head", "cos", "sin"))


class CLayer(Structure):
    """Tensors of a layer: its linears packed, null what the model has not; and its KV pool."""

    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            *("norm1", "qkv", "o", "norm2", "gate_up", "down", "qkv_bias", "q_norm", "k_norm"),
            *("k", "v"),
        )
    )


class CTokens(Structure):
    """Tokens of all parts, flattened, and the pages of each part."""

    _fields_ = (
        ("pos", c_void_p),  # int64 (T,)
        ("start", c_void_p),  # int64 (parts + 1,)
        ("first_page", c_void_p),  # int64 (parts + 1,)
        ("pages", c_void_p),  # int32
        ("tokens", c_int64),
        ("parts", c_int64),
    )


class CStep(Structure):
    """One forward pass: what to compute and where to put it."""

    _fields_ = (
        ("tokens", CTokens),
        ("ids", c_void_p),  # int64 (T,)
        ("rows", c_void_p),  # int64 (outs,)
        ("outs", c_int64),
        ("threads", c_int64),
        ("hidden", c_void_p),  # element (outs, hidden), or null to run the head instead
        ("chosen", c_void_p),  # int64 (outs,)
        ("is_finite", c_void_p),  # uint8 (outs,)
        ("stalled_ns", POINTER(c_int64)),  # how long threads waited for others, all together
    )


class CDraw(Structure):
    """How a token is drawn from a row."""

    _fields_ = (
        ("temperature", c_float),
        ("top_k", c_int64),  # the vocabulary's size: no limit
        ("top_p", c_double),  # 1: no limit
        ("min_p", c_double),  # 0: no limit
        ("point", c_double),  # in [0, 1)
    )


PANEL_COLUMNS = 32  # PANEL of gemm.h


class CPULibrary:
    """A loaded library; one per element type, head size and page size."""

    def __init__(self, path: Path) -> None:
        """Load `path`, which `build_library` made. Raises OSError when it cannot be loaded."""
        self.path = path
        lib = ctypes.CDLL(str(path))
        self.new = lib.quiesce_new
        self.new.argtypes = [POINTER(CShape), POINTER(CTables)]
        self.new.restype = c_void_p
        self.free = lib.quiesce_free
        self.free.argtypes = [c_void_p]
        self.free.restype = None
        self.set_layer = lib.quiesce_set_layer
        self.set_layer.argtypes = [c_void_p, c_int64, POINTER(CLayer)]
        self.set_layer.restype = None
        self._forward = lib.quiesce_forward
        self._forward.argtypes = [c_void_p, POINTER(CStep)]
        self._logits = lib.quiesce_logits
        self._logits.argtypes = [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]
        self._draw = lib.quiesce_draw
        self._draw.argtypes = [
            *(c_void_p, c_int64, POINTER(c_int64), POINTER(CDraw), c_int64, c_int64),
            POINTER(c_int64),
        ]
        self._packed_elements = lib.quiesce_packed_elements
        self._packed_elements.argtypes = [c_int64, c_int64]
        self._packed_elements.restype = c_int64
        self._pack = lib.quiesce_pack
        self._pack.argtypes = [c_void_p, c_int64, c_int64, c_int, c_int64, c_void_p]
        self._pack.restype = None
        self._linear = lib.quiesce_linear
        self._linear.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p]
        self._linear.restype = None
        self._attend = lib.quiesce_attend
        self._attend.argtypes = [
            *(POINTER(CTokens), c_void_p, c_int64, c_int64, c_void_p, c_void_p),
            *(c_void_p, c_void_p, c_int64, c_void_p),
        ]

    def forward(self, model: int, step: CStep) -> None:
        """Run one step of `model`, a handle of `new`. Raises MemoryError."""
        _check(self._forward(model, step))

    def logits(
        self,
        model: int,
        hidden: torch.Tensor,
        out: torch.Tensor,
        is_finite: torch.Tensor,
    ) -> None:
        """Write fp32 logits (rows, vocab) of `hidden` (rows, hidden). Raises MemoryError."""
        rows, threads = hidden.shape[0], torch.get_num_threads()
        _check(
            self._logits(
                model, hidden.data_ptr(), rows, threads, out.data_ptr(), is_finite.data_ptr()
            )
        )

    def draw(self, logits: torch.Tensor, rows: Sequence[int], draws: Sequence[CDraw]) -> list[int]:
        """Return a token for each of `rows` of fp32 `logits` (R, V), drawn as the draw of the same
        place says: -inf is never drawn. Raises MemoryError.
        """
        count, vocab = len(rows), logits.shape[1]
        assert logits.is_contiguous() and logits.dtype == torch.float32 and vocab < 2**31
        tokens = (c_int64 * count)()
        status = self._draw(
            *(logits.data_ptr(), vocab, (c_int64 * count)(*rows), (CDraw * count)(*draws)),
            *(count, torch.get_num_threads(), tokens),
        )
        _check(status)
        return list(tokens)

    def packed_elements(self, weight: torch.Tensor) -> int:
        """Return how many numbers `weight` (n, k) takes when packed: n is rounded up."""
        return int(self._packed_elements(*weight.shape))

    def pack(
        self, weight: torch.Tensor, *, halves: bool = False, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Lay out `weight` (n, k) for the GEMM, in `out` if given: memory that a model knows.

        `halves` interleaves the two halves of the rows, for a gate and its up projection.
        """
        n, k = weight.shape
        assert not (halves and n % 32) and k % 2 == 0, f"cannot pack ({n}, {k})"
        weight = weight.contiguous()
        if out is None:
            out = torch.empty(self.packed_elements(weight), dtype=weight.dtype)
        assert out.numel() == self.packed_elements(weight) and out.dtype == weight.dtype
        threads = torch.get_num_threads()
        self._pack(weight.data_ptr(), n, k, int(halves), threads, out.data_ptr())
        return out

    def unpack(
        self, packed: torch.Tensor, shape: tuple[int, int], *, halves: bool = False
    ) -> torch.Tensor:
        """Return the weight (n, k) that `pack` laid out so, bit for bit."""
        n, k = shape
        group = 4 // packed.element_size()  # numbers that one instruction multiplies
        panels = packed.numel() // (PANEL_COLUMNS * k)
        rows = packed.view(panels, k // group, PANEL_COLUMNS, group).permute(0, 2, 1, 3)
        dense = rows.reshape(panels, PANEL_COLUMNS, k)
        if not halves:
            return dense.reshape(-1, k)[:n].clone()
        first, second = dense.split(PANEL_COLUMNS // 2, dim=1)
        return torch.cat((first.reshape(-1, k), second.reshape(-1, k)))

    def linear(self, x: torch.Tensor, packed: torch.Tensor, n: int) -> torch.Tensor:
        """Return x W^T (m, n), rounded to the element type, for x (m, k) and W packed."""
        m, k = x.shape
        assert n % 16 == 0 and x.is_contiguous(), f"n={n}"
        y = torch.empty(m, n, dtype=x.dtype)
        threads = torch.get_num_threads()
        self._linear(x.data_ptr(), m, k, packed.data_ptr(), n, threads, y.data_ptr())
        return y

    def attend(
        self,
        tokens: CTokens,
        qkv: torch.Tensor,
        heads: tuple[int, int],
        rope: tuple[torch.Tensor, torch.Tensor],
        pools: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> None:
        """Rotate `qkv` in place, store K and V in their pages, and attend. Raises MemoryError.

        heads: (H, Hkv); rope: cos and sin (context, D/2) fp32; out: (T, H * D).
        """
        pointers = [t.data_ptr() for t in (*rope, *pools)]
        threads = torch.get_num_threads()
        _check(self._attend(tokens, qkv.data_ptr(), *heads, *pointers, threads, out.data_ptr()))


def _check(status: int) -> None:
    if status:
        raise MemoryError("the CPU kernels found no memory for their scratch space")
