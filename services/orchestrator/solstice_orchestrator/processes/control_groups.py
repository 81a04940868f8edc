"""Put each job into its own control group, where possible, and kill it there.

The kernel kills all processes of a group at once (cgroup.kill), also those that forked, changed their session or
cleared their environment. This needs version 2 of the interface, Linux 5.14, and the right to write in our own group,
as systemd's `Delegate=yes` gives it to a service, and a login session to its user. Without control groups, supervisors
and `orphans` still kill the processes that they find.

Source: docs.kernel.org/admin-guide/cgroup-v2.html, proc_pid_mountinfo(5).
"""

import asyncio
import contextlib
import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from solstice_orchestrator.processes.children import run

PREFIX: Final = "solstice-"
WAIT_SECONDS: Final = 20.0
PAUSE_SECONDS: Final = 0.002
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_JOINS: Final = 'echo 0 > "$1/cgroup.procs"'


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group, with the groups below it."""

    path: Path

    def below(self, name: str) -> "ControlGroup | None":
        """Make a new group within this one; None when that fails."""
        try:
            (self.path / name).mkdir()
        except OSError:
            return None
        return ControlGroup(self.path / name)

    def kill(self) -> None:
        """Kill every process in the group now, without waiting for their ends."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_bytes(b"1")

    async def end(self) -> bool:
        """Kill every process in the group, wait for their ends, and remove it.

        Returns False when a process does not end or the group cannot be removed.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self.kill()
            if not self.is_populated and await self._removed():
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(PAUSE_SECONDS)

    async def _removed(self) -> bool:
        try:
            return await asyncio.to_thread(self.remove)
        except RuntimeError:
            # A job has used up all threads.
            return self.remove()

    @property
    def is_populated(self) -> bool:
        """Whether the group or one below has a process; zombies do not count."""
        try:
            return b"populated 1" in (self.path / "cgroup.events").read_bytes()
        except OSError:
            return False

    def remove(self) -> bool:
        """Remove the group and those below it; False when one has a process."""
        # A job may have made groups within its group.
        return self.remove_empty() or _remove_with_those_below(self.path)

    def remove_empty(self) -> bool:
        """Remove the group by one system call; False when it is not empty."""
        try:
            os.rmdir(self.path)  # noqa: PTH106  the cheapest call: each job ends with it
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _remove_with_those_below(path: Path) -> bool:
    """Remove a group with those below it, however deep these are nested."""
    try:
        current = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    names: list[str] = []
    """The way from `path` to the open directory."""
    try:
        while True:
            with os.scandir(current) as entries:
                below = next((entry.name for entry in entries if entry.is_dir(follow_symlinks=False)), None)
            if below is None and not names:
                break
            following = os.open(below or "..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = following
            if below is None:
                os.rmdir(names.pop(), dir_fd=current)
            else:
                names.append(below)
        path.rmdir()
    except OSError:
        return False
    finally:
        os.close(current)
    return True


@asynccontextmanager
async def open_group(name: str) -> AsyncIterator[ControlGroup | str]:
    """Make a group for jobs below our own, or give why that fails.

    Leaving ends it.

    Empty groups that killed orchestrators left beside it are removed first. The kernel's lock on a group says that its
    owner lives, in any namespace: it ends with the process.
    """
    parent = own_group()
    if parent is None:
        yield "there are no control groups of version 2 here"
        return
    await asyncio.to_thread(sweep_empty, parent)
    group = ControlGroup(parent / f"{PREFIX}{name}")
    try:
        lock = await asyncio.to_thread(_make_locked, group.path)
    except OSError as error:
        yield f"no group may be made in {parent}: {error.strerror}"
        return
    try:
        try:
            yield await _unfit(group) or group
        finally:
            await group.end()
    finally:
        os.close(lock)


def own_group() -> Path | None:
    """Return the directory of this process's group; None without control groups of version 2."""
    parent = group_directory(_lines("/proc/self/cgroup"), _lines("/proc/self/mountinfo"))
    return None if parent is None else Path(parent)


def sweep_empty(parent: Path) -> int:
    """Remove groups that have neither an owner nor a process; return how many."""
    swept = 0
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = _locked(path)
        except OSError:
            # Its owner lives, or it is gone, or another user's.
            continue
        try:
            group = ControlGroup(path)
            swept += not group.is_populated and group.remove()
        finally:
            os.close(lock)
    return swept


def _make_locked(path: Path) -> int:
    """Make a group and lock it; return the descriptor of the lock."""
    while True:
        path.mkdir()
        # A sweep may take it in between: then it is made again.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            lock = _locked(path)
            if path.exists():
                return lock
            os.close(lock)
        with contextlib.suppress(OSError):
            path.rmdir()


def _locked(path: Path) -> int:
    """Return a descriptor that holds the group's lock; BlockingIOError while another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def left_by(name: str, recorded: str) -> ControlGroup | None:
    """Return the group that a killed orchestrator of that name recorded at that path.

    Returns None when `recorded` is not the path of such a group.
    """
    path = PurePosixPath(recorded)
    return ControlGroup(Path(path)) if path.is_absolute() and path.name == f"{PREFIX}{name}" else None


def group_directory(cgroup: Iterable[str], mounts: Iterable[str]) -> str | None:
    """Return the directory of a process's group, read from /proc/PID/cgroup and /proc/PID/mountinfo."""
    own_line = next((line.removeprefix("0::") for line in cgroup if line.startswith("0::/")), None)
    if own_line is None or own_line.startswith("/.."):
        return None
    for line in mounts:
        fields, _, kind = line.partition(" - ")
        if kind.split(" ")[0] != "cgroup2":
            continue
        root, mount_point = (
            _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in fields.split(" ")[3:5]
        )
        if PurePosixPath(own_line).is_relative_to(root):
            return str(PurePosixPath(mount_point) / PurePosixPath(own_line).relative_to(root))
    return None


def _lines(file: str) -> Sequence[str]:
    """Return the lines of a file; none when the system has no such file."""
    try:
        return Path(file).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()


async def _unfit(group: ControlGroup) -> str:
    """Return why the group cannot be used; empty when it can."""
    if not (group.path / "cgroup.kill").exists():
        return "the kernel is older than 5.14: it cannot kill a control group"
    try:
        if await run("sh", "-c", _JOINS, "sh", str(group.path)) != 0:
            return f"no process may be moved into {group.path}"
    except OSError as error:
        return f"sh could not be started: {error}"
    return ""
