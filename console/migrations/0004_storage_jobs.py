"""Kinds of jobs on storage backends: attach, detach, clear, policies."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0003_weight_jobs"),
    ]

    operations = [
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
                    ("attach_storage_backend", "Attach a storage backend"),
                    ("detach_storage_backend", "Detach the storage backend"),
                    ("clear_storage_backend", "Delete what the storage backend holds"),
                    ("set_cache_policies", "Set cache policies"),
                    ("repair", "Repair"),
                ],
                max_length=32,
            ),
        ),
    ]
