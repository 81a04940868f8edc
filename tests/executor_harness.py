"""Runs jobs as real processes, and shows what remains of them."""

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from solstice_orchestrator.domain.jobs import Outcome, StepSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes import control_groups
from solstice_orchestrator.processes.supervisor import descendants, process_ids
from solstice_orchestrator.worker.executors.process import ProcessExecutor
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.workspaces import Workspaces, open_workspaces
from tests.builders import execution, job, job_request
from tests.repositories import Repository

NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(),
    reason="not asked for: this is no Linux, which has /proc and prctl(2)",
)

NEEDS_DISKS = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"),
    reason="not asked for: only root may mount a small disk, and this is not root or lacks mount(8)",
)


def _may_group() -> bool:
    """Whether this process may make control groups in its own group."""
    group = (
        control_groups.group_directory(
            *(Path(f"/proc/self/{name}").read_text().splitlines() for name in ("cgroup", "mountinfo"))
        )
        if Path("/proc/self/cgroup").exists()
        else None
    )
    return group is not None and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK)


GROUPS = pytest.mark.skipif(
    not _may_group(),
    reason="not asked for: no control groups of version 2 are mounted, or this user may make none beside itself",
)

NOBODY_UID = 65534


def as_user(uid: int) -> tuple[str, ...]:
    """The prefix of a command that root starts as another user.

    That user may still read the Python that tests run on, in any folder.
    """
    return (
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    )


AS_OTHER_USER = as_user(NOBODY_UID)
"""The prefix of a command that root starts as the user `nobody`."""
NEEDS_OTHER_USER = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="not asked for: only root may become another user, and this is not root or lacks setpriv(1)",
)


@contextmanager
def mounted_disk(path: Path, *, mib: int, inodes: int = 0) -> Iterator[Path]:
    """A new directory with at least so much space, and so many inodes (0: any)."""
    path.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m,nr_inodes={inodes}", "none", str(path)], check=True
    )
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def remove_nested(path: Path) -> None:
    """Remove a tree that is too deep for pytest to remove it later."""
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


def unique_sleep() -> str:
    """A number of seconds to sleep that no other process on this machine sleeps."""
    return f"{random.randint(100_000, 999_999)}.{random.randint(100_000, 999_999)}"


def processes_sleeping(seconds_asleep: str) -> set[int]:
    """The processes with this sleep time."""
    found = set()
    for pid in process_ids():
        try:
            if seconds_asleep.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
        except OSError:
            continue
    return found


def runs(program: ModuleType) -> int:
    """The process below this one that runs a program of the orchestrator."""
    (found,) = [pid for pid in descendants(os.getpid()) if str(program.__file__).encode() in _words(pid)]
    return found


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def child_processes() -> set[int]:
    """Our direct children.

    Servers of other tests are among them, so only a difference is meaningful.
    """
    found = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            stat_line = Path(f"/proc/{pid}/stat").read_text()
            if stat_line.rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(pid)
    return found


@dataclass
class ExecutorHarness:
    """An executor with its workspaces and the output of its jobs."""

    executor: ProcessExecutor
    workspaces: Workspaces
    repository: Repository
    sha: str
    output: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(self.output).decode(errors="replace")

    async def run(self, *runs: str | StepSpec, stop: asyncio.Event | None = None, **changes: Any) -> Outcome:
        async def log(data: bytes) -> None:
            self.output.append(data)

        request = job_request(repo_url=self.repository.url, commit_sha=self.sha)
        before = child_processes()
        try:
            return await self.executor.run(
                execution(job(*runs, **changes), request), log, stop or asyncio.Event()
            )
        finally:
            assert self.remaining_workspaces() == []
            assert child_processes() - {self.starter_pid} <= before

    @property
    def starter_pid(self) -> int | None:
        """The process from which supervisors are forked; it stays between jobs."""
        return self.workspaces.starter.pid if self.workspaces.starter else None

    def remaining_workspaces(self) -> list[str]:
        """The workspaces that still exist."""
        return [path.name for path in self.workspaces.directory.iterdir() if path.name != "git"]


@asynccontextmanager
async def open_harness(directory: Path, repository: Repository) -> AsyncIterator[ExecutorHarness]:
    """A harness whose workspaces are below `directory`, with a commit that has one file."""
    sha = repository.commit({"hello.txt": "hello from the commit\n"})
    async with open_workspaces(directory) as workspaces:
        executor = ProcessExecutor(
            workspaces=workspaces,
            checkout=SourceCheckout(git=GitPolicy(protocols=("file",)), scratch=workspaces.scratch),
            grace_seconds=0.3,
            max_log_bytes=200_000,
        )
        yield ExecutorHarness(executor=executor, workspaces=workspaces, repository=repository, sha=sha)


def replace_executor(harness: ExecutorHarness, **changes: Any) -> None:
    """Replace the harness's executor by one with these fields changed."""
    harness.executor = replace(harness.executor, **changes)


def replace_checkout(harness: ExecutorHarness, **changes: Any) -> None:
    """Replace how the harness's executor checks commits out, with these fields changed."""
    replace_executor(harness, checkout=replace(harness.executor.checkout, **changes))
