"""Parameters of what changes no weights: flush, pause, continue, abort, release, resume, repair."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from console.choices import JobKind
from console.params.base import JobParams, Text, WaitingParams, no_nul
from engine.protocol import (
    AbortRequests,
    ContinueGeneration,
    FlushCache,
    MemoryTag,
    Operation,
    PauseGeneration,
    PauseMode,
    ReleaseMemory,
    Repair,
    ResumeMemory,
)

TagWord = Literal["kv_cache", "weights"]


def _once(tags: list[TagWord]) -> list[TagWord]:
    if len(set(tags)) != len(tags):
        raise ValueError("must name each tag once")
    return tags


Tags = Annotated[list[TagWord], Field(min_length=1, max_length=2), AfterValidator(_once)]


class FlushParams(WaitingParams):
    """How long to wait for idle, what to do meanwhile, and whether device memory is given back."""

    kind: ClassVar[JobKind] = JobKind.FLUSH_CACHE
    empty_cache: bool = True

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return FlushCache(empty_cache=self.empty_cache)


class PauseParams(JobParams):
    """What becomes of running requests while the engine is paused."""

    kind: ClassVar[JobKind] = JobKind.PAUSE_GENERATION
    pause_mode: Literal["abort", "retract", "in_place"] = "abort"

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return PauseGeneration(pause_mode=PauseMode(self.pause_mode))


class ContinueParams(JobParams):
    """Whether cached device memory is handed back before the engine steps again."""

    kind: ClassVar[JobKind] = JobKind.CONTINUE_GENERATION
    torch_empty_cache: bool = True

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return ContinueGeneration(torch_empty_cache=self.torch_empty_cache)


class AbortParams(JobParams):
    """Which request is ended: one by its exact id, or all of them."""

    kind: ClassVar[JobKind] = JobKind.ABORT_REQUESTS
    rid: Annotated[str, StringConstraints(max_length=256), AfterValidator(no_nul)] = ""
    abort_all: bool = False
    message: Annotated[Text, Field(max_length=1024)] = "Aborted"

    @model_validator(mode="after")
    def _one_or_all(self) -> Self:
        if bool(self.rid) == self.abort_all:
            raise ValueError("rid must name a request, or abort_all must be true, and not both")
        return self

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return AbortRequests(rid=self.rid, abort_all=self.abort_all, message=self.message)


class ReleaseParams(WaitingParams):
    """Which memory is given back, and how long to wait for idle before."""

    kind: ClassVar[JobKind] = JobKind.RELEASE_MEMORY
    tags: Tags = ["kv_cache", "weights"]

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return ReleaseMemory(tags=tuple(MemoryTag(tag) for tag in self.tags))


class ResumeParams(JobParams):
    """Which memory is taken again. Weights come back without contents."""

    kind: ClassVar[JobKind] = JobKind.RESUME_MEMORY
    tags: Tags = ["kv_cache", "weights"]

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return ResumeMemory(tags=tuple(MemoryTag(tag) for tag in self.tags))


class RepairParams(JobParams):
    """Nothing to say: every living rank is brought to what the engine is to serve."""

    kind: ClassVar[JobKind] = JobKind.REPAIR

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return Repair()
