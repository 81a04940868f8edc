"""Launch steps as processes of this machine, by a shell.

It does not isolate: a job runs as the orchestrator's user and can read what that user can read. Steps run with
`bash -eo pipefail` where the job's PATH has bash, else with `sh -e`.
"""

import os
import platform
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import ANY_CONTAINER
from solstice_orchestrator.domain.jobs import Outcome, Reason
from solstice_orchestrator.worker.executors.job_environment import environment
from solstice_orchestrator.worker.executors.launcher import Launch
from solstice_orchestrator.worker.executors.protocol import Execution
from solstice_orchestrator.worker.workspaces import Workspace

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLauncher:
    """The launcher of the executor `process`."""

    path: str = DEFAULT_PATH
    """The job's PATH."""
    isolates: bool = False
    _found: list[str] = field(default_factory=list, init=False)
    """Where bash was last found in that PATH."""

    def needs_files(self, _: Execution, /) -> bool:
        return False

    def system(self, execution: Execution, /) -> str | None:
        return f"{execution.spec.runs_on}, process, {_kind_of_machine()}"

    @asynccontextmanager
    async def launch(self, execution: Execution, workspace: Workspace) -> AsyncIterator[Launch | Outcome]:
        if execution.spec.container != ANY_CONTAINER:
            yield Outcome(
                state=JobState.FAILED,
                reason=Reason.CONTAINER_REFUSED,
                detail="the job asks for a container (image, network, memory, cpus or services), and this worker runs jobs "
                "without them (EXECUTOR=process); let it run where EXECUTOR=podman",
            )
            return
        bash = self._bash()
        shell = [bash, "--noprofile", "--norc", "-eo", "pipefail"] if bash else ["/bin/sh", "-e"]
        commands = []
        for number, step in enumerate(execution.spec.steps, start=1):
            script = f"{workspace.scripts}/{number:03}.sh"
            _write_new(script, f"{step.run}\n".encode())
            commands.append([*shell, script])
        yield Launch(
            directory=workspace.source,
            environment=environment(execution, workspace, self.path),
            commands=commands,
            removes=workspace.root,
        )

    def _bash(self) -> str | None:
        """Return where bash is, if the PATH has it.

        A search asks every directory of it, so it is made once.
        """
        if not (self._found and os.access(self._found[0], os.X_OK)):
            found = shutil.which("bash", path=self.path)
            self._found[:] = [found] if found else []
        return self._found[0] if self._found else None


@cache
def _kind_of_machine() -> str:
    """Return what programs that were built here need: for example `Linux x86_64, debian 12`."""
    uname = os.uname()
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return f"{uname.sysname} {uname.machine}"
    return f"{uname.sysname} {uname.machine}, {release['ID']} {release.get('VERSION_ID', '')}".rstrip()


def _write_new(path: str, content: bytes) -> None:
    # Not with `pathlib` and `io`: each job comes here, in the event loop.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)
