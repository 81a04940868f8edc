"""Watch the disk of the workspaces, and end the job that fills it.

A full disk would harm the other jobs and the store.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.jobs import Outcome, Reason

CHECK_SECONDS: Final = 1.0
MIB: Final = 1024 * 1024


def culprit(free_bytes: int, reserve_bytes: int, sizes: Mapping[Path, int]) -> Path | None:
    """Return the largest workspace once less than the reserve is free, else None.

    Also None when no workspace is as large as the reserve: then no job fills the disk, and ending one would not help.
    """
    if free_bytes >= reserve_bytes or not sizes:
        return None
    largest = max(sizes, key=lambda root: sizes[root])
    return largest if sizes[largest] >= reserve_bytes else None


class DiskWatch:
    """Watches the disk while jobs run; one per executor."""

    def __init__(self, reserve_bytes: int = 0) -> None:
        """With a reserve of 0 no job is ended."""
        self._reserve = reserve_bytes
        self._jobs: dict[Path, asyncio.Future[int]] = {}
        self._checking = asyncio.Lock()

    @asynccontextmanager
    async def watching(self, root: Path) -> AsyncIterator["asyncio.Future[int]"]:
        """Watch a workspace; the future gets its size in bytes when its job must end."""
        job_to_end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._jobs[root] = job_to_end
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(self._watch(root), name="job disk")
                yield job_to_end
                watcher.cancel()
        finally:
            del self._jobs[root]
            job_to_end.cancel()

    async def _watch(self, root: Path) -> None:
        while self._reserve > 0:
            await asyncio.sleep(CHECK_SECONDS)
            async with self._checking:
                # A job is being ended: the space that it frees may be enough.
                if _free(root) < self._reserve and not any(future.done() for future in self._jobs.values()):
                    await self._blame(root)

    async def _blame(self, root: Path) -> None:
        roots = list(self._jobs)
        try:
            sizes = dict(zip(roots, await asyncio.to_thread(_sizes, roots), strict=True))
        except RuntimeError:
            # No thread could be started: a job has taken all processes too. The next check may succeed.
            return
        guilty = culprit(_free(root), self._reserve, sizes)
        future = None if guilty is None else self._jobs.get(guilty)
        if guilty is not None and future is not None and not future.done():
            future.set_result(sizes[guilty])


def overfull(size_bytes: int) -> Outcome:
    """Return the outcome of a job that filled the disk."""
    return Outcome(
        state=JobState.FAILED,
        reason=Reason.STEP_FAILED,
        detail=f"the disk is nearly full, and the job's workspace is the largest: {size_bytes / MIB:.0f} MiB",
    )


def _free(root: Path) -> int:
    try:
        disk = os.statvfs(root)
    except OSError:
        # The job has removed its workspace, and its files with it.
        return 1 << 62
    return disk.f_bavail * disk.f_frsize


def _sizes(roots: list[Path]) -> list[int]:
    return [size_of(root) for root in roots]


def size_of(root: Path) -> int:
    """Return the disk space of the files below `root`; unreadable ones count nothing."""
    total, directories = 0, [str(root)]
    while directories:
        # Not os.walk, which calls itself for each level and holds all names of a directory.
        with contextlib.suppress(OSError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                else:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
