"""Tokens, people, roles and engines to register: what the API takes and gives."""

from __future__ import annotations

from typing import Annotated, Literal

from ninja import Schema
from pydantic import Field, StringConstraints

from api.schemas.inputs import Flag, Moment, Strict, Text
from console.access import Act, Role
from console.choices import Mode
from console.labels import MAX_LABELS, MAX_SELECTOR_CHARS
from engine.protocol import MAX_TIMEOUT_S

Name = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=150, pattern=r"^[^\x00]*$")
]
SelectorText = Annotated[
    str, StringConstraints(strict=True, max_length=MAX_SELECTOR_CHARS, pattern=r"^[^\x00]*$")
]
LabelText = Annotated[str, StringConstraints(strict=True, max_length=63, pattern=r"^[^\x00]*$")]
Labels = Annotated[dict[LabelText, LabelText], Field(max_length=MAX_LABELS)]
Address = Annotated[str, StringConstraints(strict=True, max_length=255, pattern=r"^[^\x00]*$")]
CurveKey = Annotated[str, StringConstraints(strict=True, max_length=40, pattern=r"^[^\x00]*$")]


class TokenIn(Strict):
    """A token to make, for oneself when no owner is named. `scopes` null: all its owner may."""

    name: Name
    owner: Name | None = None
    scopes: Annotated[list[Act], Field(max_length=len(Act))] | None = None
    engines: SelectorText = ""
    expires_at: Moment


class ReasonIn(Strict):
    """Why."""

    reason: Text = ""


class TokenOut(Schema):
    """A token; its text is given once, when it is made."""

    prefix: str
    name: str
    owner: str
    state: str
    scopes: list[str] | None
    engines: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    last_used_from: str | None
    revoked_at: str | None
    revoked_by: str | None
    revoked_reason: str | None


class MadeTokenOut(TokenOut):
    """A new token with its text."""

    token: str


class TokenPage(Schema):
    """Tokens, newest first."""

    items: list[TokenOut]
    next_cursor: str | None


class GrantIn(Strict):
    """A role, the engines that it holds on, and its limits (null: none)."""

    role: Role
    engines: SelectorText = ""
    max_timeout_s: (
        Annotated[float, Field(strict=True, gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] | None
    ) = None
    modes: Annotated[list[Mode], Field(min_length=1, max_length=len(Mode))] | None = None
    may_force: Flag = True


class UserIn(Strict):
    """Someone to make. A service account has no password; a person's is made and given once."""

    username: Name
    full_name: Annotated[str, StringConstraints(strict=True, max_length=150)] = ""
    is_service: Flag = False
    roles: Annotated[list[Role], Field(max_length=len(Role))] = []


class UserChangeIn(Strict):
    """Disable or enable."""

    is_active: Flag


class GrantOut(Schema):
    """One role of somebody."""

    id: int
    role: str
    engines: str
    max_timeout_s: float | None
    modes: list[str] | None
    may_force: bool
    created_at: str
    created_by: str


class UserOut(Schema):
    """One person or service account."""

    username: str
    full_name: str
    is_active: bool
    is_service: bool
    last_login: str | None
    grants: list[GrantOut]


class MadeUserOut(UserOut):
    """A new one, and the password that was made."""

    password: str | None


class UserPage(Schema):
    """Everybody, by name."""

    items: list[UserOut]
    next_cursor: str | None


class SelfOut(Schema):
    """Who asks; `acts`: what they may do on some engine, by role and by token."""

    username: str
    token: str | None
    acts: list[str]
    grants: list[GrantOut]


class EngineIn(Strict):
    """An engine to register. tcp addresses need the engine's public CURVE key (Z85)."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    control_address: Address
    events_address: Address
    curve_key: CurveKey = ""
    labels: Labels = {}
    driver: Literal["quiesce"] = "quiesce"
    enabled: Flag = True
    reason: Text = ""


class EngineChangeIn(Strict):
    """What to change of an engine; what is left out stays."""

    enabled: Flag | None = None
    labels: Labels | None = None
    control_address: Address | None = None
    events_address: Address | None = None
    curve_key: CurveKey | None = None
    reason: Text = ""
