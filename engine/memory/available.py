"""How much memory may still be taken, as far as the system tells: its own and its container's."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The smaller of the machine's available memory and what the cgroup still allows; None where
    neither can be read (not Linux)."""
    found = [n for n in (_machine(meminfo), _container(cgroup)) if n is not None]
    return min(found) if found else None


def _machine(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def _container(cgroup: Path) -> int | None:
    """Version 2 files; page cache that could be dropped is counted as free."""
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = (cgroup / "memory.stat").read_text().split()
        cache = int(stat[stat.index("inactive_file") + 1])
    except (OSError, ValueError):
        return None
    return max(0, limit - used + cache)
