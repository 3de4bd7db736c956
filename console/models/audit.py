"""The audit log: append-only, kept by triggers; `body` holds the bytes that are chained."""

from django.db import models
from django.db.models import Q

from console.choices import AuditStage


class AuditEntry(models.Model):
    """One act. The columns beside `body` and `hash` only index it; the body is the truth."""

    seq = models.BigIntegerField(primary_key=True)  # gap-free, from 1
    v = models.PositiveSmallIntegerField()
    body = models.TextField()  # RFC 8785 text; never serialised again
    hash = models.CharField(max_length=64)  # hex; console.chain
    created_at = models.DateTimeField()
    action = models.CharField(max_length=64)
    stage = models.CharField(max_length=16, choices=AuditStage)
    actor_name = models.CharField(max_length=150)
    via = models.CharField(max_length=8, blank=True, default="")
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    engine_name = models.CharField(max_length=63, blank=True, default="")
    kind = models.CharField(max_length=32, blank=True, default="")
    result = models.CharField(max_length=24, blank=True, default="")
    job_id = models.UUIDField(null=True, default=None)  # no foreign key: it outlives the job

    class Meta:
        ordering = ["-seq"]
        indexes = [
            models.Index(fields=["job_id", "seq"], name="audit_of_job"),
            models.Index(fields=["actor_name", "seq"], name="audit_of_actor"),
            models.Index(fields=["engine_name", "seq"], name="audit_of_engine"),
            models.Index(fields=["action", "seq"], name="audit_of_action"),
            models.Index(fields=["created_at", "seq"], name="audit_of_time"),
            models.Index(
                fields=["token_prefix", "seq"],
                condition=~Q(token_prefix=""),
                name="audit_of_token",
            ),
            models.Index(
                fields=["request_id", "seq"],
                condition=~Q(request_id=""),
                name="audit_of_request",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["job_id"],
                condition=Q(stage=AuditStage.OUTCOME, job_id__isnull=False),
                name="audit_one_outcome_a_job",
            )
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.action}"


class AuditSegment(models.Model):
    """Entries that were exported, signed and removed; the chain goes on from its head."""

    first = models.BigIntegerField(unique=True)
    last = models.BigIntegerField(unique=True)
    head_hash = models.CharField(max_length=64)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    closed_at = models.DateTimeField()
    closed_by = models.CharField(max_length=150)
    file_name = models.CharField(max_length=200)
    file_digest = models.CharField(max_length=64)  # SHA-256 of the export, hex
    record = models.TextField()  # the signed closing record, as in the file

    class Meta:
        ordering = ["first"]

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


class AuditCheck(models.Model):
    """How far the chain was last checked; one row."""

    head = models.BigIntegerField()
    seq = models.BigIntegerField()  # the last entry that is as it was written
    hash = models.CharField(max_length=64)  # of the last entry that was followed
    checked_at = models.DateTimeField()
    anchored_to = models.BigIntegerField()
    anchored_at = models.CharField(max_length=40, blank=True, default="")
    fault_seq = models.BigIntegerField(default=0)
    fault = models.CharField(max_length=300, blank=True, default="")

    def __str__(self) -> str:
        return f"checked to {self.seq}"
