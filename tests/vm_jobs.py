"""Runs jobs in VMs of a real QEMU, and checks that each leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from solstice_orchestrator.domain.jobs import Outcome, Reason, StepSpec
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.processes.supervisor import process_ids
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping
from solstice_orchestrator.worker.executors import Executor
from solstice_orchestrator.worker.executors.disk import DiskWatch
from solstice_orchestrator.worker.executors.process import ProcessExecutor
from solstice_orchestrator.worker.executors.source_checkout import SourceCheckout
from solstice_orchestrator.worker.executors.vms.qemu_launcher import Acceleration, open_qemu
from solstice_orchestrator.worker.executors.vms.vm_images import read_vm_images
from solstice_orchestrator.worker.executors.vms.vm_plan import MIB, VmRules
from solstice_orchestrator.worker.workspaces import Workspaces, open_workspaces
from tests.builders import execution, job, job_request
from tests.repositories import Repository

LABEL = "linux"
MEMORY = 128 * MIB
START_SECONDS = 50.0
"""Twice the longest that was seen beside seven other processes on two processors."""
NOT_READY = "the VM was not ready within"


def vm_rules(image: Path, **changes: Any) -> VmRules:
    """Rules of small VMs from an image."""
    rules: dict[str, Any] = {"memory_bytes": MEMORY, "cpus": 1, "start_seconds": START_SECONDS, **changes}
    return VmRules(images=read_vm_images(f"{LABEL}={image}"), **rules)


async def tried_again(run: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Run a job, and once more if its VM did not come up.

    That is the world's failure, after which orchestrators try again. It has happened on a machine that does much else.
    """
    outcome = await run()
    if outcome.reason is Reason.PROVISION_FAILED and NOT_READY in outcome.detail:
        print(outcome)  # noqa: T201  for the report of a failure
        outcome = await run()
    return outcome


def vm_pids(directory: Path) -> list[int]:
    """The QEMUs whose attempts are in a directory, by what they were started with."""
    return [pid for pid in process_ids() if is_vm(pid, directory)]


def is_vm(pid: int, directory: Path) -> bool:
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return "qemu-system" in program and f"={directory}".encode() in variables


@dataclass(kw_only=True)
class VmJobs:
    """Runs jobs in VMs, and shows what they wrote."""

    executor: Executor
    workspaces: Workspaces
    request: Any
    output: list[bytes] = field(default_factory=list)
    pause_seconds: float = 0.0
    """How long each piece of output takes to be written down."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Of the jobs that have ended."""

    @property
    def text(self) -> str:
        return b"".join(self.output).decode(errors="replace")

    @property
    def vms(self) -> list[int]:
        return vm_pids(self.workspaces.directory)

    async def run(
        self,
        *runs: str | StepSpec,
        stop: asyncio.Event | None = None,
        request: dict[str, Any] | None = None,
        secrets: dict[str, str] | None = None,
        **changes: Any,
    ) -> Outcome:
        """Run a job; `request` and `changes` are fields of its request and its spec."""

        async def log(data: bytes) -> None:
            await asyncio.sleep(self.pause_seconds)
            self.output.append(data)

        changed = self.request.model_copy(update=request or {})
        attempt = replace(execution(job(*runs, **changes), changed), secrets=secrets or {})
        try:
            self.outcomes.append(
                await tried_again(lambda: self.executor.run(attempt, log, stop or asyncio.Event()))
            )
            return self.outcomes[-1]
        finally:
            assert self.vms == []
            assert [path.name for path in self.workspaces.directory.iterdir() if path.name != "git"] == []

    async def wrote(self, words: str) -> None:
        """Wait until a job has written something."""
        while words not in self.text:
            assert not self.outcomes, f"it ended before it wrote {words!r}: {self.outcomes}; {self.text}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def vm_jobs(
    image: Path,
    folder: Path,
    disk: DiskWatch | None = None,
    acceleration: Acceleration = "tcg",
    artifacts: ArtifactKeeping | None = None,
    **rules: Any,
) -> AsyncIterator[VmJobs]:
    """Open an executor of VMs from an image."""
    repository = Repository(folder / "repository")
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"hello.txt": "hello\n"}))
    async with open_workspaces(folder / "work") as workspaces:
        executor = ProcessExecutor(
            workspaces=workspaces,
            checkout=SourceCheckout(git=GitPolicy(protocols=("file",)), scratch=workspaces.scratch),
            grace_seconds=5.0,
            launcher=await open_qemu(vm_rules(image, **rules), acceleration),
            disk=disk or DiskWatch(),
            artifacts=artifacts,
        )
        yield VmJobs(executor=executor, workspaces=workspaces, request=request)
