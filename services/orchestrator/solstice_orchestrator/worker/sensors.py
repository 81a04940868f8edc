"""Read the machine's load, free memory, and free disk of the workspaces."""

import os
from pathlib import Path
from typing import Final

from solstice_orchestrator.scheduling.governor import SensorReading

MEMINFO: Final = Path("/proc/meminfo")


def read(workspaces: Path, meminfo: Path = MEMINFO) -> SensorReading:
    """Read all sensors, in some 50 microseconds; None where the system gives no value."""
    return SensorReading(
        processors=_processors(),
        load=_load(),
        disk_free=_disk_free(workspaces),
        memory_available=_memory(meminfo),
    )


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _disk_free(path: Path) -> float | None:
    """Return the free percentage of the disk's space or of its inodes, the lower one."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    # What is reserved for root is neither free nor used. A file system without a limit on inodes reports 0 of them.
    space = (disk.f_bavail, disk.f_blocks - disk.f_bfree + disk.f_bavail)
    inodes = (disk.f_favail, disk.f_files - disk.f_ffree + disk.f_favail)
    return min((100.0 * free / total for free, total in (space, inodes) if total > 0), default=None)


def _memory(meminfo: Path) -> float | None:
    """Read MemAvailable (proc(5)): the memory that programs could get without swapping."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = {
        name: int(rest.split()[0])
        for name, _, rest in (line.partition(":") for line in lines)
        if rest.split()
    }
    total, available = kib.get("MemTotal", 0), kib.get("MemAvailable")
    return 100.0 * available / total if total and available is not None else None
