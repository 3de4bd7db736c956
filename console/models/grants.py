"""Which role somebody has, on which engines, within which limits."""

from django.conf import settings
from django.db import models

from console.access import Role


class RoleGrant(models.Model):
    """One role of one person. `console.access` decides by these."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grants"
    )
    role = models.CharField(max_length=16, choices=Role)
    selector = models.CharField(max_length=500, blank=True, default="")  # "": every engine
    max_timeout_s = models.FloatField(null=True, default=None)  # NULL: no limit of this grant
    modes = models.JSONField(null=True, default=None)  # list of modes; NULL: every one
    may_force = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    created_by_name = models.CharField(max_length=150)

    class Meta:
        ordering = ["user", "role", "selector"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "role", "selector"], name="grant_once_a_role_and_group"
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=Role.values), name="grant_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} on {self.selector or 'every engine'}"
