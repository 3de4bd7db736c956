"""How commands take a password: from standard input, or made and printed once; never argv."""

from __future__ import annotations

import argparse
import sys

from console.services.users import password_make


def password_option(parser: argparse.ArgumentParser) -> None:
    """Add --password-stdin."""
    parser.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )


def password_read(from_stdin: bool) -> tuple[str, bool]:
    """(password, whether it was made here)."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\n"), False
    return password_make(), True
