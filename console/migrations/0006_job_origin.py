"""Jobs that repeat or take back another one."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Two columns of Job."""

    dependencies = [("console", "0005_audit_chain")]
    operations = [
        migrations.AddField(
            "job",
            "origin",
            models.ForeignKey(
                default=None,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="followers",
                to="console.job",
            ),
        ),
        migrations.AddField(
            "job",
            "follow",
            models.CharField(
                blank=True,
                choices=[("retry", "retry"), ("undo", "undo")],
                default="",
                max_length=8,
            ),
        ),
    ]
