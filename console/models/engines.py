"""Engines that the console knows how to reach."""

from django.core.validators import RegexValidator
from django.db import models


class Engine(models.Model):
    """One serving engine. Its live state is not here: see `console.snapshots`."""

    name = models.CharField(
        max_length=63, unique=True, validators=[RegexValidator(r"^[a-z0-9][a-z0-9-]*$")]
    )
    driver = models.CharField(max_length=32, default="quiesce")
    control_address = models.CharField(max_length=255)
    events_address = models.CharField(max_length=255)
    enabled = models.BooleanField(default=True)
    # The public key (z85) of a tcp engine: without it nothing is said to whoever answers there.
    curve_key = models.CharField(max_length=40, blank=True, default="")
    # Out of the fleet since then; its jobs and entries stay.
    removed_at = models.DateTimeField(null=True, blank=True, default=None)
    labels = models.JSONField(default=dict, blank=True)  # {key: value}; console.labels
    # The journal's identity when last greeted; another one means that the memory of ids is gone.
    identity = models.CharField(max_length=128, blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
