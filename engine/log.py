"""One log format for every engine process: a fixed phrase with fields, on standard error.

Holds no prompt text and no secret: callers pass ids and counts.
"""

from __future__ import annotations

import contextlib
import logging
import os

import structlog


class _StandardError:
    """A full disk or a closed pipe behind standard error costs log lines, never the engine."""

    def write(self, text: str) -> None:
        """Write at once; what cannot be written is lost."""
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Nothing is kept back."""


def setup(process: str, level: str) -> None:
    """Configure logging of this process once; `process` is bound to every line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Local variables of a traceback would hold keys and prompts: never shown.
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.KeyValueRenderer(
                key_order=["timestamp", "level", "process", "event"]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.PrintLoggerFactory(_StandardError()),  # type: ignore[arg-type] # it prints only
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(process=process)


def get_logger() -> structlog.typing.FilteringBoundLogger:
    """The process's logger."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger
