"""Error codes that cross the control socket, and the exception that carries one."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a command was not carried out. Callers decide on the code, never on the sentence."""

    BAD_MESSAGE = "bad_message"
    VERSION_MISMATCH = "version_mismatch"
    STALE_EPOCH = "stale_epoch"
    INVALID_ARGUMENT = "invalid_argument"
    OPERATION_PENDING = "operation_pending"
    UNKNOWN_OPERATION = "unknown_operation"
    NOT_CANCELLABLE = "not_cancellable"
    TOO_LATE = "too_late"
    TOO_OLD = "too_old"
    SEALED = "sealed"
    RANK_NOT_READY = "rank_not_ready"
    NOT_READY = "not_ready"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    OVERLOADED = "overloaded"
    INTERNAL = "internal"


# Codes after which the same command may be sent again, later.
RETRYABLE = frozenset(
    {
        ErrorCode.STALE_EPOCH,
        ErrorCode.OPERATION_PENDING,
        ErrorCode.RANK_NOT_READY,
        ErrorCode.NOT_READY,
        ErrorCode.JOURNAL_UNAVAILABLE,
        ErrorCode.OVERLOADED,
    }
)


class ProtocolError(Exception):
    """A command was refused: `code`, a sentence, and for OPERATION_PENDING who holds the engine."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        holder: str | None = None,
        remaining_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.holder = holder
        self.remaining_s = remaining_s

    @property
    def is_retryable(self) -> bool:
        """True when the same command may succeed later."""
        return self.code in RETRYABLE
