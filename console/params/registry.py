"""Which schema belongs to which kind, and reading one: a bad field is named by its path."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError

from console.choices import JobKind
from console.exceptions import Invalid
from console.params.base import JobParams
from console.params.control import (
    AbortParams,
    ContinueParams,
    FlushParams,
    PauseParams,
    ReleaseParams,
    RepairParams,
    ResumeParams,
)
from console.params.storage import (
    STORED,
    AttachParams,
    ClearParams,
    DetachParams,
    PoliciesParams,
)
from console.params.weights import DiskParams, DistributedParams, TensorParams, VersionParams

PARAMS: Mapping[JobKind, type[JobParams]] = MappingProxyType(
    {
        made.kind: made
        for made in (
            FlushParams,
            DiskParams,
            TensorParams,
            DistributedParams,
            VersionParams,
            PauseParams,
            ContinueParams,
            AbortParams,
            ReleaseParams,
            ResumeParams,
            AttachParams,
            DetachParams,
            ClearParams,
            PoliciesParams,
            RepairParams,
        )
    }
)
assert set(PARAMS) == set(JobKind), "each kind has its schema"


def error_words(error: ValidationError) -> list[tuple[str, str]]:
    """(path, sentence) of each bad field; the path of a rule over several fields is empty."""
    return [
        (
            ".".join(str(part)[:64] for part in item["loc"]),
            item["msg"].removeprefix("Value error, "),
        )
        for item in error.errors()
    ]


def params_of(kind: str, values: Mapping[str, object]) -> JobParams:
    """The checked parameters of `kind`. Raises Invalid, naming the first bad field by its path."""
    try:
        return PARAMS[JobKind(kind)].model_validate(dict(values))
    except ValidationError as error:
        path, words = error_words(error)[0]
        raise Invalid(f"{path}: {words}" if path else words, facts={"field": path}) from error


def params_or_words(
    kind: str, values: Mapping[str, object]
) -> tuple[JobParams | None, list[tuple[str, str]]]:
    """The checked parameters, or (path, sentence) of every bad field: for a form."""
    try:
        return PARAMS[JobKind(kind)].model_validate(dict(values)), []
    except ValidationError as error:
        return None, error_words(error)


def params_from(kind: str, stored: Mapping[str, object]) -> JobParams:
    """As it was stored with a job. What this release does not know is an assertion of ours."""
    return PARAMS[JobKind(kind)].model_validate(dict(stored), context=STORED)
