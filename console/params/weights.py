"""Parameters of what changes the weights: from disk, uploaded files, a trainer; a name."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from console.choices import JobKind
from console.params.base import JobParams, Json, WaitingParams, no_nul
from engine.protocol import (
    Operation,
    TrainerGroup,
    UpdateWeightsFromDisk,
    UpdateWeightsFromDistributed,
    UpdateWeightsFromTensor,
    UpdateWeightVersion,
)
from engine.protocol.operations import MAX_TENSORS

MAX_FILES = 200
Version = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=128,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u{061c}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{feff}]+$",
    ),
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(no_nul)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=16)]


class WeightParams(WaitingParams):
    """What every weight update may say. `timeout_s` counts from the end of staging."""

    weight_version: Version | None = None
    flush_cache: bool = True
    torch_empty_cache: bool = False
    expected_checksum: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")] | None = None
    allow_nonfinite: bool = False


class DiskParams(WeightParams):
    """A folder of safetensors, on the engine's host, under one of its roots."""

    kind: ClassVar[JobKind] = JobKind.UPDATE_WEIGHTS_FROM_DISK
    model_path: Annotated[
        str, StringConstraints(min_length=1, max_length=4096), AfterValidator(no_nul)
    ]

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return UpdateWeightsFromDisk(
            model_path=self.model_path,
            weight_version=self.weight_version,
            flush_cache=self.flush_cache,
            torch_empty_cache=self.torch_empty_cache,
            expected_checksum=self.expected_checksum,
            allow_nonfinite=self.allow_nonfinite,
        )


def _once(uploads: list[str]) -> list[str]:
    if len(set(uploads)) != len(uploads):
        raise ValueError("must name each file once")
    return uploads


class TensorParams(WeightParams):
    """Uploaded files, by their SHA-256; together they hold every tensor of the model."""

    kind: ClassVar[JobKind] = JobKind.UPDATE_WEIGHTS_FROM_TENSOR
    uploads: Annotated[
        list[Sha256], Field(min_length=1, max_length=MAX_FILES), AfterValidator(_once)
    ]

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told, once its files are there under the job's id."""
        return UpdateWeightsFromTensor(
            upload_id=job_id,
            weight_version=self.weight_version,
            flush_cache=self.flush_cache,
            torch_empty_cache=self.torch_empty_cache,
            expected_checksum=self.expected_checksum,
            allow_nonfinite=self.allow_nonfinite,
        )


class TrainerGroupIn(BaseModel):
    """The trainer's process group: it is rank 0, DP rank r of the engine is `rank_offset` + r."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    master_address: Name
    master_port: Annotated[int, Field(ge=1, le=65535)]
    rank_offset: Annotated[int, Field(ge=0, le=100_000)] = 1
    world_size: Annotated[int, Field(ge=2, le=100_000)]
    group_name: Name = "weight_update_group"
    backend: Literal["nccl", "gloo"] = "nccl"


class DistributedParams(WeightParams):
    """What a trainer broadcasts. The ranks join its group for this job and leave it again.

    Without names: every tensor of the model, sorted by name, in the engine's dtype.
    """

    kind: ClassVar[JobKind] = JobKind.UPDATE_WEIGHTS_FROM_DISTRIBUTED
    group: TrainerGroupIn
    names: Annotated[list[Name], Field(max_length=MAX_TENSORS)] = []
    dtypes: Annotated[list[Name], Field(max_length=MAX_TENSORS)] = []
    shapes: Annotated[list[Shape], Field(max_length=MAX_TENSORS)] = []
    load_format: Literal["flattened_bucket"] | None = None
    receive_timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 120.0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise ValueError(
                f"names, dtypes and shapes must be as many: {len(self.names)}, "
                f"{len(self.dtypes)}, {len(self.shapes)}"
            )
        return self

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return UpdateWeightsFromDistributed(
            names=list(self.names),
            dtypes=list(self.dtypes),
            shapes=[list(shape) for shape in self.shapes],
            load_format=self.load_format,
            group_name=self.group.group_name,
            group=TrainerGroup(**self.group.model_dump()),
            receive_timeout_s=self.receive_timeout_s,
            weight_version=self.weight_version,
            flush_cache=self.flush_cache,
            torch_empty_cache=self.torch_empty_cache,
            expected_checksum=self.expected_checksum,
            allow_nonfinite=self.allow_nonfinite,
        )

    def audited(self) -> dict[str, Json]:
        """With how many tensors, and their digest, in place of a list of thousands."""
        facts = self.stored()
        listed = [facts.pop(name) for name in ("names", "dtypes", "shapes")]
        if self.names:
            facts["num_tensors"] = len(self.names)
            facts["tensors_sha256"] = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        return facts


class VersionParams(JobParams):
    """What the weights that are served are called from now on."""

    kind: ClassVar[JobKind] = JobKind.UPDATE_WEIGHT_VERSION
    new_version: Version

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return UpdateWeightVersion(new_version=self.new_version)
