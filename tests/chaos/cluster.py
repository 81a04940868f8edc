"""Three orchestrators on one database and one broker, their faults, and their records from outside."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from solstice_common.broker import Message, open_broker
from solstice_common.messages import JobStatusV1
from solstice_common.messages.states import JobState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, full_topology, jobs_route
from solstice_orchestrator.store import JobStore, open_store
from solstice_orchestrator.store.views import AttemptView, JobView, RunView
from tests.builders import job_request
from tests.chaos.recording_orchestrator import SIMULATED_LABEL, START
from tests.gated_jobs import WORK, GatedJobs
from tests.repositories import Repository
from tests.servers.orchestrator import OrchestratorProcess, SharedFiles, orchestrator
from tests.stores import all_runs
from tests.traffic import WAIT_SECONDS, drain

PROCESS_LABEL: Final = "process"
"""The label of jobs that are real processes."""
Key = tuple[str, int]
"""The key of an attempt: the job's id and the number."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Orchestrators of a test, which end with it."""

    shared_files: SharedFiles
    gated_jobs: GatedJobs
    store: JobStore
    settings: Mapping[str, str]
    """The settings of every orchestrator."""
    skew_hours: Mapping[str, float]
    """How far the clocks of machines are ahead, by name."""
    stack: ExitStack
    branches: Iterator[int] = field(default_factory=itertools.count)
    orchestrators: list[OrchestratorProcess] = field(default_factory=list)
    """All orchestrators that were started."""

    async def start(self, name: str) -> OrchestratorProcess:
        """Start one more orchestrator, of that name."""
        starting: AbstractContextManager[OrchestratorProcess] = orchestrator(
            self.shared_files,
            start=START,
            WORKER_NAME=name,
            RECORDING_DIRECTORY=str(self.gated_jobs.directory),
            SKEW_SECONDS=str(self.skew_hours.get(name, 0.0) * 3600),
            **self.settings,
        )
        started = await asyncio.to_thread(self.stack.enter_context, starting)
        self.orchestrators.append(started)
        return started

    def repository(self, name: str, *, simulated: int, processes: int) -> tuple[Repository, str]:
        """A repository, and its commit whose workflow has so many jobs of each label."""
        jobs = [
            f'job "simulated-{n}" runs-on="{SIMULATED_LABEL}" {{ step "write" run="simulated"; }}'
            for n in range(simulated)
        ]
        jobs += [
            f'job "process-{n}" runs-on="{PROCESS_LABEL}" {{ step "work" run="sleep 0.3; {WORK}"; }}'
            for n in range(processes)
        ]
        made, (commit,) = self.gated_jobs.repository(name, {".solstice/workflow.kdl": "\n".join(jobs)})
        return made, commit

    async def publish_requests(self, repository: Repository, commit: str, count: int) -> None:
        """Publish so many requests for the commit, each as a push to a new branch."""
        settings = BrokerSettings(amqp_url=self.settings["AMQP_URL"])
        route = jobs_route(settings)
        async with open_broker(settings.amqp_url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(full_topology(settings))
            outcomes = await broker.publish(
                [
                    Message(
                        exchange=route.exchange,
                        routing_key=route.routing_key,
                        body=job_request(
                            repo_url=repository.url,
                            commit_sha=commit,
                            ref=f"refs/heads/change-{next(self.branches)}",
                        ).encode(),
                        type="jobrequest.v1",
                    )
                    for _ in range(count)
                ]
            )
        assert all(outcome.confirmed for outcome in outcomes)

    async def running_attempts(self, worker: OrchestratorProcess) -> set[Key]:
        """The attempts that the worker runs, by the store."""
        running = await self.store.jobs(state=JobState.RUNNING, limit=1000)
        return {(job.job_id, job.attempt) for job in running if job.worker_id == worker.worker_id}

    async def done_count(self) -> int:
        """How many attempts have recorded their end themselves."""
        return len(self.gated_jobs.records("done"))

    async def attempts_ended(self, keys: set[Key]) -> bool:
        """Whether the store knows all these attempts as ended."""
        for job_id, number in keys:
            ended = {
                each.number for each in await self.store.attempts(job_id) if each.finished_at is not None
            }
            if number not in ended:
                return False
        return True

    async def runs(self) -> Sequence[RunView]:
        """All there are."""
        return await all_runs(self.store)

    async def jobs(self) -> Sequence[JobView]:
        """All there are."""
        return [
            job for run in await self.runs() for job in await self.store.jobs(run_id=run.run_id, limit=1000)
        ]

    async def attempts(self, jobs: Sequence[JobView]) -> Mapping[str, Sequence[AttemptView]]:
        """Every try, by job."""
        return {job.job_id: await self.store.attempts(job.job_id) for job in jobs}

    async def have_ended(self, count: int) -> bool:
        """Whether there are so many runs, and all have come to their end."""
        runs = await self.runs()
        return len(runs) >= count and all(run.state.final for run in runs)

    async def take_statuses(self, queue: str = STATUSES.queue) -> Sequence[JobStatusV1]:
        """Every status that waits in the queue, in order, taken from it."""
        async with open_broker(self.settings["AMQP_URL"], name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            depth = await broker.depth(queue)
            deliveries = await drain(broker, queue, depth.ready) if depth is not None and depth.ready else []
        return [JobStatusV1.decode(message.body) for message in deliveries]

    async def depths(self) -> Mapping[str, int]:
        """How many messages wait for orchestrators, and in the dead-letter queues."""
        route = jobs_route(BrokerSettings(amqp_url=self.settings["AMQP_URL"]))
        async with open_broker(self.settings["AMQP_URL"], name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            found = {name: await broker.depth(name) for name in (route.queue, route.dlq, STATUSES.dlq)}
        return {name: 0 if depth is None else depth.ready for name, depth in found.items()}

    def lost_at(self) -> Mapping[Key, float]:
        """When the orchestrator of each lost attempt noticed the loss and killed its processes."""
        return {
            (event["job_id"], event["attempt"]): logged_at(event)
            for process in self.orchestrators
            for event in process.events
            if event.get("event") in {"attempt.lost", "attempt.handed_back"}
        }


def lost_attempts(process: OrchestratorProcess) -> set[Key]:
    """The attempts whose loss the process has noticed in any way."""
    return {
        (event["job_id"], event["attempt"])
        for event in process.events
        if event.get("event") in {"lease.lost", "attempt.lost"}
    }


def logged_at(event: Mapping[str, Any]) -> float:
    """When the event was logged, in seconds since the epoch."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


@asynccontextmanager
async def open_cluster(
    directory: Path,
    *,
    database_url: str,
    amqp_url: str,
    skew_hours: Mapping[str, float] = MappingProxyType({}),
    **settings: str,
) -> AsyncIterator[Cluster]:
    """A cluster without orchestrators."""
    shared_files = SharedFiles(directory=directory)
    with ExitStack() as stack:
        async with open_store(database_url) as store:
            cluster = Cluster(
                shared_files=shared_files,
                gated_jobs=GatedJobs(directory=directory),
                store=store,
                settings={"DATABASE_URL": database_url, "AMQP_URL": amqp_url, **settings},
                skew_hours=skew_hours,
                stack=stack,
            )
            yield cluster
            # Shown when the test has failed.
            for process in cluster.orchestrators:
                for event in process.events:
                    if event.get("level", "") not in {"info", "debug"}:
                        sys.stdout.write(f"{process.worker_id}: {event}\n")
