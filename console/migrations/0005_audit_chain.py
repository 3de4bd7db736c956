"""Chain the audit log: a hash an entry, kept by triggers, and columns to search it by.

PostgreSQL's trigger locks, numbers and chains by itself, so that a role which may only INSERT and
SELECT can write nothing else. SQLite has no SHA-256: the console chains, the trigger numbers.
"""

import json

from django.db import migrations, models
from django.db.models import Q

from console.chain import GENESIS, body_digest, columns_of, entry_hash

OLD_SQLITE = ("no_update", "no_delete", "next_only", "one_outcome")
SQLITE = (
    """CREATE TRIGGER console_audit_no_update BEFORE UPDATE ON console_auditentry
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    """CREATE TRIGGER console_audit_no_delete BEFORE DELETE ON console_auditentry
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    # SQLite fires no DELETE trigger for INSERT OR REPLACE.
    """CREATE TRIGGER console_audit_next_only BEFORE INSERT ON console_auditentry
       WHEN NEW.seq IS NOT (SELECT COALESCE(MAX(seq), 0) + 1 FROM console_auditentry)
         OR length(NEW.hash) IS NOT 64
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: not the next seq'); END""",
    # REPLACE may also hit the one-outcome index; recursive_triggers is per connection, so refuse.
    """CREATE TRIGGER console_audit_one_outcome BEFORE INSERT ON console_auditentry
       WHEN NEW.stage = 'outcome' AND NEW.job_id IS NOT NULL AND EXISTS (
         SELECT 1 FROM console_auditentry WHERE stage = 'outcome' AND job_id = NEW.job_id)
       BEGIN SELECT RAISE(ABORT, 'UNIQUE: the job has an outcome already'); END""",
)
POSTGRESQL = (
    # "audit-v1", NUL, the hash before, the number, the digest of the body.
    r"""CREATE FUNCTION console_audit_hash(before text, seq bigint, body text) RETURNS text
       LANGUAGE sql IMMUTABLE AS $$
       SELECT encode(sha256('\x61756469742d763100'::bytea || decode(before, 'hex')
         || int8send(seq) || sha256(convert_to(body, 'UTF8'))), 'hex') $$""",
    # The table by its full name: a temporary one of the same name would come first.
    """CREATE FUNCTION console_audit_append() RETURNS trigger LANGUAGE plpgsql AS $$
       DECLARE last bigint; head text;
       BEGIN
         PERFORM pg_advisory_xact_lock(1903520101);
         EXECUTE format('SELECT seq, hash FROM %I.%I ORDER BY seq DESC LIMIT 1',
                        TG_TABLE_SCHEMA, TG_TABLE_NAME) INTO last, head;
         IF NEW.seq <> 0 AND NEW.seq <> COALESCE(last, 0) + 1 THEN
           RAISE EXCEPTION 'the audit log is append-only: not the next seq';
         END IF;
         NEW.seq := COALESCE(last, 0) + 1;
         NEW.hash := console_audit_hash(COALESCE(head, repeat('0', 64)), NEW.seq, NEW.body);
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER console_audit_append BEFORE INSERT ON console_auditentry
       FOR EACH ROW EXECUTE FUNCTION console_audit_append()""",
    """CREATE TRIGGER console_audit_no_change BEFORE UPDATE OR DELETE ON console_auditentry
       FOR EACH ROW EXECUTE FUNCTION console_audit_refuse()""",
)
BATCH = 2000


def lift(apps, editor):
    """Drop the triggers that would refuse the new columns' values."""
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP TRIGGER console_audit_no_change ON console_auditentry")
        editor.execute("DROP TRIGGER console_audit_next_only ON console_auditentry")
        editor.execute("DROP FUNCTION console_audit_next_only()")
    else:
        for name in OLD_SQLITE:
            editor.execute(f"DROP TRIGGER console_audit_{name}")


def chain(apps, editor):
    """Give each entry its hash and its columns; the bodies stay as they are."""
    entries = apps.get_model("console", "AuditEntry").objects
    before, last = GENESIS, 0
    while rows := list(entries.filter(seq__gt=last).order_by("seq")[:BATCH]):
        for row in rows:
            before = entry_hash(before, row.seq, body_digest(row.body))
            row.hash, last = before.hex(), row.seq
            columns = columns_of(json.loads(row.body))
            for name in ("via", "token_prefix", "request_id", "kind", "result"):
                setattr(row, name, columns[name])
        entries.bulk_update(
            rows, ["hash", "via", "token_prefix", "request_id", "kind", "result"], batch_size=100
        )


def protect(apps, editor):
    """The triggers of now."""
    for statement in POSTGRESQL if editor.connection.vendor == "postgresql" else SQLITE:
        editor.execute(statement, None)  # a percent sign is one


def _text(size):
    return models.CharField(max_length=size, blank=True, default="")


class Migration(migrations.Migration):
    """Not reversible: a chain that can be taken off proves nothing."""

    dependencies = [("console", "0004_storage_jobs")]
    operations = [
        migrations.RunPython(lift),
        migrations.AddField("auditentry", "hash", models.CharField(max_length=64, default="")),
        migrations.AddField("auditentry", "via", _text(8)),
        migrations.AddField("auditentry", "token_prefix", _text(16)),
        migrations.AddField("auditentry", "request_id", _text(64)),
        migrations.AddField("auditentry", "kind", _text(32)),
        migrations.AddField("auditentry", "result", _text(24)),
        migrations.RunPython(chain),
        migrations.AlterField("auditentry", "hash", models.CharField(max_length=64)),
        *(
            migrations.AddIndex("auditentry", models.Index(fields=[field, "seq"], name=name))
            for field, name in (
                ("actor_name", "audit_of_actor"),
                ("engine_name", "audit_of_engine"),
                ("action", "audit_of_action"),
                ("created_at", "audit_of_time"),
            )
        ),
        *(
            migrations.AddIndex(
                "auditentry",
                models.Index(fields=[field, "seq"], condition=~Q(**{field: ""}), name=name),
            )
            for field, name in (
                ("token_prefix", "audit_of_token"),
                ("request_id", "audit_of_request"),
            )
        ),
        migrations.RunPython(protect),
        migrations.CreateModel(
            "AuditSegment",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("first", models.BigIntegerField(unique=True)),
                ("last", models.BigIntegerField(unique=True)),
                ("head_hash", models.CharField(max_length=64)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField()),
                ("closed_by", models.CharField(max_length=150)),
                ("file_name", models.CharField(max_length=200)),
                ("file_digest", models.CharField(max_length=64)),
                ("record", models.TextField()),
            ],
            options={"ordering": ["first"]},
        ),
        migrations.CreateModel(
            "AuditCheck",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("head", models.BigIntegerField()),
                ("seq", models.BigIntegerField()),
                ("hash", models.CharField(max_length=64)),
                ("checked_at", models.DateTimeField()),
                ("anchored_to", models.BigIntegerField()),
                ("anchored_at", _text(40)),
                ("fault_seq", models.BigIntegerField(default=0)),
                ("fault", _text(300)),
            ],
        ),
    ]
