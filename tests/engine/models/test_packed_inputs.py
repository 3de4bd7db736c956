"""A step's numbers as the GPU takes them: which tokens are alone, how runs are cut, one array."""

from __future__ import annotations

import numpy as np
import torch

from engine.models.forward_batch import Part
from engine.models.packed_inputs import (
    ALIGNED_NUMBERS,
    decode_rows,
    extend_tiles,
    first_page_of_token,
    pack,
    send,
)
from engine.models.step_inputs import Limits, StepInputs, make_inputs


def inputs_of(*parts: tuple[int, int]) -> StepInputs:
    """Parts are (cached, new) tokens, three pages of 16 each."""
    made = [Part([0] * new, cached, [7, 8, 9], None) for cached, new in parts]
    return make_inputs(made, Limits(1, 10, 16, 48))


def test_tokens_alone_in_their_part_are_decodes() -> None:
    inputs = inputs_of((3, 1), (0, 2), (9, 1))
    assert decode_rows(inputs).tolist() == [0, 3]
    assert first_page_of_token(inputs).tolist() == [0, 3, 3, 6]


def test_tiles_cover_every_run_once_and_the_longest_context_comes_first() -> None:
    inputs = inputs_of((3, 1), (0, 9), (20, 4), (0, 5))
    row, stop = extend_tiles(inputs, 4)
    assert list(zip(row.tolist(), stop.tolist(), strict=True)) == [
        (10, 14), (9, 10), (5, 9), (18, 19), (1, 5), (14, 18),
    ]  # fmt: skip
    assert inputs.pos[row].tolist() == [20, 8, 4, 4, 0, 0]


def test_a_step_of_decodes_has_no_tile() -> None:
    row, stop = extend_tiles(inputs_of((3, 1), (5, 1)), 4)
    assert len(row) == len(stop) == 0


def test_sections_keep_their_numbers_and_begin_where_kernels_expect_them() -> None:
    sections = [np.arange(3), np.empty(0, np.int64), np.arange(40), np.array([-1])]
    numbers, places = pack(sections)
    assert numbers.dtype == np.int32
    assert [place.start % ALIGNED_NUMBERS for place in places] == [0] * 4
    for section, place in zip(sections, places, strict=True):
        assert numbers[place].tolist() == section.tolist()
    assert send(numbers, torch.device("cpu")).tolist() == numbers.tolist()
