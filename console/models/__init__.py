"""Rows. No logic but constraints: services write them, selectors read them."""

from console.models.audit import AuditCheck, AuditEntry, AuditSegment
from console.models.engines import Engine
from console.models.grants import RoleGrant
from console.models.jobs import Job, JobRankResult, Outbox
from console.models.tokens import ApiToken
from console.models.uploads import Upload
from console.models.users import User

__all__ = [
    "ApiToken",
    "AuditCheck",
    "AuditEntry",
    "AuditSegment",
    "Engine",
    "Job",
    "JobRankResult",
    "Outbox",
    "RoleGrant",
    "Upload",
    "User",
]
