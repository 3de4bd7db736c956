"""Everything that the console refuses or fails at, as a code, a sentence and an HTTP status.

Raised by services, selectors and gateways; pages and the API only render them.
"""

from __future__ import annotations

from collections.abc import Mapping

Facts = Mapping[str, str | int | float | None]


class ConsoleError(Exception):
    """Root of the tree. `facts` are extra members of the problem document."""

    code = "console_error"
    title = "The console could not do this"
    status = 500

    def __init__(self, message: str, *, facts: Facts | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Facts = facts or {}


class NotFound(ConsoleError):
    """No such thing, or none that the asker may see."""

    code = "not_found"
    title = "Not found"
    status = 404


class EngineNotFound(NotFound):
    """No engine of that name is registered."""

    code = "engine_not_found"


class JobNotFound(NotFound):
    """No job has that id."""

    code = "job_not_found"


class Invalid(ConsoleError):
    """The request is well formed and means something that cannot be."""

    code = "invalid"
    title = "Invalid request"
    status = 422


class IdempotencyMismatch(Invalid):
    """The same key came with another body."""

    code = "idempotency_key_reused"


class BadRequest(ConsoleError):
    """The request cannot be read."""

    code = "bad_request"
    title = "Unreadable request"
    status = 400


class BodyTooLarge(ConsoleError):
    """The body passes the limit."""

    code = "body_too_large"
    title = "Body too large"
    status = 413


class UnsupportedMediaType(ConsoleError):
    """The body is not JSON."""

    code = "unsupported_media_type"
    title = "Unsupported media type"
    status = 415


class Forbidden(ConsoleError):
    """The asker is known, and not allowed to. Facts: `act`."""

    code = "forbidden"
    title = "Not allowed"
    status = 403


class Conflict(ConsoleError):
    """The state of things does not allow this now."""

    code = "conflict"
    title = "Conflict"
    status = 409


class PreconditionFailed(ConsoleError):
    """The thing has changed since the asker read it. Facts: `version`."""

    code = "precondition_failed"
    title = "It has changed"
    status = 412


class EngineBusy(Conflict):
    """Another operation holds the engine. Facts: `holder` (job id or null), `remaining_s`."""

    code = "operation_pending"


class JobFinished(Conflict):
    """The job has ended; nothing can be changed any more."""

    code = "job_finished"


class EngineRefused(Conflict):
    """The engine refused a command on a pending operation. Facts: `engine_code`."""

    code = "engine_refused"


class EngineDisabled(Conflict):
    """The engine is registered and switched off."""

    code = "engine_disabled"


class AlreadyExists(Conflict):
    """A thing of that name is there."""

    code = "already_exists"


class Unavailable(ConsoleError):
    """A part is down; nothing was changed."""

    code = "unavailable"
    title = "Temporarily unavailable"
    status = 503


class EngineUnreachable(Unavailable):
    """No answer from the engine in the time allowed."""

    code = "engine_unreachable"


class ConsoleKeyUnusable(Unavailable):
    """An engine elsewhere cannot be spoken to: the console's own key is missing or unsafe."""

    code = "console_key_unusable"


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, signed or read; what was asked was not done."""

    code = "audit_unavailable"
    title = "The audit log is not available"
