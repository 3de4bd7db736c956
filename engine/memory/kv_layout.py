"""How the keys and values of a page lie in memory, for the two families of kernels.

A page is one opaque run of bytes per layer and side: whoever copies pages needs its length and no
more. Knows no pool and no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LANES = 16  # tokens that one vector of the CPU kernels holds


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Sizes of a page in one layer. `is_interleaved` is the C++ kernels' order, else torch's.

    Interleaved, per kv head: K (S/16, D/G, 16, G) and V (S/G, D, G), where G is the numbers that
    one instruction multiplies: 2 for bfloat16, 1 for float32. Torch: K and V (S, D).
    """

    num_kv_heads: int
    head_dim: int
    page_size: int  # tokens
    dtype: torch.dtype
    is_interleaved: bool

    @property
    def k_page_shape(self) -> tuple[int, ...]:
        """Shape of one page of K."""
        heads, size, dim = self.num_kv_heads, self.page_size, self.head_dim
        if not self.is_interleaved:
            return (heads, size, dim)
        return (heads, size // LANES, dim // self.group, LANES, self.group)

    @property
    def v_page_shape(self) -> tuple[int, ...]:
        """Shape of one page of V."""
        heads, size, dim = self.num_kv_heads, self.page_size, self.head_dim
        if not self.is_interleaved:
            return (heads, size, dim)
        return (heads, size // self.group, dim, self.group)

    @property
    def group(self) -> int:
        """Numbers that are multiplied by one instruction and therefore lie together."""
        return 2 if self.dtype == torch.bfloat16 else 1

    @property
    def side_bytes(self) -> int:
        """Bytes of one page in one layer, of K or of V."""
        numbers = self.num_kv_heads * self.page_size * self.head_dim
        return numbers * int(self.dtype.itemsize)

    def page_bytes(self, num_layers: int) -> int:
        """Bytes of one page over all layers, K and V together."""
        return 2 * num_layers * self.side_bytes
