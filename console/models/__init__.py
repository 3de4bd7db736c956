"""Rows. No logic but constraints: services write them, selectors read them."""

from console.models.audit import AuditEntry
from console.models.engines import Engine
from console.models.jobs import Job, JobRankResult, Outbox
from console.models.tokens import ApiToken
from console.models.uploads import Upload
from console.models.users import User

__all__ = ["ApiToken", "AuditEntry", "Engine", "Job", "JobRankResult", "Outbox", "Upload", "User"]
