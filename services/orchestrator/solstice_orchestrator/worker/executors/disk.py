"""Watch the disk of the workspaces, and end a job that needs too much.

A full disk would harm the other jobs and the store, and so would one without free inodes.
"""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes.supervisor import descendants

CHECK_SECONDS: Final = 1.0
REST: Final = 10.0
"""After the files of one job were counted, so many times as long passes until they are counted again."""
MIB: Final = 1024 * 1024
BYTES_PER_INODE: Final = 16 * 1024
"""The reserve of bytes for each inode of the reserve, as ext4 makes one inode for so many bytes: mke2fs.conf(5)."""


class SpaceAndInodes(NamedTuple):
    """An amount of disk space, and of inodes."""

    size_bytes: int
    inodes: int


NO_LIMIT: Final = SpaceAndInodes(1 << 62, 1 << 62)


def culprit(free: int, reserve: int, sizes: Mapping[Path, int]) -> Path | None:
    """Return the largest workspace once less than the reserve is free, else None.

    Also None when no workspace is as large as the reserve: then no job fills the disk, and ending one would not help.
    All are bytes, or all are inodes.
    """
    if free >= reserve or not sizes:
        return None
    largest = max(sizes, key=lambda root: sizes[root])
    return largest if sizes[largest] >= reserve else None


def outcome_of_culprit(
    free: SpaceAndInodes, reserve: SpaceAndInodes, sizes: Mapping[Path, SpaceAndInodes]
) -> tuple[Path, Outcome] | None:
    """Return the workspace whose job must end, and its outcome; None when no job must."""
    in_bytes = {root: size.size_bytes for root, size in sizes.items()}
    if guilty := culprit(free.size_bytes, reserve.size_bytes, in_bytes):
        return guilty, _failed(
            f"the disk is nearly full, and the job's workspace is the largest: {in_bytes[guilty] / MIB:.0f} MiB"
        )
    in_inodes = {root: size.inodes for root, size in sizes.items()}
    if guilty := culprit(free.inodes, reserve.inodes, in_inodes):
        return guilty, _failed(
            "the disk has hardly any inodes left, and the job's workspace has the most files and directories: "
            f"{in_inodes[guilty]}"
        )
    return None


def _failed(detail: str) -> Outcome:
    return Outcome(state=JobState.FAILED, reason=Reason.STEP_FAILED, detail=detail)


class DiskWatch:
    """Watches the disk while jobs run; one per executor."""

    def __init__(self, reserve_bytes: int = 0, limit_bytes: int = 0) -> None:
        """With a reserve of 0 a full disk ends no job.

        With a limit of 0, its own size ends none.
        """
        self._limit_bytes = limit_bytes
        self._reserve = SpaceAndInodes(reserve_bytes, reserve_bytes // BYTES_PER_INODE)
        self._jobs: dict[Path, asyncio.Future[Outcome]] = {}
        self._checking = asyncio.Lock()

    @asynccontextmanager
    async def watching(self, root: Path, supervisor: int) -> AsyncIterator["asyncio.Future[Outcome]"]:
        """Watch a workspace, in which processes below `supervisor` write.

        The future gets the outcome of its job when that must end.
        """
        job_to_end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._jobs[root] = job_to_end
        try:
            async with asyncio.TaskGroup() as tasks:
                watchers = [
                    tasks.create_task(self._watch(root), name="job disk"),
                    tasks.create_task(self._watch_size(root, supervisor), name="job size"),
                ]
                yield job_to_end
                for watcher in watchers:
                    watcher.cancel()
        finally:
            del self._jobs[root]
            job_to_end.cancel()

    async def _watch(self, root: Path) -> None:
        while self._reserve.size_bytes > 0:
            await asyncio.sleep(CHECK_SECONDS)
            async with self._checking:
                # A job is being ended: the space that it frees may be enough.
                if self._is_short(_free(root)) and not any(future.done() for future in self._jobs.values()):
                    await self._blame(root)

    async def _watch_size(self, root: Path, supervisor: int) -> None:
        rest = CHECK_SECONDS
        while self._limit_bytes > 0:
            await asyncio.sleep(rest)
            begun = time.monotonic()
            try:
                size = await asyncio.to_thread(_size_with_deleted, root, supervisor)
            except RuntimeError:
                # No thread could be started: a job has taken all processes. The next check may succeed.
                continue
            rest = max(CHECK_SECONDS, REST * (time.monotonic() - begun))
            future = self._jobs[root]
            if size > self._limit_bytes and not future.done():
                future.set_result(
                    Outcome(
                        state=JobState.FAILED,
                        reason=Reason.OUT_OF_DISK,
                        detail=f"out of disk: the job's files need {size / MIB:.0f} MiB, and it may use "
                        f"{self._limit_bytes / MIB:.0f} MiB",
                    )
                )

    def _is_short(self, free: SpaceAndInodes) -> bool:
        return free.size_bytes < self._reserve.size_bytes or free.inodes < self._reserve.inodes

    async def _blame(self, root: Path) -> None:
        roots = list(self._jobs)
        try:
            sizes = dict(zip(roots, await asyncio.to_thread(_sizes, roots), strict=True))
        except RuntimeError:
            # No thread could be started: a job has taken all processes too. The next check may succeed.
            return
        guilty = outcome_of_culprit(_free(root), self._reserve, sizes)
        future = None if guilty is None else self._jobs.get(guilty[0])
        if guilty is not None and future is not None and not future.done():
            future.set_result(guilty[1])


def _free(root: Path) -> SpaceAndInodes:
    try:
        disk = os.statvfs(root)
    except OSError:
        # The job has removed its workspace, and its files with it.
        return NO_LIMIT
    # A file system without a limit on inodes reports 0 of them.
    return SpaceAndInodes(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else NO_LIMIT.inodes)


def _sizes(roots: list[Path]) -> list[SpaceAndInodes]:
    return [size_of(root) for root in roots]


def _size_with_deleted(root: Path, supervisor: int) -> int:
    return size_of(root).size_bytes + deleted_bytes(descendants(supervisor), root)


def deleted_bytes(pids: Iterable[int], root: Path) -> int:
    """Return the size of deleted files that processes still have open.

    Those on another disk than `root` do not count.
    """
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        device = root.stat().st_dev
        for pid in pids:
            # The process, or the file in it, may be gone by now.
            with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as opened:
                for each in opened:
                    with contextlib.suppress(OSError):
                        file = os.stat(each.path)  # noqa: PTH116  not a path, but what it leads to
                        if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev == device:
                            found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def size_of(root: Path) -> SpaceAndInodes:
    """Return what the files and directories below `root` use; unreadable directories count nothing.

    Each link of a file counts.
    """
    total, inodes, directories = 0, 0, [str(root)]
    while directories:
        # Not os.walk, which calls itself for each level and holds all names of a directory.
        with contextlib.suppress(OSError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                inodes += 1
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                else:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return SpaceAndInodes(total, inodes)
