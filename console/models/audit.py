"""The audit log: append-only, kept by triggers; `body` holds the bytes that will be chained."""

from django.db import models
from django.db.models import Q

from console.choices import AuditStage


class AuditEntry(models.Model):
    """One act. The columns beside `body` only index it; the body is the truth."""

    seq = models.BigIntegerField(primary_key=True)  # gap-free, from 1
    v = models.PositiveSmallIntegerField()
    body = models.TextField()  # RFC 8785 text; never serialised again
    created_at = models.DateTimeField()
    action = models.CharField(max_length=64)
    stage = models.CharField(max_length=16, choices=AuditStage)
    actor_name = models.CharField(max_length=150)
    engine_name = models.CharField(max_length=63, blank=True, default="")
    job_id = models.UUIDField(null=True, default=None)  # no foreign key: it outlives the job

    class Meta:
        ordering = ["-seq"]
        indexes = [models.Index(fields=["job_id", "seq"], name="audit_of_job")]
        constraints = [
            models.UniqueConstraint(
                fields=["job_id"],
                condition=Q(stage=AuditStage.OUTCOME, job_id__isnull=False),
                name="audit_one_outcome_a_job",
            )
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.action}"
