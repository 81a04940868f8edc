"""The executors; the setting `EXECUTOR` chooses one."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.git.hosts import GitHosts
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.process import DEFAULT_PATH, ProcessExecutor
from solstice_orchestrator.worker.executors.protocol import Execution, Executor, LogWriter
from solstice_orchestrator.worker.executors.scripted import ScriptedExecutor
from solstice_orchestrator.worker.workspaces import Workspaces

__all__ = ["Execution", "Executor", "LogWriter", "make_executor"]


def make_executor(
    kind: Literal["process", "scripted"],
    *,
    workspaces: Workspaces,
    git: GitPolicy,
    grace_seconds: float = 10.0,
    max_log_bytes: int = 16 * 1024 * 1024,
    path: str = DEFAULT_PATH,
    no_output_seconds: float = 0.0,
    disk_reserve_bytes: int = 0,
    starting: AbstractContextManager[None] | None = None,
    hosts: GitHosts | None = None,
) -> Executor:
    """Make the executor of that kind, for the lifetime of its workspaces (`workspaces.open_workspaces`)."""
    if kind == "scripted":
        return ScriptedExecutor(no_output_seconds=no_output_seconds)
    return ProcessExecutor(
        workspaces=workspaces,
        git=git,
        grace_seconds=grace_seconds,
        max_log_bytes=max_log_bytes,
        path=path,
        no_output_seconds=no_output_seconds,
        disk=DiskWatch(disk_reserve_bytes),
        starting=starting or nullcontext(),
        hosts=hosts or GitHosts(),
    )
