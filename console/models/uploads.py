"""Files of weights that people sent, whole or on their way; kept by SHA-256 in the state folder."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from console.ids import uuid7


class Upload(models.Model):
    """One safetensors file. Without `sha256` it is on its way, in a part of its own."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=220)
    size_bytes = models.BigIntegerField()
    # NULL until the file is whole and its header is checked.
    sha256 = models.CharField(max_length=64, null=True, default=None)  # noqa: DJ001
    num_tensors = models.PositiveIntegerField(default=0)
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    uploaded_by_name = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    used_at = models.DateTimeField()  # last written, or named by a job

    class Meta:
        ordering = ["-used_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["sha256"], condition=Q(sha256__isnull=False), name="upload_once"
            ),
        ]

    def __str__(self) -> str:
        return self.name
