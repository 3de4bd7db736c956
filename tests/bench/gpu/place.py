"""What every GPU bench shares: its settings, where it runs, and how a result is written down.

A dry run takes tiny sizes on a CPU, so that a bench is known to work before a card is lent. It
times nothing that means anything, and says so in every file that it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.bench.figures import ROOT

DRY = "dry run on a CPU: the figures mean nothing"


@dataclass(frozen=True)
class Site:
    """One run of one bench."""

    out: Path  # results, and nothing else
    work: Path  # models, logs, compiled kernels
    is_dry: bool
    device: torch.device
    reps: int

    @property
    def name(self) -> str:
        """The card, for people."""
        return DRY if self.is_dry else str(torch.cuda.get_device_name(self.device))

    def synchronize(self) -> None:
        """Wait for the card."""
        if not self.is_dry:
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], object], *, budget_s: float = 0.4) -> list[float]:
        """How long `call` takes until the card is done, as often as the time allows; once before.

        At least `reps` times. For calls of milliseconds: the wait itself takes about 10 µs.
        """
        call()
        self.synchronize()
        took: list[float] = []
        end = time.perf_counter() + (0 if self.is_dry else budget_s)
        while len(took) < self.reps or (time.perf_counter() < end and len(took) < 2000):
            start = time.perf_counter()
            call()
            self.synchronize()
            took.append(time.perf_counter() - start)
        return took

    def kernel_seconds(self, call: Callable[[], object]) -> list[float]:
        """How long one launch takes among many: of kernels that are shorter than a wait."""
        many = 1 if self.is_dry else 20
        return [each / many for each in self.seconds(lambda: [call() for _ in range(many)])]


@dataclass
class Table:
    """Rows of one kind, in the order in which they came; printed at once, because a run may be cut
    short."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        cells = " ".join(f"{key}={_shown(value)}" for key, value in row.items())
        print(f"{self.title}: {cells}", flush=True)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def start(doc: str | None) -> Site:
    """Read the command line that all benches share. Exits with a sentence without a card."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "gpu")
    parser.add_argument("--work", type=Path, default=ROOT / "var" / "gpu-work")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU, no figures")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        sys.exit("no CUDA device: torch.cuda.is_available() is False (--dry-run works without)")
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if args.dry_run else "cuda:0")
    return Site(args.out, args.work, args.dry_run, device, 1 if args.dry_run else args.reps)


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def write(site: Site, name: str, tables: list[Table], **more: Any) -> None:
    """`name`.json in the run's folder, with what it was measured on."""
    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = "none"
    found = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": site.name,
        "torch": torch.__version__,
        "triton": triton_version,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        **more,
        "tables": {table.title: table.rows for table in tables},
    }
    (site.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
