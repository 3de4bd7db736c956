"""Checksums of weights as they are served: one a tensor, one over all, made while they are read.

xxh3-128 over each tensor's bytes in the model's dtype, and over the sorted list of name, dtype,
shape and checksum. Whoever has the same numbers has the same checksum, however they came.
https://github.com/Cyan4973/xxHash
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import xxhash

from engine.models.base import TensorSource
from engine.models.errors import NonFiniteTensorError

Progress = Callable[[int], None]  # bytes read so far


@dataclass(slots=True)
class Digest:
    """What was read: each tensor's checksum and shape, and the bytes of all."""

    tensors: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: str = ""
    bytes: int = 0

    def checksum(self) -> str:
        """One number for all, 32 hexadecimal digits."""
        whole = xxhash.xxh3_128()
        for name, digits in sorted(self.tensors.items()):
            shape = ",".join(map(str, self.shapes[name]))
            whole.update(f"{name}\0{self.dtype}\0{shape}\0{digits}\n".encode())
        return whole.hexdigest()


def digits_of(tensor: torch.Tensor) -> str:
    """The checksum of one tensor's bytes."""
    return xxhash.xxh3_128(tensor.contiguous().view(torch.uint8).numpy()).hexdigest()


class DigestingSource:
    """A source that notes what passes through it. Raises NonFiniteTensorError while it reads."""

    def __init__(
        self,
        source: TensorSource,
        *,
        is_checked: bool = True,
        progress: Progress = lambda _: None,
    ) -> None:
        """`is_checked` refuses NaN and infinity; `progress` may raise to stop."""
        self.digest = Digest()
        self._source = source
        self._is_checked = is_checked
        self._progress = progress

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor, noted. Raises what the source raises."""
        tensor = self._source.read(name, dtype).contiguous()
        if self._is_checked and not is_finite(tensor):
            raise NonFiniteTensorError(name)
        digest = self.digest
        digest.dtype = str(dtype).removeprefix("torch.")
        digest.shapes[name] = tuple(tensor.shape)
        digest.tensors[name] = digits_of(tensor)
        digest.bytes += tensor.numel() * tensor.element_size()
        self._progress(digest.bytes)
        return tensor


def is_finite(tensor: torch.Tensor) -> bool:
    """No NaN and no infinity: the extremes are enough to know, and much cheaper than a mask."""
    low, high = tensor.aminmax()
    return bool(low.isfinite() & high.isfinite())


class TensorMap:
    """A `TensorSource` over tensors that are in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take them as they are; they are copied only where the dtype differs."""
        self._tensors = tensors

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor of that name in `dtype`. Raises KeyError: names are checked before."""
        return self._tensors[name].to(dtype)
