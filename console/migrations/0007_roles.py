"""Roles, labels and scopes. Until now everybody who could log in could do everything."""

from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps
from django.utils import timezone


def grants_as_before(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Those who were there keep what they could: admins all, others operate and read the log."""
    user_model, grant_model = (
        apps.get_model("console", "User"),
        apps.get_model("console", "RoleGrant"),
    )
    for user in user_model.objects.all():
        for role in ["admin"] if user.is_superuser else ["operator", "auditor"]:
            grant_model.objects.create(
                user=user, role=role, created_at=timezone.now(), created_by_name="system:migration"
            )


class Migration(migrations.Migration):
    """Adds RoleGrant, User.is_service, Engine.labels, and what a token may."""

    dependencies = [("console", "0006_job_origin")]

    operations = [
        migrations.AddField("user", "is_service", models.BooleanField(default=False)),
        migrations.AddField("engine", "labels", models.JSONField(blank=True, default=dict)),
        migrations.AddField(
            "engine", "curve_key", models.CharField(blank=True, default="", max_length=40)
        ),
        migrations.AddField(
            "engine", "removed_at", models.DateTimeField(blank=True, default=None, null=True)
        ),
        migrations.AddField("apitoken", "scopes", models.JSONField(default=None, null=True)),
        migrations.AddField(
            "apitoken", "reach", models.CharField(blank=True, default="", max_length=500)
        ),
        migrations.AddField(
            "apitoken", "revoked_by_name", models.CharField(blank=True, default="", max_length=150)
        ),
        migrations.AddField(
            "apitoken", "revoked_reason", models.CharField(blank=True, default="", max_length=500)
        ),
        migrations.AddField(
            "apitoken", "last_used_ip", models.CharField(blank=True, default="", max_length=45)
        ),
        migrations.CreateModel(
            name="RoleGrant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "viewer"),
                            ("auditor", "auditor"),
                            ("operator", "operator"),
                            ("pusher", "pusher"),
                            ("admin", "admin"),
                        ],
                        max_length=16,
                    ),
                ),
                ("selector", models.CharField(blank=True, default="", max_length=500)),
                ("max_timeout_s", models.FloatField(default=None, null=True)),
                ("modes", models.JSONField(default=None, null=True)),
                ("may_force", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("created_by_name", models.CharField(max_length=150)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=models.deletion.CASCADE,
                        related_name="grants",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ["user", "role", "selector"]},
        ),
        migrations.AddConstraint(
            "rolegrant",
            models.UniqueConstraint(
                fields=("user", "role", "selector"), name="grant_once_a_role_and_group"
            ),
        ),
        migrations.AddConstraint(
            "rolegrant",
            models.CheckConstraint(
                condition=models.Q(
                    ("role__in", ["viewer", "auditor", "operator", "pusher", "admin"])
                ),
                name="grant_role_known",
            ),
        ),
        migrations.RunPython(grants_as_before, migrations.RunPython.noop),
    ]
