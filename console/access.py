"""Who may do what: acts, roles, grants, and the one place where it is decided.

A grant gives a role on a group of engines, within limits. What a person may do is what some grant
gives; what a token may do is that, and within the token's scopes and engines. Nothing here reads
rows: `console.selectors.access` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from django.db.models import TextChoices

from console.choices import STORAGE_KINDS, WEIGHT_KINDS, JobKind, Mode
from console.exceptions import Forbidden
from console.labels import Selector, selector_read


class Act(TextChoices):
    """What can be done, as a token's scope names it."""

    READ = "fleet:read", "See engines, ranks, jobs, plans and uploads."
    TRY = "engine:try", "Send a prompt from the console."
    FLUSH = "jobs:flush", "Flush L1 and L2."
    PAUSE = "jobs:pause", "Pause and continue generation."
    CONTROL = "jobs:control", "Abort requests, release and resume memory, repair ranks."
    WEIGHTS = "weights:update", "Push weights, name them, upload files of weights."
    STORAGE = "storage:attach", "Attach, detach and switch backends, set cache policies."
    CLEAR = "storage:clear", "Delete what a storage backend holds."
    TOKENS = "tokens:write", "Make and revoke one's own tokens."
    AUDIT = "audit:read", "Read, verify and export the audit log."
    CLOSE = "audit:close", "Close a segment of the audit log; replace its key."
    ENGINES = "engines:write", "Register, label, disable and remove engines."
    USERS = "users:write", "Make and disable users, give roles, revoke tokens of others."


class Role(TextChoices):
    """A named set of acts."""

    VIEWER = "viewer", "viewer"
    AUDITOR = "auditor", "auditor"
    OPERATOR = "operator", "operator"
    PUSHER = "pusher", "pusher"
    ADMIN = "admin", "admin"


_BASE = frozenset({Act.READ, Act.TOKENS})
_OPERATES = frozenset({Act.FLUSH, Act.PAUSE, Act.CONTROL, Act.WEIGHTS, Act.STORAGE, Act.CLEAR})
ROLE_ACTS: Mapping[Role, frozenset[Act]] = MappingProxyType(
    {
        Role.VIEWER: _BASE,
        Role.AUDITOR: _BASE | {Act.AUDIT},
        Role.OPERATOR: _BASE | {Act.TRY} | _OPERATES,
        Role.PUSHER: _BASE | {Act.FLUSH, Act.PAUSE, Act.WEIGHTS},
        Role.ADMIN: frozenset(Act),
    }
)
# These steer only the jobs that they asked for themselves.
OWN_JOBS_ONLY = frozenset({Role.PUSHER})
# These are not about an engine, so a role on a group of engines does not give them.
WHOLE_FLEET = frozenset({Act.CLOSE, Act.USERS})

KIND_ACTS: Mapping[JobKind, Act] = MappingProxyType(
    {
        JobKind.FLUSH_CACHE: Act.FLUSH,
        JobKind.PAUSE_GENERATION: Act.PAUSE,
        JobKind.CONTINUE_GENERATION: Act.PAUSE,
        JobKind.ABORT_REQUESTS: Act.CONTROL,
        JobKind.RELEASE_MEMORY: Act.CONTROL,
        JobKind.RESUME_MEMORY: Act.CONTROL,
        **dict.fromkeys(WEIGHT_KINDS, Act.WEIGHTS),
        JobKind.REPAIR: Act.CONTROL,
        **dict.fromkeys(STORAGE_KINDS, Act.STORAGE),
        JobKind.CLEAR_STORAGE_BACKEND: Act.CLEAR,
    }
)
assert set(KIND_ACTS) == set(JobKind), "each kind has its act"


@dataclass(frozen=True)
class Asked:
    """What of a request limits speak of."""

    mode: str = ""
    timeout_s: float = 0.0
    is_forced: bool = False


@dataclass(frozen=True)
class Grant:
    """One role on one group of engines, within limits."""

    role: Role
    selector: Selector = selector_read("")  # noqa: RUF009  # frozen
    max_timeout_s: float | None = None
    modes: frozenset[str] | None = None  # None: every mode
    may_force: bool = True

    def gives(self, act: Act) -> bool:
        """True when the role has it, on some engine."""
        return act in ROLE_ACTS[self.role] and (act not in WHOLE_FLEET or self.selector.is_all)

    def why_not(self, asked: Asked) -> str:
        """Which limit forbids it; empty when none does."""
        if asked.mode and self.modes is not None and asked.mode not in self.modes:
            allowed = ", ".join(mode for mode in Mode.values if mode in self.modes)
            return f"mode {asked.mode} is not among the allowed ones ({allowed or 'none'})"
        if self.max_timeout_s is not None and asked.timeout_s > self.max_timeout_s:
            return (
                f"a deadline of {asked.timeout_s:g} s is longer than the longest allowed one, "
                f"{self.max_timeout_s:g} s"
            )
        if asked.is_forced and not self.may_force:
            return "forcing is not allowed"
        return ""


@dataclass(frozen=True)
class Rights:
    """What somebody may do: by their grants, and by the token that they came with."""

    user_id: int | None = None
    grants: tuple[Grant, ...] = ()
    scopes: frozenset[Act] | None = None  # None: no token, or one with all that its owner may
    reach: Selector = selector_read("")  # noqa: RUF009  # of the token
    ends_at: datetime | None = None  # of the token; None: no token, or one without an end

    def without_person(self) -> Rights:
        """The same, also for others with these grants, where it matters to none whose they are."""
        if any(grant.role in OWN_JOBS_ONLY for grant in self.grants):
            return self
        return replace(self, user_id=None)

    def _with(self, act: Act, labels: Mapping[str, str] | None) -> list[Grant]:
        """The grants that give `act` on an engine, or on any when `labels` is None."""
        if self.scopes is not None and act not in self.scopes:
            return []
        if labels is None:
            is_reached = act not in WHOLE_FLEET or self.reach.is_all
            return [grant for grant in self.grants if is_reached and grant.gives(act)]
        if not self.reach.fits(labels):
            return []
        return [one for one in self.grants if one.gives(act) and one.selector.fits(labels)]

    def may(self, act: Act, labels: Mapping[str, str] | None = None) -> bool:
        """True when allowed on an engine with these labels; without labels, on some engine."""
        return bool(self._with(act, labels))

    def may_everywhere(self, act: Act) -> bool:
        """True when allowed on every engine, also on those to come."""
        return self.reach.is_all and any(one.selector.is_all for one in self._with(act, None))

    def require(
        self,
        act: Act,
        labels: Mapping[str, str] | None = None,
        *,
        asked: Asked | None = None,
        asked_by: int | None = None,
        whose: bool = False,
    ) -> None:
        """Raise Forbidden, with what is missing and who grants it, unless it is allowed.

        `whose`: it is about a job, of the person `asked_by`.
        """
        grants = self._with(act, labels)
        if whose and (asked_by is None or asked_by != self.user_id):
            own, grants = grants, [one for one in grants if one.role not in OWN_JOBS_ONLY]
            if own and not grants:
                raise Forbidden(
                    f"the role {own[0].role} steers only their own jobs; those of others need "
                    f"{roles_with(act, but=OWN_JOBS_ONLY)}, and an admin grants it",
                    facts={"act": str(act)},
                )
        if not grants:
            raise Forbidden(self._missing(act, labels), facts={"act": str(act)})
        if asked is not None:
            reasons = [grant.why_not(asked) for grant in grants]
            if all(reasons):
                raise Forbidden(f"{reasons[0]}; an admin sets it", facts={"act": str(act)})

    def why_denied(
        self,
        act: Act,
        labels: Mapping[str, str] | None = None,
        *,
        whose: bool = False,
        asked_by: int | None = None,
    ) -> str:
        """What `require` would raise, as words for a page; empty when it is allowed."""
        try:
            self.require(act, labels, whose=whose, asked_by=asked_by)
        except Forbidden as error:
            return error.message
        return ""

    def _missing(self, act: Act, labels: Mapping[str, str] | None) -> str:
        if self.scopes is not None and act not in self.scopes:
            return f"this token has not the scope {act}"
        if labels is not None and not self.reach.fits(labels):
            return "this token does not reach this engine"
        where = "" if labels is None else " on this engine"
        return f"{act} needs {roles_with(act)}{where}; an admin grants it"


def roles_with(act: Act, *, but: Collection[Role] = ()) -> str:
    """`the role operator or admin`."""
    names = [str(role) for role in Role if act in ROLE_ACTS[role] and role not in but]
    return (
        f"the role {', '.join(names[:-1])} or {names[-1]}"
        if len(names) > 1
        else (f"the role {names[0]}")
    )


EVERYTHING = Rights(grants=(Grant(Role.ADMIN),))  # of the console itself
NOTHING = Rights()
