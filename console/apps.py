"""The one Django app of this project."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """One label, one migrations folder."""

    name = "console"
    label = "console"
    default_auto_field = "django.db.models.BigAutoField"
