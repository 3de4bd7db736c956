"""The base of every kind's parameters: checked when made, unknown fields refused, never changed.

Knows the protocol's operations; knows no rows but by what is stored of it (`stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from console.choices import JobKind, Mode
from engine.protocol import MAX_TIMEOUT_S, Operation

AT_ONCE_TIMEOUT_S = 60.0

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def _plain(value: object) -> object:
    """A word of one of our own enums as the word it is."""
    return str(value) if isinstance(value, Mode) else value


def no_nul(text: str) -> str:
    """The text. Raises ValueError for a NUL, which no database and no file system takes."""
    if "\x00" in text:
        raise ValueError("must not hold a NUL")
    return text


ModeWord = Annotated[
    Literal["if_idle", "wait", "drain", "retract", "abort"], BeforeValidator(_plain)
]
Seconds = Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(no_nul)]


class JobParams(BaseModel):
    """What a job is asked to do. Its fields are all that is stored of a request's `params`."""

    # What was sent may be a secret, also where it does not belong: no error repeats it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
    kind: ClassVar[JobKind]

    def operation(self, *, job_id: str) -> Operation:
        """What the engine is told."""
        raise NotImplementedError

    def stored(self) -> dict[str, Json]:
        """As kept with the job, and read again by its worker."""
        return self.model_dump(mode="json")

    def audited(self) -> dict[str, Json]:
        """As the audit log keeps it: like `stored`, but for what would only fill it."""
        return self.stored()

    def compared(self) -> dict[str, Json]:
        """What two requests must share to be the same: like `stored`, but for names made anew."""
        return self.stored()

    @property
    def secret_values(self) -> dict[str, str]:
        """What its engine must be told beforehand, because nothing of ours may hold it."""
        return {}

    def with_kept(self, name: str, fingerprints: Mapping[str, str]) -> Self:
        """The same, once its engine keeps the secrets under `name`."""
        assert not fingerprints, "this kind has no secrets"
        return self

    @property
    def waits(self) -> bool:
        """True when it waits for idle, in a mode and until a deadline."""
        return False

    @property
    def mode_in_force(self) -> Mode:
        """What is done to requests meanwhile; an operation that waits for nothing says `wait`."""
        return Mode.WAIT

    @property
    def timeout_in_force_s(self) -> float:
        """How long the engine may take until the effect begins."""
        return AT_ONCE_TIMEOUT_S


class WaitingParams(JobParams):
    """Of an operation that waits for idle: how long, and what is done to requests meanwhile."""

    timeout_s: Seconds = 60.0
    mode: ModeWord = "wait"

    @model_validator(mode="after")
    def _timeout_suits_mode(self) -> Self:
        if self.timeout_s == 0 and self.mode not in (Mode.IF_IDLE, Mode.WAIT):
            raise ValueError(f"timeout_s must be greater than 0 with mode {self.mode}")
        return self

    @property
    def waits(self) -> bool:
        """It does."""
        return True

    @property
    def mode_in_force(self) -> Mode:
        """`wait` for no time at all is `if_idle`."""
        return Mode.IF_IDLE if self.timeout_s == 0 else Mode(self.mode)

    @property
    def timeout_in_force_s(self) -> float:
        """`if_idle` waits for no time."""
        return 0.0 if self.mode_in_force == Mode.IF_IDLE else float(self.timeout_s)
