"""Reads a working process's descriptors, memory, children and zombies from the kernel."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a process; `seconds` since the first."""

    seconds: float
    descriptors: int
    mebibytes: float
    children: int
    zombies: frozenset[int]


def read(pid: int, seconds: float) -> Reading:
    """Read a process now; OSError when it is gone."""
    children = _children(pid)
    return Reading(
        seconds=seconds,
        descriptors=_descriptors(pid),
        mebibytes=_mebibytes(pid),
        children=len(children),
        zombies=frozenset(child for child, state in children.items() if state == "Z"),
    )


def _descriptors(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    try:
        return len(list(folder.iterdir()))
    except PermissionError:
        # Services hide from every user but root; since Linux 6.2 the number can still be seen.
        if count := folder.stat().st_size:
            return count
        raise RuntimeError(
            "descriptors of a service can be counted by root, or on Linux 6.2 or newer"
        ) from None


def _mebibytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def _children(pid: int) -> Mapping[int, str]:
    """The state of each child of a process."""
    found = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = each.read_text("ascii", "replace").rpartition(")")[2].split()[:2]
            if int(parent) == pid:
                found[int(each.parent.name)] = state
    return found


@dataclass(kw_only=True)
class Watch:
    """Readings of several processes, taken by a thread."""

    pids: Mapping[str, int]
    readings: dict[str, list[Reading]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """The processes that ended during the watch."""

    def read_all(self, begun: float) -> None:
        """Add one reading of each process."""
        for name, pid in self.pids.items():
            try:
                self.readings.setdefault(name, []).append(read(pid, time.monotonic() - begun))
            except OSError:
                self.gone.add(name)

    @contextmanager
    def running(self, every_seconds: float) -> Iterator[None]:
        """Read repeatedly until this is left."""
        begun, over = time.monotonic(), threading.Event()

        def watch() -> None:
            self.read_all(begun)
            while not over.wait(every_seconds):
                self.read_all(begun)

        thread = threading.Thread(target=watch, name="soak readings")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def lasting_zombies(readings: Sequence[Reading], seconds: float) -> frozenset[int]:
    """Zombies that remained for so long, from one reading to the next."""
    since: dict[int, float] = {}
    found: set[int] = set()
    for reading in readings:
        since = {pid: since.get(pid, reading.seconds) for pid in reading.zombies}
        found |= {pid for pid, first in since.items() if reading.seconds - first >= seconds}
    return frozenset(found)
