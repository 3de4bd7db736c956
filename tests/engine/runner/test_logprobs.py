"""Log probabilities against torch's own log-softmax."""

from __future__ import annotations

import pytest
import torch

from engine.runner.logprobs import Wanted, token_logprobs


def test_records_hold_the_token_the_best_and_the_chosen_ones() -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 4
    expected = logits.double().log_softmax(dim=1)
    wanted = [Wanted(7), Wanted(8, top_num=4), Wanted(9, top_num=2, chosen_ids=[400, 3, 400])]
    records = token_logprobs(logits, wanted)
    for row, (record, asked) in enumerate(zip(records, wanted, strict=True)):
        assert record.token_id == asked.token_id
        assert record.logprob == pytest.approx(expected[row, asked.token_id].item(), abs=1e-5)
        best = expected[row].topk(asked.top_num)
        assert [i for _, i in record.top] == best.indices.tolist()
        assert [v for v, _ in record.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert [i for _, i in record.chosen_ids] == asked.chosen_ids
    assert records[2].chosen_ids[1][0] == pytest.approx(expected[2, 3].item(), abs=1e-5)


def test_extreme_logits_give_finite_numbers_not_above_zero() -> None:
    logits = torch.full((1, 100), -3e4)
    logits[0, 4] = 3e4
    record = token_logprobs(logits, [Wanted(5, top_num=200, chosen_ids=[4])])[0]
    assert record.logprob == -6e4 and record.chosen_ids == [(0.0, 4)]
    assert len(record.top) == 100 and record.top[0] == (0.0, 4)


def test_no_rows_give_no_records() -> None:
    assert token_logprobs(torch.empty(0, 100), []) == []
