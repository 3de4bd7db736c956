"""What a rank is asked beside serving and operations: groups, parts of an update, its tensors.

Each question runs on a thread of its own and is answered once, in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from engine.ipc.messages import (
    Ask,
    DropTensors,
    EmptyCache,
    JoinGroup,
    LeaveGroup,
    Question,
    ReadChecksums,
    ReadTensor,
    ReceiveTensors,
)
from engine.models.digest import Digest, digits_of
from engine.runner.model_runner import ModelRunner
from engine.weights.background import Background, Job
from engine.weights.errors import WeightsError
from engine.weights.expected import checked
from engine.weights.group import TrainerGroups
from engine.weights.staging import why

Facts = dict[str, Any]  # the fields of Answered that a question fills
Answer = Callable[[int, Facts], None]


class Questions:
    """Answers for one rank; `answer(call, fields)` is called on the scheduler's thread."""

    def __init__(
        self, runner: ModelRunner, background: Background, groups: TrainerGroups, answer: Answer
    ) -> None:
        self._runner = runner
        self._background = background
        self._groups = groups
        self._answer = answer

    def take(self, message: Ask) -> None:
        """Begin to answer."""
        question = message.question
        if isinstance(question, EmptyCache):
            self._runner.empty_cache()
            self._answer(message.call, {})
            return

        def work(job: Job[Facts]) -> Facts:
            return self._found(question, message.timeout_s, job)

        def done(job: Job[Facts]) -> None:
            facts = job.result if job.result is not None else {"error": why(job.error)}
            self._answer(message.call, facts)

        self._background.start(Job(type(question).__name__), work, done)

    def forget(self) -> None:
        """The frontend that asked is gone: so are its groups, and what came for its sessions."""
        self._background.start(Job("leave groups"), lambda _: self._groups.leave_all(), _nothing)

    def _found(self, question: Question, timeout_s: float, job: Job[Facts]) -> Facts:
        match question:
            case JoinGroup():
                self._groups.join(question.group, timeout_s)
                return {}
            case LeaveGroup():
                self._groups.leave(question.group_name)
                return {}
            case ReceiveTensors():
                return self._received(question, timeout_s, job)
            case DropTensors():
                self._groups.drop(question.session)
                return {}
            case ReadTensor():
                return self._tensor(question)
            case ReadChecksums():
                return self._checksums(question)
            case EmptyCache():
                raise AssertionError("answered at once")
            case _:
                assert_never(question)

    def _received(self, question: ReceiveTensors, timeout_s: float, job: Job[Facts]) -> Facts:
        expected = checked(
            question.names,
            question.dtypes,
            question.shapes,
            question.load_format,
            self._runner.config,
        )
        tensors, size = self._groups.receive(
            question.session, question.group_name, expected, timeout_s, job.note
        )
        return {"tensors": tensors, "bytes": size}

    def _tensor(self, question: ReadTensor) -> Facts:
        self._refuse_without_weights()
        for name, tensor in self._runner.tensors():
            if name == question.name:
                rows = tensor[: question.truncate_size].float()
                return {"numbers": rows.flatten().tolist(), "shape": list(rows.shape)}
        raise WeightsError(f"no tensor {question.name!r}")

    def _checksums(self, question: ReadChecksums) -> Facts:
        """Computed anew from the memory that is computed with, or as noted when it was loaded."""
        self._refuse_without_weights()
        digest = self._runner.digest
        assert digest is not None
        if question.recompute:
            digest = Digest(dtype=digest.dtype)
            for name, tensor in self._runner.tensors():
                digest.tensors[name] = digits_of(tensor)
                digest.shapes[name] = tuple(tensor.shape)
        return {"checksums": digest.tensors, "checksum": digest.checksum()}

    def _refuse_without_weights(self) -> None:
        if self._runner.digest is None:
            raise WeightsError("the weights are released")


def _nothing(job: Job[None]) -> None:
    """Nobody waits for it."""
