"""When a step is replayed, over which numbers, and when a graph is made anew: without a card."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from engine.models import decode_graphs
from engine.models.decode_graphs import BUCKETS, DecodeGraphs, DecodeNumbers
from engine.models.forward_batch import Part
from engine.models.step_inputs import Limits, StepInputs, make_inputs

CPU = torch.device("cpu")
PAGE = 4


class PageReader:
    """A model whose hidden state is what the numbers say: id, position, and the token's page."""

    def decode_hidden(self, numbers: DecodeNumbers) -> torch.Tensor:
        table = numbers.table
        page = table.pages[(table.first_page + table.pos.clamp(min=0) // PAGE).long()]
        return torch.stack((numbers.ids, table.pos, page), dim=1).long()

    def choose(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.stack((hidden[:, 0] * 10, (hidden[:, 1] >= 0).long()))


class Rerun:
    """Records by remembering the call. Fails where told."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.records = 0

    def record(self, call: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.records += 1
        result = call()

        def replay() -> None:
            result.copy_(call())

        return replay, result


def graphs(recorder: Rerun, buckets: tuple[int, ...] = (1, 2, 4)) -> DecodeGraphs:
    return DecodeGraphs(PageReader(), recorder, CPU, buckets)


def decodes(*at: int, rows: list[int] | None = None) -> StepInputs:
    """A request at each position; request r owns pages 3 r to 3 r + 2, its token has id r + 1."""
    parts = [Part([r + 1], pos, [3 * r, 3 * r + 1, 3 * r + 2], None) for r, pos in enumerate(at)]
    inputs = make_inputs(parts, Limits(99, 99, PAGE, 12))
    wanted = np.arange(len(at)) if rows is None else np.array(rows, np.int64)
    return inputs.with_rows(wanted)


def greedy(made: DecodeGraphs, inputs: StepInputs) -> list[list[int]]:
    bucket = made.bucket_of(inputs)
    assert bucket is not None
    chosen = made.greedy(inputs, bucket)
    assert chosen is not None
    return chosen.tolist()


def test_a_step_takes_the_smallest_bucket_that_holds_it() -> None:
    made = graphs(Rerun())
    found = [made.bucket_of(decodes(*[0] * count)) for count in (1, 2, 3, 4, 5)]
    assert found == [1, 2, 4, 4, None]
    assert list(BUCKETS) == sorted(set(BUCKETS))


def test_a_step_with_an_extend_has_no_bucket() -> None:
    parts = [Part([1], 3, [0], None), Part([1, 2], 0, [1], None)]
    assert graphs(Rerun()).bucket_of(make_inputs(parts, Limits(99, 99, PAGE, 12))) is None


def test_a_step_of_too_many_pages_has_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "MOST_PAGES", 5)
    made = graphs(Rerun())
    assert made.bucket_of(decodes(0)) == 1
    assert made.bucket_of(decodes(0, 0)) is None


def test_each_token_finds_its_own_page_and_the_padding_is_left_out() -> None:
    made = graphs(Rerun())
    inputs = decodes(11, 0, 5)
    hidden = made.hidden(inputs, 4)
    assert hidden is not None
    assert hidden.tolist() == [[1, 11, 2], [2, 0, 3], [3, 5, 7]]
    assert greedy(made, inputs) == [[10, 20, 30], [1, 1, 1]]


def test_the_rest_of_a_bucket_is_padding_whatever_was_there_before() -> None:
    made = graphs(Rerun(), (4,))
    made.hidden(decodes(11, 0, 5, 3), 4)
    made.hidden(decodes(2), 4)
    positions = made._numbers[made._width : made._width + 4].tolist()
    assert positions == [2, -1, -1, -1]


def test_only_wanted_rows_are_returned_and_they_stay_when_the_graph_runs_again() -> None:
    made = graphs(Rerun())
    some = made.hidden(decodes(11, 0, 5, rows=[2, 0, 0]), 4)
    every = made.hidden(decodes(1, 2, 3, 4), 4)
    made.hidden(decodes(7, 7, 7, 7), 4)
    assert some is not None and every is not None
    assert some[:, 1].tolist() == [5, 11, 11]
    assert every[:, 1].tolist() == [1, 2, 3, 4]
    assert greedy(made, decodes(4, 4, rows=[])) == [[], []]


def test_a_bucket_is_recorded_once_and_again_when_it_was_forgotten() -> None:
    recorder = Rerun()
    made = graphs(recorder)
    for at in (1, 2, 3):
        greedy(made, decodes(at, at))
    assert (made.recorded, recorder.records) == ([2], 2)  # layers and head
    made.forget()
    assert made.recorded == []
    assert greedy(made, decodes(6, 9)) == [[10, 20], [1, 1]]
    assert (made.recorded, recorder.records) == ([2], 4)


def test_where_recording_fails_the_log_says_so_once_and_steps_run_without() -> None:
    made = graphs(Rerun(fails=True))
    with capture_logs() as logs:
        assert made.greedy(decodes(1), 1) is None
    assert [line["event"] for line in logs] == ["decode graphs unavailable"]
    assert "capturing" in logs[0]["detail"]
    assert made.bucket_of(decodes(1)) is None
    made.forget()
    assert made.bucket_of(decodes(1)) is None
