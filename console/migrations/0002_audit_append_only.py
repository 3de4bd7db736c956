"""Keep the audit log append-only in the database itself, on SQLite and PostgreSQL.

SQLite fires no DELETE trigger for INSERT OR REPLACE, so a BEFORE INSERT trigger also refuses every
row that is not the next one.
"""

from django.db import migrations

SQLITE = (
    """CREATE TRIGGER console_audit_no_update BEFORE UPDATE ON console_auditentry
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    """CREATE TRIGGER console_audit_no_delete BEFORE DELETE ON console_auditentry
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END""",
    """CREATE TRIGGER console_audit_next_only BEFORE INSERT ON console_auditentry
       WHEN NEW.seq IS NOT (SELECT COALESCE(MAX(seq), 0) + 1 FROM console_auditentry)
       BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: not the next seq'); END""",
    # REPLACE may also hit the one-outcome index; recursive_triggers is per connection, so refuse.
    """CREATE TRIGGER console_audit_one_outcome BEFORE INSERT ON console_auditentry
       WHEN NEW.stage = 'outcome' AND NEW.job_id IS NOT NULL AND EXISTS (
         SELECT 1 FROM console_auditentry WHERE stage = 'outcome' AND job_id = NEW.job_id)
       BEGIN SELECT RAISE(ABORT, 'UNIQUE: the job has an outcome already'); END""",
)
SQLITE_UNDO = tuple(
    f"DROP TRIGGER console_audit_{name}"
    for name in ("no_update", "no_delete", "next_only", "one_outcome")
)
POSTGRESQL = (
    """CREATE FUNCTION console_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$""",
    """CREATE FUNCTION console_audit_next_only() RETURNS trigger LANGUAGE plpgsql AS $$
       BEGIN
         IF NEW.seq IS DISTINCT FROM
            (SELECT COALESCE(MAX(seq), 0) + 1 FROM console_auditentry) THEN
           RAISE EXCEPTION 'the audit log is append-only: not the next seq';
         END IF;
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER console_audit_no_change BEFORE UPDATE OR DELETE ON console_auditentry
       FOR EACH ROW EXECUTE FUNCTION console_audit_refuse()""",
    """CREATE TRIGGER console_audit_no_truncate BEFORE TRUNCATE ON console_auditentry
       FOR EACH STATEMENT EXECUTE FUNCTION console_audit_refuse()""",
    """CREATE TRIGGER console_audit_next_only BEFORE INSERT ON console_auditentry
       FOR EACH ROW EXECUTE FUNCTION console_audit_next_only()""",
)
POSTGRESQL_UNDO = (
    "DROP TRIGGER console_audit_no_change ON console_auditentry",
    "DROP TRIGGER console_audit_no_truncate ON console_auditentry",
    "DROP TRIGGER console_audit_next_only ON console_auditentry",
    "DROP FUNCTION console_audit_refuse()",
    "DROP FUNCTION console_audit_next_only()",
)


def _run(editor, sqlite, postgresql):
    for statement in postgresql if editor.connection.vendor == "postgresql" else sqlite:
        editor.execute(statement)


def protect(apps, editor):
    """Create the triggers."""
    _run(editor, SQLITE, POSTGRESQL)


def unprotect(apps, editor):
    """Drop the triggers."""
    _run(editor, SQLITE_UNDO, POSTGRESQL_UNDO)


class Migration(migrations.Migration):
    """Triggers on console_auditentry."""

    dependencies = [("console", "0001_initial")]
    operations = [migrations.RunPython(protect, unprotect)]
