"""Weight jobs: their kinds, what goes along with them, what a rank staged; uploaded files."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import console.ids


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0002_audit_append_only"),
    ]

    operations = [
        migrations.CreateModel(
            name="Upload",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=console.ids.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=220)),
                ("size_bytes", models.BigIntegerField()),
                ("sha256", models.CharField(default=None, max_length=64, null=True)),
                ("num_tensors", models.PositiveIntegerField(default=0)),
                ("uploaded_by_name", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("used_at", models.DateTimeField()),
            ],
            options={
                "ordering": ["-used_at", "-id"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="job",
            name="job_one_holder_an_engine",
        ),
        migrations.AddField(
            model_name="job",
            name="sent_bytes",
            field=models.BigIntegerField(default=None, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="total_bytes",
            field=models.BigIntegerField(default=None, null=True),
        ),
        migrations.AddField(
            model_name="jobrankresult",
            name="effect_s",
            field=models.FloatField(default=None, null=True),
        ),
        migrations.AddField(
            model_name="jobrankresult",
            name="interrupted",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="jobrankresult",
            name="staging",
            field=models.JSONField(default=None, null=True),
        ),
        migrations.AlterField(
            model_name="job",
            name="kind",
            field=models.CharField(
                choices=[
                    ("flush_cache", "Flush cache"),
                    ("update_weights_from_disk", "Update weights from disk"),
                    ("update_weights_from_tensor", "Update weights from uploaded tensors"),
                    ("update_weights_from_distributed", "Update weights from a trainer"),
                    ("update_weight_version", "Name the weight version"),
                    ("pause_generation", "Pause generation"),
                    ("continue_generation", "Continue generation"),
                    ("abort_requests", "Abort requests"),
                    ("release_memory", "Release memory"),
                    ("resume_memory", "Resume memory"),
                    ("repair", "Repair"),
                ],
                max_length=32,
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("state__in", ["claimed", "dispatched", "reconciling"]),
                    models.Q(("kind__in", ["abort_requests"]), _negated=True),
                ),
                fields=("engine",),
                name="job_one_holder_an_engine",
            ),
        ),
        migrations.AddField(
            model_name="upload",
            name="uploaded_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddConstraint(
            model_name="upload",
            constraint=models.UniqueConstraint(
                condition=models.Q(("sha256__isnull", False)),
                fields=("sha256",),
                name="upload_once",
            ),
        ),
    ]
