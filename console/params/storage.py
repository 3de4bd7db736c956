"""Parameters of what changes the storage backend: attach, detach, clear, policies.

A secret is in no field: it is taken out of the settings while they are read, told to the engine
before the job is stored, and known by its fingerprint from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from console.choices import JobKind, Mode
from console.params.base import AT_ONCE_TIMEOUT_S, JobParams, Json, WaitingParams
from console.params.settings import (
    FINGERPRINT,
    NOT_KEPT,
    Settings,
    problems_of,
    schema_of,
    shown,
)
from engine.protocol import (
    AttachStorage,
    ClearStorage,
    DetachStorage,
    Operation,
    PrefetchPolicy,
    SetCachePolicies,
    StorageBackend,
    WritePolicy,
    secrets_of,
)

BackendWord = Literal["file", "valkey", "mooncake", "nixl", "aibrix", "hf3fs", "eic"]
PrefetchWord = Literal["best_effort", "wait_complete", "timeout"]
WriteWord = Literal["write_through", "write_through_selective", "write_back"]
ConfigIdText = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{16})?$")]
RankKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,4})$")]
STORED = {"stored": True}  # context of a reading of what was stored: secrets are fingerprints
_SECRETS_NAME = "secrets"

_ANY_BACKEND: dict[str, Any] = {
    "anyOf": [*(schema_of(backend) for backend in StorageBackend), {"type": "null"}],
    "description": (
        "Settings of the backend; those marked secret are never stored nor shown. Null or left "
        "out: as they are where that backend is attached, else its defaults."
    ),
}


def _policies(prefetch: str | None, write: str | None) -> dict[str, Any]:
    return {
        "prefetch_policy": PrefetchPolicy(prefetch) if prefetch else None,
        "write_policy": WritePolicy(write) if write else None,
    }


class AttachParams(WaitingParams):
    """A backend and its settings; `config_id` names settings that the engine has, instead.

    Without either, a backend that is attached keeps its settings and only policies change; another
    one is attached with its defaults. With `replace`, what is attached is detached in the same job.
    A policy that is null stays.
    """

    kind: ClassVar[JobKind] = JobKind.ATTACH_STORAGE_BACKEND
    backend: BackendWord
    config: Annotated[Settings | None, Field(json_schema_extra=_ANY_BACKEND)] = None
    rank_configs: Annotated[
        dict[RankKey, Settings],
        Field(max_length=1024, description="DP rank → settings laid over `config` on that rank."),
    ] = {}
    config_id: ConfigIdText = ""
    prefetch_policy: PrefetchWord | None = None
    write_policy: WriteWord | None = None
    replace: bool = False
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)  # none is in repr or a dump
    _kept_as: str = PrivateAttr(default="")

    @model_validator(mode="wrap")
    @classmethod
    def _secrets_apart(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        if info.context == STORED:
            given = {name: value for name, value in data.items() if name != _SECRETS_NAME}
            made = handler(given)
            made._kept_as = str(data.get(_SECRETS_NAME, ""))
            return made
        masked, secrets = _taken_out(data)
        made = handler(masked)
        if problems := _problems(made, secrets):
            raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True)
        made._secrets = secrets
        return made

    @property
    def names_no_settings(self) -> bool:
        """Where the backend is attached, its settings stay as they are."""
        return self.config is None and not self.rank_configs and not self.config_id

    @property
    def secret_values(self) -> dict[str, str]:
        """By setting, or by `RANK.setting`, until an engine keeps them."""
        return dict(self._secrets)

    def with_kept(self, name: str, fingerprints: Mapping[str, str]) -> Self:
        """The same with fingerprints in the places of the secrets, which are kept as `name`."""
        stored = self.stored()
        for key in self._secrets:
            rank, _, setting = key.rpartition(".")
            place = stored["rank_configs"][rank] if rank else stored["config"]  # type: ignore[index,call-overload]
            place[setting] = FINGERPRINT + fingerprints[key].removeprefix(FINGERPRINT)  # type: ignore[index,call-overload]
        return self.model_validate({**stored, _SECRETS_NAME: name}, context=STORED)

    def stored(self) -> dict[str, Json]:
        """As kept with the job: with fingerprints, and the name that the engine knows."""
        kept: dict[str, Json] = {_SECRETS_NAME: self._kept_as} if self._kept_as else {}
        return {**super().stored(), **kept}

    def compared(self) -> dict[str, Json]:
        """Without the name, which is new each time."""
        return {name: value for name, value in self.stored().items() if name != _SECRETS_NAME}

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told; no secret, and no fingerprint in the place of one."""
        assert not self._secrets, "its engine must keep the secrets first"
        backend = StorageBackend(self.backend)
        return AttachStorage(
            backend=backend,
            config="" if self.config is None or self.config_id else _text(backend, self.config),
            rank_configs={rank: _text(backend, one) for rank, one in self.rank_configs.items()},
            config_id=self.config_id,
            secrets=self._kept_as,
            replace=self.replace,
            **_policies(self.prefetch_policy, self.write_policy),
        )


def _text(backend: StorageBackend, settings: Settings) -> str:
    hidden = {name for name in secrets_of(backend) if settings.get(name)}
    plain = {name: value for name, value in settings.items() if name not in hidden}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)


def _taken_out(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What was sent with every secret replaced, and the secrets."""
    given, secrets = dict(data), dict[str, str]()
    backend = given.get("backend")
    if backend not in list(StorageBackend):
        return given, secrets
    hidden = secrets_of(StorageBackend(backend))

    def apart(settings: object, prefix: str) -> object:
        if not isinstance(settings, Mapping):
            return settings
        found = dict(settings)
        for name in hidden & set(found):
            if isinstance(found[name], str) and found[name]:
                secrets[prefix + name] = found[name]
                found[name] = NOT_KEPT
        return found

    if "config" in given:
        given["config"] = apart(given["config"], "")
    if isinstance(given.get("rank_configs"), Mapping):
        given["rank_configs"] = {
            rank: apart(one, f"{rank}.") for rank, one in given["rank_configs"].items()
        }
    return given, secrets


def _problems(made: AttachParams, secrets: Mapping[str, str]) -> list[InitErrorDetails]:
    """Every setting that is wrong, by its path; no input is repeated."""

    def wrong(path: tuple[str, ...], words: str) -> InitErrorDetails:
        loc = tuple(part for part in path if part)
        return InitErrorDetails(
            type=PydanticCustomError("setting", "{words}", {"words": words}), loc=loc, input=None
        )

    def whole(settings: Settings, prefix: str) -> Settings:
        return {**settings, **{n: secrets[prefix + n] for n in settings if prefix + n in secrets}}

    if made.names_no_settings:
        return []  # what is attached may have those that are required; the engine knows
    if made.config_id:
        if made.config or made.rank_configs:
            return [
                wrong(("config_id",), "names settings, so config and rank_configs must be empty")
            ]
        return []
    backend, config = StorageBackend(made.backend), whole(made.config or {}, "")
    found = [wrong(("config", name), words) for name, words in problems_of(backend, config)]
    known = {name for name, _ in problems_of(backend, config)}
    for rank, one in made.rank_configs.items():
        own = whole(one, f"{rank}.")
        for name, words in problems_of(backend, {**config, **own}):
            if name in {shown(key) for key in own} or (not name and not known):
                found.append(wrong(("rank_configs", rank, name), words))
    return found


class DetachParams(WaitingParams):
    """What is stored stays. `force` gives up transfers in flight and waits for nothing."""

    kind: ClassVar[JobKind] = JobKind.DETACH_STORAGE_BACKEND
    force: bool = False

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return DetachStorage(force=self.force)

    @property
    def waits(self) -> bool:
        """Not when it is forced."""
        return not self.force

    @property
    def mode_in_force(self) -> Mode:
        """As for anything that waits for nothing, when it is forced."""
        return Mode.WAIT if self.force else super().mode_in_force

    @property
    def timeout_in_force_s(self) -> float:
        """As for anything that waits for nothing, when it is forced."""
        return AT_ONCE_TIMEOUT_S if self.force else super().timeout_in_force_s


class ClearParams(WaitingParams):
    """Deletes what this engine stored in the attached backend. It cannot be undone."""

    kind: ClassVar[JobKind] = JobKind.CLEAR_STORAGE_BACKEND

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return ClearStorage()


class PoliciesParams(JobParams):
    """When pages are copied, and how long requests wait for them; a policy that is null stays."""

    kind: ClassVar[JobKind] = JobKind.SET_CACHE_POLICIES
    prefetch_policy: PrefetchWord | None = None
    write_policy: WriteWord | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.prefetch_policy is None and self.write_policy is None:
            raise ValueError("prefetch_policy or write_policy must be given")
        return self

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        return SetCachePolicies(**_policies(self.prefetch_policy, self.write_policy))
