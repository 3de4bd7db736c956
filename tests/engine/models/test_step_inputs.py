"""Flattening parts, and the promises that keep kernels inside their memory."""

from __future__ import annotations

import re

import pytest

from engine.ipc.sampling import SamplingParams
from engine.models.forward_batch import Part, SampleSpec
from engine.models.step_inputs import Limits, make_inputs

LIMITS = Limits(vocab_size=100, num_pages=10, page_size=16, context_len=64)
SAMPLE = SampleSpec(SamplingParams(), [], [], [])


def test_parts_are_laid_end_to_end() -> None:
    parts = [
        Part([5, 6, 7], 15, [3, 9], SAMPLE),
        Part([8], 0, [4], None),
        Part([9], 33, [0, 1, 2, 5], SAMPLE),
    ]
    found = make_inputs(parts, LIMITS)
    assert found.ids.tolist() == [5, 6, 7, 8, 9]
    assert found.pos.tolist() == [15, 16, 17, 0, 33]
    assert found.start.tolist() == [0, 3, 4, 5]
    assert found.pages.tolist() == [3, 9, 4, 0, 1, 2, 5]
    assert found.first_page.tolist() == [0, 2, 3, 7]
    assert found.rows.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a step needs parts"),
        ([Part([], 0, [0], None)], "every part a token"),
        ([Part([1], -1, [0], None)], "a start of 0 or more"),
        ([Part([1], 64, [0] * 5, None)], "ends at token 65 of 64"),
        ([Part([1], 0, [0], None), Part([1], 16, [0], None)], "part 1: 1 pages for 17 tokens"),
        ([Part([100], 0, [0], None)], "token ids 100..100 of 100"),
        ([Part([-1], 0, [0], None)], "token ids -1..-1 of 100"),
        ([Part([1], 0, [10], None)], "pages 10..10 of 10"),
        ([Part([1], 0, [0, -1], None)], "pages -1..0 of 10"),
    ],
)
def test_a_part_that_would_leave_memory_is_refused(parts: list[Part], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_inputs(parts, LIMITS)
