"""Runs jobs in containers of a real podman, and checks that each leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from solstice_common.messages import JobRequestV1
from solstice_orchestrator.domain.container_spec import ContainerSpec, NetworkAccess
from solstice_orchestrator.domain.jobs import Outcome, StepSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.worker.executors import Executor
from solstice_orchestrator.worker.executors.containers.container_groups import groups_left
from solstice_orchestrator.worker.executors.containers.container_plan import MIB, ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.process import ProcessExecutor
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.workspaces import Workspaces, open_workspaces
from tests.builders import execution, job, job_request
from tests.repositories import Repository
from tests.servers.podman import IMAGE, PodmanStore

MEMORY = 64 * MIB
PROCESSES = 64
RULES = ContainerRules(memory_bytes=MEMORY, processes=PROCESSES, network=NetworkAccess.NONE)


@dataclass(kw_only=True)
class ContainerJobs:
    """Runs jobs in containers, and shows what they wrote."""

    podman: PodmanStore
    executor: Executor
    workspaces: Workspaces
    base: str
    """The control group above those of attempts."""
    request: Any
    output: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        return b"".join(self.output).decode(errors="replace")

    @property
    def groups(self) -> list[Path]:
        """The control groups of containers that are there."""
        return groups_left(self.workspaces.directory.name, base=self.base)

    async def run(self, *runs: str | StepSpec, **changes: Any) -> Outcome:
        """Run a job as `outcome_of` does, and check that nothing of it is left."""
        try:
            return await self.outcome_of(*runs, **changes)
        finally:
            assert self.podman.containers() == []
            assert self.podman.volumes() == []
            assert self.podman.mounts() == []
            assert self.groups == []
            assert self.left_in_workspaces == []

    @property
    def left_in_workspaces(self) -> list[str]:
        """The names of what attempts left there."""
        return [path.name for path in self.workspaces.directory.iterdir() if path.name != "git"]

    async def outcome_of(
        self,
        *runs: str | StepSpec,
        stop: asyncio.Event | None = None,
        request: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Outcome:
        """Run a job; `request` and `changes` are fields of its request and its spec."""

        async def log(data: bytes) -> None:
            self.output.append(data)

        spec = job(*runs, **{"container": ContainerSpec(image=IMAGE), **changes})
        changed = self.request.model_copy(update=request or {})
        return await self.executor.run(execution(spec, changed), log, stop or asyncio.Event())


@asynccontextmanager
async def container_jobs(
    podman: PodmanStore,
    folder: Path,
    rules: ContainerRules = RULES,
    disk: DiskWatch | None = None,
    request: JobRequestV1 | None = None,
    **environment: str,
) -> AsyncIterator[ContainerJobs]:
    """Open an executor with `environment` beside the variables of podman.

    Without a request, it is one for a repository of its own.
    """
    if request is None:
        repository = Repository(folder / "repository")
        sha = repository.commit({"hello.txt": "hello\n"})
        request = job_request(repo_url=repository.url, commit_sha=sha)
    async with open_workspaces(folder / "work") as workspaces:
        launcher = await open_podman({**podman.environment, **environment}, rules)
        executor = ProcessExecutor(
            workspaces=workspaces,
            checkout=SourceCheckout(git=GitPolicy(protocols=("file",)), scratch=workspaces.scratch),
            grace_seconds=0.3,
            launcher=launcher,
            disk=disk or DiskWatch(),
        )
        yield ContainerJobs(
            podman=podman,
            executor=executor,
            workspaces=workspaces,
            base=launcher.base or "",
            request=request,
        )
