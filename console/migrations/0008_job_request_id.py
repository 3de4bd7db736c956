"""The request that asked for a job: engines log it too."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column of Job."""

    dependencies = [("console", "0007_roles")]
    operations = [
        migrations.AddField(
            "job", "request_id", models.CharField(blank=True, default="", max_length=64)
        )
    ]
