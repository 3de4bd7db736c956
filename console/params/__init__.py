"""What each kind of job is asked to do: one schema a kind, for API, forms and worker."""

from console.params.base import JobParams, WaitingParams
from console.params.control import (
    AbortParams,
    ContinueParams,
    FlushParams,
    PauseParams,
    ReleaseParams,
    RepairParams,
    ResumeParams,
)
from console.params.registry import PARAMS, params_from, params_of, params_or_words
from console.params.storage import AttachParams, ClearParams, DetachParams, PoliciesParams
from console.params.weights import (
    DiskParams,
    DistributedParams,
    TensorParams,
    TrainerGroupIn,
    VersionParams,
    WeightParams,
)

__all__ = [
    "PARAMS",
    "AbortParams",
    "AttachParams",
    "ClearParams",
    "ContinueParams",
    "DetachParams",
    "DiskParams",
    "DistributedParams",
    "FlushParams",
    "JobParams",
    "PauseParams",
    "PoliciesParams",
    "ReleaseParams",
    "RepairParams",
    "ResumeParams",
    "TensorParams",
    "TrainerGroupIn",
    "VersionParams",
    "WaitingParams",
    "WeightParams",
    "params_from",
    "params_of",
    "params_or_words",
]
