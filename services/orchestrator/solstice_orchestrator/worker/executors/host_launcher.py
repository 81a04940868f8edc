"""Launch steps as processes of this machine, by a shell.

It does not isolate: a job runs as the orchestrator's user and can read what that user can read. Steps run with
`bash -eo pipefail` where the job's PATH has bash, else with `sh -e`.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
        bash = shutil.which("bash", path=self.path)
        shell = [bash, "--noprofile", "--norc", "-eo", "pipefail"] if bash else ["/bin/sh", "-e"]
        commands = []
        for number, step in enumerate(execution.spec.steps, start=1):
            script = workspace.scripts / f"{number:03}.sh"
            script.write_text(step.run + "\n", encoding="utf-8")
            commands.append([*shell, str(script)])
        yield Launch(
            directory=workspace.source,
            environment=environment(execution, workspace, self.path),
            commands=commands,
            removes=workspace.root,
        )
