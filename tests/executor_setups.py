"""An executor of every kind, with what it needs, for the suites of their contract."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages.states import JobState
from solstice_orchestrator.domain.container_spec import NetworkAccess
from solstice_orchestrator.domain.handing_spec import NeededArtifact, NeededOutput, OutputSpec
from solstice_orchestrator.domain.jobs import (
    ArtifactSpec,
    CacheSpec,
    Outcome,
    ReportSpec,
    StepSpec,
)
from solstice_orchestrator.git.command import GitPolicy
from solstice_orchestrator.store.artifact_records import (
    ArtifactAnswer,
    ArtifactRecord,
    ArtifactView,
    NeededJob,
)
from solstice_orchestrator.store.records.report_records import ReportRecord
from solstice_orchestrator.worker.artifacts.artifact_archives import ArtifactArchives
from solstice_orchestrator.worker.artifacts.keeping import ArtifactKeeping, ArtifactLimits
from solstice_orchestrator.worker.caches.cache_limits import CacheLimits
from solstice_orchestrator.worker.caches.cache_store import CacheStore
from solstice_orchestrator.worker.caches.job_caches import JobCaches
from solstice_orchestrator.worker.caches.object_directory import ObjectDirectory
from solstice_orchestrator.worker.executors import Executor, make_executor
from solstice_orchestrator.worker.executors.containers.container_plan import ContainerRules
from solstice_orchestrator.worker.executors.containers.podman_launcher import open_podman
from solstice_orchestrator.worker.executors.vms.qemu_launcher import open_qemu
from solstice_orchestrator.worker.workspaces import open_workspaces
from solstice_orchestrator.workflow.job_files.output_node import variable_of
from tests.builders import execution, job, job_request
from tests.repositories import Repository
from tests.servers.podman import IMAGE, PodmanStore
from tests.vm_jobs import tried_again, vm_rules

BEFORE = "before"
"""The job that a job of these tests needs."""
MIB = 1024**2
"""What an artifact may have."""


@dataclass(frozen=True, kw_only=True)
class ExecutorSetup:
    """An executor, a request that it can run, and the steps in its language."""

    executor: Executor
    request: JobRequestV1
    say: Callable[[str], str]
    hang: str
    moment: float = 0.5
    """Seconds within which a job that does not hang says something."""
    has_files: bool = True
    """Whether its jobs can hand out any."""
    prepares: bool = False
    """Whether it makes a container or VM first."""
    beside: int = 5
    """How many jobs run at once in a test."""
    archives: ArtifactArchives
    caches: CacheStore
    records: list[ArtifactRecord] = field(default_factory=list)
    """The artifacts of all jobs that have run."""
    reported: list[ReportRecord] = field(default_factory=list)
    """Their test reports."""

    async def run(
        self,
        *runs: str | StepSpec,
        stop: asyncio.Event | None = None,
        seconds: float = 60.0,
        quiet: float | None = None,
        artifacts: tuple[ArtifactSpec, ...] = (),
        needed: Mapping[NeededArtifact, ArtifactView] = MappingProxyType({}),
        reports: tuple[ReportSpec, ...] = (),
        caches: tuple[CacheSpec, ...] = (),
        trusted: bool = True,
        outputs: tuple[OutputSpec, ...] = (),
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Outcome, str]:
        output: list[bytes] = []

        async def record(artifact: ArtifactRecord, _most_bytes: int) -> ArtifactAnswer:
            self.records.append(artifact)
            return ArtifactAnswer.STORED

        async def record_report(reported: ReportRecord) -> bool:
            self.reported.append(reported)
            return True

        async def log(data: bytes) -> None:
            output.append(data)

        async def needed_jobs(_: Collection[str]) -> Mapping[str, NeededJob]:
            return {
                BEFORE: NeededJob(
                    name=BEFORE,
                    state=JobState.SUCCEEDED,
                    artifacts={view.name: view for view in needed.values()},
                    outputs=given,
                )
            }

        spec = job(
            *runs,
            timeout_seconds=seconds,
            no_output_seconds=quiet,
            artifacts=artifacts,
            needed_artifacts=tuple(needed),
            reports=reports,
            caches=caches,
            outputs=outputs,
            needed_outputs=tuple(
                NeededOutput(job=BEFORE, name=name, variable=variable_of(BEFORE, name)) for name in given
            ),
        )
        changes = {} if trusted else {"trusted": False, "change_number": 7}
        attempt = replace(
            execution(spec, self.request.model_copy(update=changes)),
            record_artifact=record,
            needed_jobs=needed_jobs,
            record_report=record_report,
        )
        outcome = await tried_again(lambda: self.executor.run(attempt, log, stop or asyncio.Event()))
        return outcome, b"".join(output).decode()


Backend = PodmanStore | Path | None
"""What an executor needs: a store of podman, or the image of a VM."""


@asynccontextmanager
async def open_executor(
    kind: str, directory: Path, backend: Backend, no_output_seconds: float = 0.0
) -> AsyncIterator[ExecutorSetup]:
    repository = Repository(directory / "repository")
    request = job_request(repo_url=repository.url, commit_sha=repository.commit({"file": "x"}))
    policy = GitPolicy(protocols=("file",))
    archives = ArtifactArchives(directory / "artifacts")
    keeping = ArtifactKeeping(directory=archives, limits=ArtifactLimits(most_bytes=MIB))
    caches = CacheStore(objects=ObjectDirectory(directory / "caches"), limits=CacheLimits(most_bytes=MIB))
    async with open_workspaces(directory / "work") as workspaces:
        make = partial(
            make_executor,
            workspaces=workspaces,
            git=policy,
            grace_seconds=0.2,
            no_output_seconds=no_output_seconds,
            artifacts=keeping,
            caches=JobCaches(store=caches),
        )
        setup_of = partial(ExecutorSetup, request=request, archives=archives, caches=caches)
        match kind:
            case "podman":
                assert isinstance(backend, PodmanStore)
                executor = make(
                    "podman",
                    launcher=await open_podman(backend.environment, CONTAINERS),
                )
                yield setup_of(
                    executor=executor,
                    say=lambda text: f"echo {text}",
                    hang="sleep 1000",
                    prepares=True,
                    moment=10.0 if IN_GUEST else 2.0,
                    beside=2 if IN_GUEST else 5,
                )
            case "qemu":
                assert isinstance(backend, Path)
                executor = make(
                    "qemu",
                    launcher=await open_qemu(vm_rules(backend, artifact_bytes=MIB), "tcg"),
                )
                yield setup_of(
                    executor=executor,
                    say=lambda text: f"echo {text}",
                    hang="sleep 1000",
                    prepares=True,
                    # Its processors are simulated.
                    moment=3.0,
                    beside=2,
                )
            case "process":
                executor = make("process")
                yield setup_of(
                    executor=executor,
                    say=lambda text: f"echo {text}",
                    hang="sleep 1000",
                )
            case _:
                executor = make("scripted")
                yield setup_of(
                    executor=executor,
                    say=lambda text: f"say {text}",
                    hang="hang",
                    has_files=False,
                )


IN_GUEST = os.environ.get("SOLSTICE_TEST_ROOTLESS") == "user"
"""Whether the processors of this machine are simulated (test_guest_limits.py)."""
CONTAINERS = ContainerRules(default_image=IMAGE, network=NetworkAccess.NONE)
KINDS = ["process", "podman", "qemu", "scripted"]


def backend_for(kind: str, request: pytest.FixtureRequest) -> Backend:
    fixtures = {"podman": "podman_of_guest" if IN_GUEST else "podman", "qemu": "image_of_vms"}
    return request.getfixturevalue(fixtures[kind]) if kind in fixtures else None
