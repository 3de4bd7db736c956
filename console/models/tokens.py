"""Bearer tokens for automation. Only a hash is kept; the secret is shown once."""

from django.conf import settings
from django.db import models


class ApiToken(models.Model):
    """One token of one person: `qsc_<prefix>_<secret>`."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tokens"
    )
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=8, unique=True)
    digest = models.CharField(max_length=64)  # SHA-256 of the whole token, hex
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, default=None)
    revoked_at = models.DateTimeField(null=True, default=None)
    scopes = models.JSONField(null=True, default=None)  # acts; NULL: all that its owner may
    reach = models.CharField(max_length=500, blank=True, default="")  # a selector of engines
    revoked_by_name = models.CharField(max_length=150, blank=True, default="")
    revoked_reason = models.CharField(max_length=500, blank=True, default="")
    last_used_ip = models.CharField(max_length=45, blank=True, default="")
    last_used_at = models.DateTimeField(null=True, default=None)  # to the minute

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.name} (qsc_{self.prefix}_…)"
