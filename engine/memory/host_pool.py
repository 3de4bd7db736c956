"""L2: pages of keys and values in host memory, each in a slot that is a storage record.

A slot is the header and payload of `engine.cache.storage.records`, padded to 4 KiB, so that a page
goes to storage and back as one run of bytes, without a copy. With layout layer_first a page is no
run of bytes: there the payload is gathered into a record on its way. Which page is free, and whose
it is, is the cache's business.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import torch

from engine.protocol import HostLayout

HEADER_BYTES = 128  # before each payload; records.py says what is in it
ALIGNMENT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PageShape:
    """A page over all layers. `side_bytes` are those of its keys, or values, in one layer."""

    num_layers: int
    num_heads: int
    side_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.side_bytes


class HostPool:
    """`num_pages` slots. `side(layer, s)` views keys (s=0) or values (s=1) of all pages as
    (num_pages, num_heads, bytes a head), wherever the layout has put them."""

    def __init__(self, shape: PageShape, num_pages: int, layout: HostLayout) -> None:
        """Map the memory; it is taken when a page is first written. Raises MemoryError, OSError."""
        if num_pages <= 0:
            raise ValueError(f"a host pool of {num_pages} pages")
        assert shape.side_bytes % shape.num_heads == 0, f"{shape} splits no head"
        self.shape, self.num_pages, self.layout = shape, num_pages, layout
        payload = shape.payload_bytes
        self.record_bytes = -(-(HEADER_BYTES + payload) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.is_page_first = layout is not HostLayout.LAYER_FIRST
        stride = self.record_bytes if self.is_page_first else payload
        self._mapping = mmap.mmap(-1, num_pages * stride)  # page-aligned
        self.memory = memoryview(self._mapping)
        self.bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._sides = {
            (layer, s): self._side(layer, s) for layer in range(shape.num_layers) for s in (0, 1)
        }

    def side(self, layer: int, s: int) -> torch.Tensor:
        """Bytes (num_pages, num_heads, head_bytes), strided; writing to it writes the pages."""
        return self._sides[layer, s]

    def _side(self, layer: int, s: int) -> torch.Tensor:
        shape, layers = self.shape, self.shape.num_layers
        head = shape.side_bytes // shape.num_heads
        match self.layout:
            case HostLayout.LAYER_FIRST:
                first = (2 * layer + s) * self.num_pages * shape.side_bytes
                strides = (shape.side_bytes, head)
            case HostLayout.PAGE_FIRST:
                first = HEADER_BYTES + (s * layers + layer) * shape.side_bytes
                strides = (self.record_bytes, head)
            case HostLayout.PAGE_FIRST_DIRECT:
                first = HEADER_BYTES + (2 * layer + s) * shape.side_bytes
                strides = (self.record_bytes, head)
            case HostLayout.PAGE_HEAD:
                first = HEADER_BYTES + (2 * layer + s) * head
                strides = (self.record_bytes, 2 * layers * head)
        return self.bytes.as_strided(
            (self.num_pages, shape.num_heads, head), (*strides, 1), storage_offset=first
        )

    # ---- records -----------------------------------------------------------------------------

    def record(self, page: int) -> memoryview:
        """A page's slot, header included. Only where the layout makes it one run of bytes."""
        assert self.is_page_first, f"{self.layout} has no records"
        first = page * self.record_bytes
        return self.memory[first : first + self.record_bytes]

    def gather(self, page: int, record: memoryview) -> None:
        """Copy a page's payload into a record of its own."""
        flat = self._payload(record)
        for index, (layer, s) in enumerate(self._sides):
            flat[index] = self._sides[layer, s][page].reshape(-1)

    def scatter(self, record: memoryview, page: int) -> None:
        """Copy a record's payload to where the page lies."""
        flat = self._payload(record)
        for index, (layer, s) in enumerate(self._sides):
            side = self._sides[layer, s]
            side[page] = flat[index].reshape(side.shape[1:])

    def _payload(self, record: memoryview) -> torch.Tensor:
        payload = record[HEADER_BYTES : HEADER_BYTES + self.shape.payload_bytes]
        return torch.frombuffer(payload, dtype=torch.uint8).view(-1, self.shape.side_bytes)

    def register(self) -> None:
        """Let the GPU read and write it at its own address. Raises RuntimeError."""
        status = torch.cuda.cudart().cudaHostRegister(self.address, len(self.memory), 0)
        if int(status) != 0:
            raise RuntimeError(f"the host pool cannot be registered with the GPU: {status}")

    def unregister(self) -> None:
        """Take that back: before the memory is given up, or the driver would go on naming it."""
        torch.cuda.cudart().cudaHostUnregister(self.address)

    @property
    def address(self) -> int:
        """Of the first byte: what a transfer library registers."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))


def make_records(count: int, record_bytes: int) -> list[memoryview]:
    """Records apart from any pool, aligned as theirs are."""
    memory = memoryview(mmap.mmap(-1, count * record_bytes))
    return [memory[i * record_bytes : (i + 1) * record_bytes] for i in range(count)]
