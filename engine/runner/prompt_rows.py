"""Finds the rows of a step whose logits score prompt tokens, for the parts that ask for it.

The row at position p predicts the token at p + 1; the last row's token is the next part's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.models.forward_batch import Part
from engine.runner.logprobs import Wanted


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows in the parts' order; `parts` and `wanted` say whose each is and what to report."""

    rows: NDArray[np.int64]
    parts: list[int]
    wanted: list[Wanted]


def find_prompt_rows(parts: Sequence[Part], start: NDArray[np.int64]) -> PromptRows:
    """Return the rows to score; `start` (parts + 1,) is where each part's rows begin."""
    rows: list[int] = []
    owners: list[int] = []
    wanted: list[Wanted] = []
    for index, part in enumerate(parts):
        if part.logprobs_from is None:
            continue
        targets = part.input_ids[1:]
        if part.next_id is not None:
            targets = [*targets, part.next_id]
        first = max(0, part.logprobs_from - part.start - 1)
        for row in range(first, len(targets)):
            rows.append(int(start[index]) + row)
            owners.append(index)
            wanted.append(Wanted(targets[row], part.top_logprobs_num, part.token_ids_logprob))
    return PromptRows(np.array(rows, np.int64), owners, wanted)
