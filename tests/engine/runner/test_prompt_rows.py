"""Which rows score which prompt tokens, at the borders of chunks."""

from __future__ import annotations

import numpy as np

from engine.models.forward_batch import Part
from engine.runner.prompt_rows import find_prompt_rows


def rows_of(*parts: Part) -> list[tuple[int, int, int]]:
    start = np.cumsum([0, *(len(part.input_ids) for part in parts)])
    found = find_prompt_rows(parts, start)
    targets = [wanted.token_id for wanted in found.wanted]
    return list(zip(found.rows.tolist(), found.parts, targets, strict=True))


def test_a_row_scores_the_token_after_it() -> None:
    assert rows_of(Part([10, 11, 12], 0, [0], None, logprobs_from=0)) == [(0, 0, 11), (1, 0, 12)]


def test_the_last_row_of_a_chunk_scores_the_next_chunks_first_token() -> None:
    part = Part([10, 11], 4, [0], None, logprobs_from=0, next_id=12)
    assert rows_of(part) == [(0, 0, 11), (1, 0, 12)]


def test_rows_before_the_first_wanted_position_are_left_out() -> None:
    part = Part([10, 11, 12], 4, [0], None, logprobs_from=6, next_id=13)
    assert rows_of(part) == [(1, 0, 12), (2, 0, 13)]
    assert rows_of(Part([10, 11], 4, [0], None, logprobs_from=50, next_id=13)) == []


def test_rows_are_numbered_over_the_whole_step() -> None:
    silent = Part([1, 2, 3], 0, [0], None)
    asking = Part([4], 9, [1], None, logprobs_from=10, next_id=5, top_logprobs_num=2)
    assert rows_of(silent, asking) == [(3, 1, 5)]
    assert rows_of(silent) == []
