"""GET /me; GET and POST /users, GET and PATCH /users/{username}, and its grants."""

from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from api.auth import actor
from api.query import only_query
from api.schemas.outputs import Problem
from api.schemas.people import (
    GrantIn,
    GrantOut,
    MadeUserOut,
    SelfOut,
    UserChangeIn,
    UserIn,
    UserOut,
    UserPage,
)
from console.exceptions import NotFound
from console.models import User
from console.requests import rights_in, token_of
from console.selectors.people import (
    grant_payload,
    self_payload,
    user_get,
    user_payload,
    users_list,
)
from console.services.grants import grant_give, grant_take
from console.services.users import password_make, user_create, user_set_active

router = Router(tags=["users"])
me_router = Router(tags=["users"])

_PROBLEMS = {401: Problem, 403: Problem, 404: Problem, 422: Problem, 503: Problem}
_BODY_PROBLEMS = {400: Problem, 409: Problem, 413: Problem, 415: Problem, **_PROBLEMS}


@me_router.get(
    "",
    response={200: SelfOut, 401: Problem, 422: Problem, 503: Problem},
    url_name="me",
    summary="Who asks, and what they may do",
)
@only_query()
def me(request: HttpRequest) -> dict[str, Any]:
    """The person behind the session or the token."""
    token = token_of(request)
    user = token.user if token is not None else request.user
    assert isinstance(user, User), "authenticated"
    return self_payload(user, token, rights_in(request))


@router.get("", response={200: UserPage, **_PROBLEMS}, url_name="users", summary="List users")
@only_query()
def users(request: HttpRequest) -> dict[str, Any]:
    """Everybody, by name."""
    found = users_list(rights=rights_in(request))
    return {"items": [user_payload(user) for user in found], "next_cursor": None}


@router.post("", response={201: MadeUserOut, **_BODY_PROBLEMS}, summary="Make a user")
@only_query()
def create(request: HttpRequest, body: UserIn) -> Status[dict[str, Any]]:
    """With these roles on every engine. A person's password is in this answer, and never again."""
    asker = actor(request)
    password = "" if body.is_service else password_make()
    made = user_create(
        username=body.username,
        full_name=body.full_name,
        password=password,
        is_service=body.is_service,
        roles=[str(role) for role in body.roles],
        actor=asker,
        process="web",
    )
    found = user_get(username=made.username, rights=asker.rights)
    return Status(201, {**user_payload(found), "password": password or None})


@router.get(
    "/{username}", response={200: UserOut, **_PROBLEMS}, url_name="user", summary="Read a user"
)
@only_query()
def user(request: HttpRequest, username: str) -> dict[str, Any]:
    """One person or service account."""
    return user_payload(user_get(username=username, rights=rights_in(request)))


@router.patch(
    "/{username}", response={200: UserOut, **_BODY_PROBLEMS}, summary="Disable or enable a user"
)
@only_query()
def change(request: HttpRequest, username: str, body: UserChangeIn) -> dict[str, Any]:
    """Disabled: sessions, tokens and open pages end at once."""
    asker = actor(request)
    user_get(username=username, rights=asker.rights)
    user_set_active(username=username, is_active=body.is_active, actor=asker, process="web")
    return user_payload(user_get(username=username, rights=asker.rights))


@router.post(
    "/{username}/grants",
    response={200: GrantOut, **_BODY_PROBLEMS},
    url_name="grants",
    summary="Give a role, or change its limits",
)
@only_query()
def give(request: HttpRequest, username: str, body: GrantIn) -> dict[str, Any]:
    """One role on one group of engines; given again, its limits change."""
    asker = actor(request)
    user_get(username=username, rights=asker.rights)
    row = grant_give(
        username=username,
        role=str(body.role),
        selector=body.engines,
        max_timeout_s=body.max_timeout_s,
        modes=None if body.modes is None else [str(mode) for mode in body.modes],
        may_force=body.may_force,
        actor=asker,
        process="web",
    )
    return grant_payload(row)


@router.delete(
    "/{username}/grants/{int:grant_id}",
    response={204: None, 409: Problem, **_PROBLEMS},
    url_name="grant",
    summary="Take a role away",
)
@only_query()
def take(request: HttpRequest, username: str, grant_id: int) -> Status[None]:
    """Open pages of the person close within a second."""
    asker = actor(request)
    found = user_get(username=username, rights=asker.rights)
    if grant_id not in {row.pk for row in found.grants.all()}:
        raise NotFound(f"{username} has no grant {grant_id}")
    grant_take(grant_id=grant_id, actor=asker, process="web")
    return Status(204, None)
