"""A step's numbers in one run of int32, so that one copy takes them to the device.

Sections begin at multiples of 128 bytes: kernels are compiled once for pointers so aligned. Knows
numpy and torch tensors, no kernel; the Triton operators and the decode graphs call it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.step_inputs import StepInputs

ALIGNED_NUMBERS = 32

Numbers = NDArray[np.int32]


def first_page_of_token(inputs: StepInputs) -> NDArray[np.int64]:
    """Return, per token, where in `inputs.pages` its part's pages begin (T,)."""
    found: NDArray[np.int64] = np.repeat(inputs.first_page[:-1], np.diff(inputs.start))
    return found


def decode_rows(inputs: StepInputs) -> NDArray[np.int64]:
    """Return the tokens that are alone in their part (B,)."""
    rows: NDArray[np.int64] = inputs.start[:-1][np.diff(inputs.start) == 1]
    return rows


def extend_tiles(inputs: StepInputs, tile_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut the parts of several tokens into tiles of at most `tile_rows`: first token, and the one
    after the last. Those with the longest context come first: they take longest."""
    long = np.flatnonzero(np.diff(inputs.start) > 1)
    first, stop = inputs.start[long], inputs.start[long + 1]
    counts = -(-(stop - first) // tile_rows)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row = np.repeat(first, counts) + tile_rows * within
    order = np.argsort(-inputs.pos[row], kind="stable")
    return row[order], np.minimum(row + tile_rows, np.repeat(stop, counts))[order]


def pack(sections: Sequence[NDArray[np.generic]]) -> tuple[Numbers, list[slice]]:
    """Lay `sections` out one after another; return the run, and where in it each one lies."""
    places, end = [], 0
    for section in sections:
        places.append(slice(end, end + len(section)))
        end += -(-len(section) // ALIGNED_NUMBERS) * ALIGNED_NUMBERS
    numbers = np.zeros(max(end, 1), np.int32)
    for place, section in zip(places, sections, strict=True):
        numbers[place] = section
    return numbers, places


def pinned(numbers: Numbers, device: torch.device) -> torch.Tensor:
    """Return them in memory that is copied without waiting; torch keeps it until then."""
    here = torch.from_numpy(numbers)
    return here if device.type == "cpu" else here.pin_memory()


def send(numbers: Numbers, device: torch.device) -> torch.Tensor:
    """Copy to the device, without waiting."""
    return pinned(numbers, device).to(device, non_blocking=True)
