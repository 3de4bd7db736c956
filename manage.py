#!/usr/bin/env python
"""Django's command line for the console."""

import os
import sys

try:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError
except ModuleNotFoundError:
    sys.exit("This Python has no Django: run .venv/bin/python manage.py (bin/run makes .venv).")


def main() -> int:
    """Run one command; a bad setting or database is one sentence and exit status 2 or 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (OperationalError, ProgrammingError) as error:
        reason = str(error).splitlines()[0]
        sys.stderr.write(
            f"The database cannot be used: {reason}."
            " QUIESCE_STATE_DIR or DATABASE_URL must name that of a console started once.\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
