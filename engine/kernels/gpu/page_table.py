"""Where a step's tokens lie, as every paged kernel reads it. Imports no triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PageTable:
    """int32 on the device, each tensor beginning at a multiple of 16 bytes.

    A token with position -1 pads a step to a fixed size: nothing is stored for it, and its
    attention is zeros. Page 0 of `pages` must exist all the same.
    """

    pos: torch.Tensor  # (T,) of a token in its request
    first_page: torch.Tensor  # (T,) where in `pages` the pages of the token's request begin
    pages: torch.Tensor  # (W,) the requests' pages, one request after another


def padded(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least both: the size of a block of numbers."""
    return max(least, 1 << (count - 1).bit_length())
