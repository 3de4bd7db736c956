"""Rotary tables against the formulas of the papers and of Llama 3.1's release."""

from __future__ import annotations

import math

import pytest
import torch

from engine.models.rope import rope_tables
from tests.engine.models.factories import tiny_config


def angles(context_len: int = 50, **changes: object) -> torch.Tensor:
    cos, sin = rope_tables(tiny_config(**changes), context_len)
    assert cos.shape == sin.shape == (context_len, 16) and cos.dtype == torch.float32
    return torch.atan2(sin, cos)


def test_the_first_pair_turns_by_one_radian_a_token_and_the_others_slower() -> None:
    found = angles()
    assert found[:3, 0].tolist() == pytest.approx([0.0, 1.0, 2.0])
    assert found[1].tolist() == pytest.approx([10000 ** (-2 * i / 32) for i in range(16)])


def test_linear_scaling_divides_positions() -> None:
    scaled = angles(rope_scaling={"rope_type": "linear", "factor": 4.0})
    torch.testing.assert_close(scaled[::4][:10], angles()[:10])


def test_llama3_scaling_slows_only_pairs_that_turn_seldom() -> None:
    original, factor = 256, 8.0
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    scaled, plain = angles(rope_scaling=scaling)[1], angles()[1]
    for found, frequency in zip(scaled.tolist(), plain.tolist(), strict=True):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / 4.0:
            expected = frequency
        elif wavelength > original / 1.0:
            expected = frequency / factor
        else:
            smooth = (original / wavelength - 1.0) / 3.0
            expected = (1 - smooth) * frequency / factor + smooth * frequency
        assert found == pytest.approx(expected, rel=1e-5)
