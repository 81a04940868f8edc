"""Watch the disk of the workspaces, and end a job that needs too much.

A full disk would harm the other jobs and the store, and so would one without free inodes.
"""

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.processes.completion import run_beside
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


class _WatchedJob(NamedTuple):
    to_end: "asyncio.Future[Outcome]"
    directories: Sequence[Path]
    """Its workspace, and then all others in which it writes."""


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
        self._jobs: dict[Path, _WatchedJob] = {}
        self._checking = asyncio.Lock()

    @contextmanager
    def watching(
        self, root: Path, supervisor: int, storage: Sequence[Path] = ()
    ) -> Iterator["asyncio.Future[Outcome]"]:
        """Watch a workspace and other directories, in which processes below `supervisor` write.

        The future gets the outcome of its job when that must end.
        """
        job_to_end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._jobs[root] = job = _WatchedJob(job_to_end, (root, *storage))
        try:
            with ExitStack() as watches:
                if self._reserve.size_bytes > 0:
                    watches.enter_context(
                        run_beside(lambda: self._watch(root), after_seconds=CHECK_SECONDS, name="job disk")
                    )
                if self._limit_bytes > 0:
                    watches.enter_context(
                        run_beside(
                            lambda: self._watch_size(job, supervisor),
                            after_seconds=CHECK_SECONDS,
                            name="job size",
                        )
                    )
                yield job_to_end
        finally:
            del self._jobs[root]
            job_to_end.cancel()

    async def _watch(self, root: Path) -> None:
        while True:
            async with self._checking:
                # A job is being ended: the space that it frees may be enough.
                if self._is_short(_free(root)) and not any(job.to_end.done() for job in self._jobs.values()):
                    await self._blame(root)
            await asyncio.sleep(CHECK_SECONDS)

    async def _watch_size(self, job: _WatchedJob, supervisor: int) -> None:
        while True:
            begun, size = time.monotonic(), 0
            # RuntimeError: no thread could be started, since a job has taken all processes. The next check may succeed.
            with contextlib.suppress(RuntimeError):
                size = await asyncio.to_thread(_size_with_deleted, job.directories, supervisor)
            rest = max(CHECK_SECONDS, REST * (time.monotonic() - begun))
            if size > self._limit_bytes and not job.to_end.done():
                job.to_end.set_result(
                    Outcome(
                        state=JobState.FAILED,
                        reason=Reason.OUT_OF_DISK,
                        detail=f"out of disk: the job's files need {size / MIB:.0f} MiB, and it may use "
                        f"{self._limit_bytes / MIB:.0f} MiB",
                    )
                )
            await asyncio.sleep(rest)

    def _is_short(self, free: SpaceAndInodes) -> bool:
        return free.size_bytes < self._reserve.size_bytes or free.inodes < self._reserve.inodes

    async def _blame(self, root: Path) -> None:
        directories = {each: job.directories for each, job in self._jobs.items()}
        try:
            sizes = await asyncio.to_thread(_sizes_on_one_disk, directories)
        except RuntimeError:
            # No thread could be started: a job has taken all processes too. The next check may succeed.
            return
        guilty = outcome_of_culprit(_free(root), self._reserve, sizes)
        job = None if guilty is None else self._jobs.get(guilty[0])
        if guilty is not None and job is not None and not job.to_end.done():
            job.to_end.set_result(guilty[1])


def _free(root: Path) -> SpaceAndInodes:
    try:
        disk = os.statvfs(root)
    except OSError:
        # The job has removed its workspace, and its files with it.
        return NO_LIMIT
    # A file system without a limit on inodes reports 0 of them.
    return SpaceAndInodes(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else NO_LIMIT.inodes)


def _sizes_on_one_disk(jobs: Mapping[Path, Sequence[Path]]) -> dict[Path, SpaceAndInodes]:
    """Return what each job uses of the disk of its workspace."""
    sizes = {}
    for root, directories in jobs.items():
        disks = [_disks([each]) for each in directories]
        used = [size_of(each) for each, disk in zip(directories, disks, strict=True) if disk == disks[0]]
        sizes[root] = SpaceAndInodes(*map(sum, zip(*used, strict=True)))
    return sizes


def _size_with_deleted(directories: Sequence[Path], supervisor: int) -> int:
    left = sum(size_of(each).size_bytes for each in directories)
    return left + deleted_bytes(descendants(supervisor), directories)


def deleted_bytes(pids: Iterable[int], directories: Sequence[Path]) -> int:
    """Return the size of deleted files that processes still have open.

    Those on other disks than the directories do not count.
    """
    found: dict[tuple[int, int], int] = {}
    disks = _disks(directories)
    for pid in pids:
        # The process, or the file in it, may be gone by now.
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as opened:
            for each in opened:
                with contextlib.suppress(OSError):
                    file = os.stat(each.path)  # noqa: PTH116  not a path, but what it leads to
                    if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev in disks:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def _disks(directories: Sequence[Path]) -> set[int]:
    disks = set()
    for each in directories:
        with contextlib.suppress(OSError):
            disks.add(each.stat().st_dev)
    return disks


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
