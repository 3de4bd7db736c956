"""What every bench shares: where the model lies, how figures are told, and where they are kept."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "var" / "test-cache"  # the packaged model, converted, and compiled kernels


def cpu_name() -> str:
    """Of this machine, for people."""
    return next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )


def machine() -> str:
    """Date, machine and load, for the line above a table."""
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {cores} cores, "
        f"Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median, and the range around it."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


def write(section: str, text: str) -> None:
    """Replace one marked section of docs/benchmarks.md."""
    path = ROOT / "docs" / "benchmarks.md"
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    page = path.read_text()
    head, found, rest = page.partition(begin)
    assert found, f"docs/benchmarks.md has no section {section!r}"
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
