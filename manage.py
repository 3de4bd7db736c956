#!/usr/bin/env python
"""Django's command line for the console."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> int:
    """Run one command; a bad setting is one sentence and exit status 2."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
