"""64 threads append to the log of the state folder in the environment: `python -m … TURNS`.

A program of its own, since the log of the test database can be emptied by nobody.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import django

django.setup()

from django.db import OperationalError, connection, transaction  # noqa: E402

from console.actors import Actor  # noqa: E402
from console.choices import AuditStage  # noqa: E402
from console.clock import db_now  # noqa: E402
from console.selectors.audit_chain import follow, log_start  # noqa: E402
from console.services.audit import audit_append  # noqa: E402

WRITERS = 64
SYSTEM = Actor.system("test")


def main(turns: int) -> None:
    """Print how many were kept, in how many seconds, and the first fault of the chain."""

    def write(number: int) -> None:
        try:
            for turn in range(turns):
                while not append(number, turn):
                    pass  # refused, so nothing is written: asked again, as a client would
        finally:
            connection.close()

    def append(number: int, turn: int) -> bool:
        try:
            with transaction.atomic():
                audit_append(
                    action="test.done", stage=AuditStage.NOTE, actor=SYSTEM, now=db_now(),
                    process="test", facts={"n": f"{number}-{turn}"},
                )  # fmt: skip
                if turn % 5 == 4:
                    transaction.set_rollback(True)
        except OperationalError as error:
            if "database is locked" not in str(error):  # SQLite's wait is long, and not fair
                raise
            return False
        return True

    started = time.monotonic()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    kept = WRITERS * (turns - turns // 5)
    found = follow(log_start(), kept)
    print(f"{found.seq} of {kept} in {time.monotonic() - started:.1f} s, fault {found.fault}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
