"""Jobs: the console's record of asking an engine for an operation, and what came of it."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from console.choices import (
    HOLDING_STATES,
    SHARED_KINDS,
    Follow,
    JobKind,
    JobPhase,
    JobState,
    Mode,
    OnConflict,
    RankState,
    Via,
)
from console.ids import uuid7
from console.models.engines import Engine


class Job(models.Model):
    """One request for an operation. Written only by services, and only as they last read it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    engine = models.ForeignKey(Engine, on_delete=models.PROTECT, related_name="jobs")
    kind = models.CharField(max_length=32, choices=JobKind)
    params = models.JSONField()  # as asked for
    mode = models.CharField(max_length=16, choices=Mode)  # in force; Force changes it
    timeout_s = models.FloatField()
    # The job that this one repeats or takes back.
    origin = models.ForeignKey(
        "self", null=True, default=None, on_delete=models.PROTECT, related_name="followers"
    )
    follow = models.CharField(max_length=8, choices=Follow, blank=True, default="")
    on_conflict = models.CharField(max_length=8, choices=OnConflict, default=OnConflict.REFUSE)
    reason = models.CharField(max_length=500, blank=True, default="")

    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    requested_by_name = models.CharField(max_length=150)  # as it was then
    via = models.CharField(max_length=8, choices=Via)
    token_prefix = models.CharField(max_length=16, blank=True, default="")
    source_ip = models.CharField(max_length=45, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    actor_key = models.CharField(max_length=200)
    idempotency_key = models.CharField(max_length=200, null=True, default=None)  # noqa: DJ001
    body_hash = models.CharField(max_length=64, blank=True, default="")

    state = models.CharField(max_length=16, choices=JobState, default=JobState.ACCEPTED)
    # NULL for "ended", which is not the same as an empty word.
    phase = models.CharField(max_length=24, choices=JobPhase, null=True)  # noqa: DJ001
    blocked = models.BooleanField(default=False)
    blocked_by = models.CharField(max_length=64, blank=True, default="")  # job or operation id
    attempt = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True, default=None)
    lease_until = models.DateTimeField(null=True, default=None)
    lease_owner = models.CharField(max_length=128, blank=True, default="")
    cancel_requested = models.BooleanField(default=False)
    # Of the files that go along with it, before it is sent itself. NULL: none go, or not begun.
    sent_bytes = models.BigIntegerField(null=True, default=None)
    total_bytes = models.BigIntegerField(null=True, default=None)

    engine_epoch = models.CharField(max_length=128, blank=True, default="")
    engine_identity = models.CharField(max_length=128, blank=True, default="")
    # None: if_idle, blocked, or a weight update that is still being staged.
    deadline_at = models.DateTimeField(null=True, default=None)
    dispatch_by = models.DateTimeField(null=True, default=None)  # not sent by then: expired

    created_at = models.DateTimeField()
    dispatched_at = models.DateTimeField(null=True, default=None)
    finished_at = models.DateTimeField(null=True, default=None)
    updated_at = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)  # grows by one with each visible change

    reply = models.JSONField(null=True, default=None)  # the engine's last word, verbatim
    error = models.JSONField(null=True, default=None)  # {code, message, holder?, remaining_s?}
    note = models.CharField(max_length=500, blank=True, default="")  # a sentence for people

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="job_newest"),
            models.Index(fields=["state", "lease_until"], name="job_sweep"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["engine"],
                condition=Q(state__in=sorted(HOLDING_STATES)) & ~Q(kind__in=sorted(SHARED_KINDS)),
                name="job_one_holder_an_engine",
            ),
            models.UniqueConstraint(
                fields=["actor_key", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="job_idempotency_key",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="job_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class JobRankResult(models.Model):
    """One rank's part in a job, as the engine last told it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="ranks")
    dp_rank = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=RankState)
    message = models.TextField(blank=True, default="")
    places = models.JSONField(null=True, default=None)
    staging = models.JSONField(null=True, default=None)  # {what, done_bytes, total_bytes, …}
    effect_s = models.FloatField(null=True, default=None)
    interrupted = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["dp_rank"]
        constraints = [
            models.UniqueConstraint(fields=["job", "dp_rank"], name="job_rank_once"),
        ]

    def __str__(self) -> str:
        return f"rank {self.dp_rank}: {self.state}"


class Outbox(models.Model):
    """A doorbell that is owed: there while a job waits for a worker, gone with its claim."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    rung_at = models.DateTimeField()
    rings = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"doorbell for {self.job_id}"
