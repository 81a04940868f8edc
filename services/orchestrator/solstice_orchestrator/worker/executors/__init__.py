"""The executors; the setting `EXECUTOR` chooses one."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from solstice_orchestrator.domain.jobs import Outcome
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.git.objects.object_cache import ObjectCache
from solstice_orchestrator.git.objects.planned_commits import PlannedCommits
from solstice_orchestrator.git.objects.small_checkouts import SmallCheckouts
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.caches.job_caches import JobCaches
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.host_launcher import DEFAULT_PATH, HostLauncher
from solstice_orchestrator.worker.executors.launcher import Launcher
from solstice_orchestrator.worker.executors.process import ProcessExecutor
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter
from solstice_orchestrator.worker.executors.scripted import ScriptedExecutor
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.workspaces import Workspaces

__all__ = ["Execution", "Executor", "LogWriter", "MeteredExecutor", "make_executor"]


def make_executor(
    kind: Literal["process", "podman", "qemu", "scripted"],
    *,
    workspaces: Workspaces,
    git: GitPolicy,
    grace_seconds: float = 10.0,
    max_log_bytes: int = 16 * 1024 * 1024,
    path: str = DEFAULT_PATH,
    no_output_seconds: float = 0.0,
    disk_reserve_bytes: int = 0,
    disk_limit_bytes: int = 0,
    starting: Callable[[], AbstractContextManager[None]] = nullcontext,
    hosts: GitHosts | None = None,
    launcher: Launcher | None = None,
    planned: PlannedCommits | None = None,
    artifacts: ArtifactKeeping | None = None,
    caches: JobCaches | None = None,
) -> Executor:
    """Make the executor of that kind, for the lifetime of its workspaces (`workspaces.open_workspaces`).

    `launcher` is for executors other than `process`. `planned` has commits that need no fetch.
    """
    if kind == "scripted":
        return ScriptedExecutor(no_output_seconds=no_output_seconds)
    return ProcessExecutor(
        workspaces=workspaces,
        checkout=SourceCheckout(
            git=git,
            scratch=workspaces.scratch,
            starting=starting,
            hosts=hosts or GitHosts(),
            objects=ObjectCache(workspaces.scratch / "objects", git.cache_max_bytes),
            small_checkouts=SmallCheckouts(git.cache_max_bytes),
            planned=planned,
        ),
        launcher=launcher or HostLauncher(path=path),
        grace_seconds=grace_seconds,
        max_log_bytes=max_log_bytes,
        no_output_seconds=no_output_seconds,
        disk=DiskWatch(disk_reserve_bytes, disk_limit_bytes),
        artifacts=artifacts,
        caches=caches,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredExecutor:
    """Runs as `executor` does, and records how each attempt ended and how long it took."""

    executor: Executor
    metrics: Metrics
    isolates: bool
    ended: Callable[[Outcome], None]
    """Called with the outcome of each attempt."""

    async def run(self, execution: Execution, log: LogWriter, stop: asyncio.Event) -> Outcome:
        begun = time.monotonic()
        outcome = await self.executor.run(execution, log, stop)
        self.ended(outcome)
        self.metrics.attempt_finished(execution.spec.runs_on, outcome, time.monotonic() - begun)
        return outcome
