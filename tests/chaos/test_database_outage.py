"""A database outage under running orchestrators loses nothing and runs nothing twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from solstice_common.broker import Message, open_broker
from solstice_common.messages import JobRequestV1, JobStatusV1
from solstice_common.messages.states import JobState, RunState
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, full_topology, jobs_route
from solstice_orchestrator.domain.jobs import Reason
from solstice_orchestrator.store import JobStore, open_store
from tests.builders import job_request
from tests.gated_jobs import WORK, GatedJobs
from tests.polling import wait_until_true
from tests.servers.orchestrator import START, OrchestratorProcess, SharedFiles, orchestrator
from tests.servers.postgresql import ScratchDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.servers.service_process import service_process
from tests.traffic import WAIT_SECONDS, drain

WORKFLOW = {".solstice/workflow.kdl": f'job "build" {{ step "work" run="{WORK}"; }}'}
RUNNING, LATE = 4, 6
"""Requests whose jobs run when the database goes away, and such as come while it is away."""

pytestmark = [
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
    # The faults of the database are the same for every broker.
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
]


async def logged(process: OrchestratorProcess, event: str) -> None:
    """Wait for the event without holding up the loop."""
    await asyncio.to_thread(process.logged, event)


class OutageCluster:
    """Two orchestrators on one database and one broker, and jobs that wait at a gate."""

    def __init__(self, database: ScratchDatabase, vhost: Vhost, directory: Path, stack: ExitStack) -> None:
        self.database, self.vhost, self.gated_jobs = database, vhost, GatedJobs(directory=directory)
        self.shared_files, self.stack = SharedFiles(directory=directory), stack
        self.repository, self.commits = self.gated_jobs.repository("anvil", WORKFLOW, commits=RUNNING + LATE)
        self.workers: list[OrchestratorProcess] = []

    async def start(self, name: str, **settings: str) -> OrchestratorProcess:
        environment = {
            "AMQP_URL": self.vhost.url,
            "DATABASE_URL": self.database.url,
            "WORKER_NAME": name,
            "CAPACITY_MAP": "linux=2",
            **settings,
        }
        worker = await asyncio.to_thread(
            self.stack.enter_context, orchestrator(self.shared_files, **environment)
        )
        self.workers.append(worker)
        return worker

    async def publish_requests(self, commits: Sequence[str]) -> None:
        """One request for each commit, safe with the broker on return."""
        settings = BrokerSettings(amqp_url=self.vhost.url)
        route = jobs_route(settings)
        async with open_broker(self.vhost.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(full_topology(settings))
            for outcome in await broker.publish(
                [
                    Message(
                        exchange=route.exchange,
                        routing_key=route.routing_key,
                        body=job_request(repo_url=self.repository.url, commit_sha=commit, ref=None).encode(),
                        type=JobRequestV1.VERSION,
                    )
                    for commit in commits
                ]
            ):
                assert outcome.confirmed

    async def waits_at_the_gate(self, count: int) -> None:
        async def all_wait() -> bool:
            return len(self.gated_jobs.attempts("waits")) == count

        await wait_until_true(f"{count} attempts wait at the gate", all_wait)

    async def have_ended(self, store: JobStore, count: int) -> None:
        async def all_of_them() -> bool:
            runs = (await store.runs(limit=100)).runs
            return len(runs) == count and all(run.state.final for run in runs)

        await wait_until_true(f"{count} runs have ended", all_of_them)

    async def are_with_the_broker(self, count: int) -> None:
        """So many job requests are unacknowledged, delivered or not.

        RabbitMQ updates its counts every few seconds.
        """
        queue = jobs_route(BrokerSettings()).queue

        async def all_wait() -> bool:
            known = await asyncio.to_thread(self.vhost.api, "GET", "queues", queue)
            return bool(known.get("messages") == count)

        await wait_until_true(f"{count} requests are with the broker", all_wait)

    async def take_statuses(self, runs: int) -> list[JobStatusV1]:
        """Take all statuses from the queue until so many runs have their last one."""
        found: list[JobStatusV1] = []

        async def last_words() -> bool:
            async with open_broker(self.vhost.url, name="test") as broker:
                await broker.ready(WAIT_SECONDS)
                depth = await broker.depth(STATUSES.queue)
                if depth is not None and depth.ready:
                    messages = await drain(broker, STATUSES.queue, depth.ready)
                    found.extend(JobStatusV1.decode(message.body) for message in messages)
            last = {status.run_id: status.state for status in found if not status.job_id}
            return len(last) == runs and all(RunState(state).final for state in last.values())

        await wait_until_true(f"the end of {runs} runs was told", last_words)
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def cluster(
    own_postgresql_database: ScratchDatabase, rabbitmq_vhost: Vhost, tmp_path: Path, stack: ExitStack
) -> OutageCluster:
    return OutageCluster(own_postgresql_database, rabbitmq_vhost, tmp_path, stack)


@asynccontextmanager
async def away(database: ScratchDatabase, how: str) -> AsyncIterator[None]:
    """The database server is gone meanwhile."""
    await asyncio.to_thread(getattr(database.server, how))
    try:
        yield
    finally:
        await asyncio.to_thread(database.server.start)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_while_the_database_is_away_requests_wait_jobs_go_on_and_then_all_is_recorded(
    cluster: OutageCluster, how: str
) -> None:
    cluster.gated_jobs.close_gate()
    for name in ("anna", "bert"):
        await cluster.start(name, LEASE_SECONDS="600", RENEW_SECONDS="1")
    await cluster.publish_requests(cluster.commits[:RUNNING])
    await cluster.waits_at_the_gate(RUNNING)

    async with away(cluster.database, how):
        await cluster.publish_requests(cluster.commits[RUNNING:])
        for worker in cluster.workers:
            await logged(worker, "leases.not_renewed")
        await wait_until_true(
            "intake is paused", lambda: asyncio.sleep(0, any(map(has_paused_intake, cluster.workers)))
        )
        cluster.gated_jobs.open_gate()
        await wait_until_true(
            "jobs end while the database is away",
            lambda: asyncio.sleep(0, sum(cluster.gated_jobs.done_counts().values()) == RUNNING),
        )
        await cluster.are_with_the_broker(LATE)

    async with open_store(cluster.database.url) as store:
        await cluster.have_ended(store, RUNNING + LATE)
        runs = (await store.runs(limit=100)).runs
        assert {run.state for run in runs} == {RunState.SUCCEEDED}
        jobs = [view for run in runs for view in await store.jobs(run_id=run.run_id, limit=10)]
        assert [view.attempt for view in jobs] == [1] * (RUNNING + LATE)
        for view in jobs:
            (attempt,) = await store.attempts(view.job_id)
            assert (attempt.state, attempt.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
    assert set(cluster.gated_jobs.done_counts().values()) == {1}
    assert len(cluster.gated_jobs.done_counts()) == RUNNING + LATE
    statuses = await cluster.take_statuses(RUNNING + LATE)
    last = {status.run_id: status.state for status in statuses if not status.job_id}
    assert set(last.values()) == {"succeeded"}
    await cluster.are_with_the_broker(0)


def given_up(worker: OrchestratorProcess) -> set[str]:
    """The jobs whose attempts the worker gave up.

    An attempt whose output could not be stored for the length of a lease ends by itself. When that comes
    first, its lease is not reported.
    """
    events = {"lease.lost", "attempt.lost"}
    return {event["job_id"] for event in worker.events if event.get("event") in events}


def has_paused_intake(worker: OrchestratorProcess) -> bool:
    return any(event.get("event") == "intake.paused" for event in worker.events)


async def test_a_job_whose_lease_ran_out_meanwhile_is_ended_first_and_then_runs_again(
    cluster: OutageCluster,
) -> None:
    cluster.gated_jobs.close_gate()
    worker = await cluster.start("anna", LEASE_SECONDS="5", RENEW_SECONDS="1")
    await cluster.publish_requests(cluster.commits[:2])
    await cluster.waits_at_the_gate(2)

    async with away(cluster.database, "kill"):
        await wait_until_true("both were given up", lambda: asyncio.sleep(0, len(given_up(worker)) == 2))

    async with open_store(cluster.database.url) as store:
        await cluster.waits_at_the_gate(4)
        cluster.gated_jobs.open_gate()
        await cluster.have_ended(store, 2)
        for run in (await store.runs(limit=10)).runs:
            assert run.state is RunState.SUCCEEDED
            (view,) = await store.jobs(run_id=run.run_id, limit=10)
            first, second = await store.attempts(view.job_id)
            assert first.reason in {Reason.LEASE_EXPIRED, Reason.AGENT_LOST, Reason.RELEASED}
            assert (second.state, second.number) == (JobState.SUCCEEDED, 2)
    # The abandoned attempt did not come to its end: only the second attempt records `done`.
    assert {attempt for _, attempt in cluster.gated_jobs.attempts("done")} == {2}


async def test_dropped_database_connections_disturb_no_job(cluster: OutageCluster) -> None:
    for name in ("anna", "bert"):
        await cluster.start(name, LEASE_SECONDS="600", RENEW_SECONDS="1")
    over = asyncio.Event()

    async def drop() -> None:
        while not over.is_set():
            await asyncio.to_thread(cluster.database.disconnect)
            await asyncio.sleep(0.2)

    async def half_of_it() -> bool:
        return sum(cluster.gated_jobs.done_counts().values()) >= len(cluster.commits) // 2

    async with asyncio.TaskGroup() as group:
        group.create_task(drop(), name="drop connections")
        await cluster.publish_requests(cluster.commits)
        await wait_until_true("half of the jobs are done", half_of_it)
        over.set()
    # Our own connections would be dropped like theirs, and a read is not tried again.
    async with open_store(cluster.database.url) as store:
        await cluster.have_ended(store, len(cluster.commits))
    assert set(cluster.gated_jobs.done_counts().values()) == {1}
    assert len(cluster.gated_jobs.done_counts()) == len(cluster.commits)
    statuses = await cluster.take_statuses(len(cluster.commits))
    last = {status.run_id: status.state for status in statuses if not status.job_id}
    assert set(last.values()) == {"succeeded"}


async def too_early(cluster: OutageCluster) -> OrchestratorProcess:
    """An orchestrator that has found no database."""
    settings = {"AMQP_URL": cluster.vhost.url, "DATABASE_URL": cluster.database.url}
    started = service_process(
        OrchestratorProcess,
        START,
        "run",
        environment=cluster.shared_files.environment(**settings),
        started="store.awaited",
    )
    return await asyncio.to_thread(cluster.stack.enter_context, started)


async def test_who_starts_before_the_database_waits_for_it(cluster: OutageCluster) -> None:
    async with away(cluster.database, "stop"):
        worker = await too_early(cluster)
        await cluster.publish_requests(cluster.commits[:1])
    async with open_store(cluster.database.url) as store:
        await cluster.have_ended(store, 1)
    await logged(worker, "orchestrator.started")


async def test_who_waits_for_the_database_ends_well_when_asked_to(cluster: OutageCluster) -> None:
    async with away(cluster.database, "stop"):
        worker = await too_early(cluster)
        worker.terminate()
        assert await asyncio.to_thread(worker.ended) == 0
