"""A step's parts as flat arrays: the form in which every model takes them.

Built once a step with a handful of numpy calls, because Python work per token would cost more than
the step itself. Checks what the scheduler promised: the kernels follow these numbers into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from engine.models.forward_batch import Part


@dataclass(frozen=True, slots=True)
class Limits:
    """What token ids, pages and positions must stay within."""

    vocab_size: int
    num_pages: int
    page_size: int
    context_len: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Tokens of all parts, flattened. Part r owns tokens start[r]:start[r + 1]."""

    ids: NDArray[np.int64]  # (T,)
    pos: NDArray[np.int64]  # (T,)
    start: NDArray[np.int64]  # (parts + 1,)
    first_page: NDArray[np.int64]  # (parts + 1,) into pages
    pages: NDArray[np.int32]
    rows: NDArray[np.int64]  # (R,) tokens whose output is wanted

    def with_rows(self, rows: NDArray[np.int64]) -> StepInputs:
        """Return the same tokens with other outputs wanted."""
        return StepInputs(self.ids, self.pos, self.start, self.first_page, self.pages, rows)


def make_inputs(parts: Sequence[Part], limits: Limits) -> StepInputs:
    """Flatten `parts`; wanted are the last tokens of those that sample, in order.

    Raises ValueError, with the numbers, for a part that would make a kernel leave its memory.
    """
    count = len(parts)
    lengths = np.fromiter((len(p.input_ids) for p in parts), np.int64, count)
    cached = np.fromiter((p.start for p in parts), np.int64, count)
    widths = np.fromiter((len(p.pages) for p in parts), np.int64, count)
    start = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=start[1:])
    first_page = np.zeros(count + 1, np.int64)
    np.cumsum(widths, out=first_page[1:])
    total = int(start[-1])
    ids = np.fromiter(chain.from_iterable(p.input_ids for p in parts), np.int64, total)
    pages = np.fromiter(chain.from_iterable(p.pages for p in parts), np.int32, int(first_page[-1]))
    _check(lengths, cached, widths, ids, pages, limits)
    pos = np.arange(total, dtype=np.int64) + np.repeat(cached - start[:-1], lengths)
    samples = np.fromiter((p.sample is not None for p in parts), np.bool_, count)
    return StepInputs(ids, pos, start, first_page, pages, start[1:][samples] - 1)


def _check(
    lengths: NDArray[np.int64],
    cached: NDArray[np.int64],
    widths: NDArray[np.int64],
    ids: NDArray[np.int64],
    pages: NDArray[np.int32],
    limits: Limits,
) -> None:
    if not len(lengths) or lengths.min() < 1 or cached.min() < 0:
        raise ValueError("a step needs parts, and every part a token and a start of 0 or more")
    ends = cached + lengths
    if ends.max() > limits.context_len:
        raise ValueError(f"a part ends at token {ends.max()} of {limits.context_len}")
    short = np.flatnonzero(widths * limits.page_size < ends)
    if len(short):
        part = int(short[0])
        raise ValueError(f"part {part}: {widths[part]} pages for {ends[part]} tokens")
    if ids.min() < 0 or ids.max() >= limits.vocab_size:
        raise ValueError(f"token ids {ids.min()}..{ids.max()} of {limits.vocab_size}")
    if pages.min() < 0 or pages.max() >= limits.num_pages:
        raise ValueError(f"pages {pages.min()}..{pages.max()} of {limits.num_pages}")
