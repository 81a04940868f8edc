"""The database goes away under orchestrators at work, and comes back: nothing is lost, nothing runs twice."""

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
from tests.e2e.ledger import Ledger
from tests.patience import becomes_true
from tests.servers.orchestrator import START, OrchestratorProcess, Place, orchestrator
from tests.servers.postgresql import PostgreSQLDatabase
from tests.servers.rabbitmq import DEFAULT, Vhost
from tests.servers.service_process import service_process
from tests.traffic import WAIT_SECONDS, drain

WORKFLOW = 'job "build" { step "work" run="sh .solstice/work.sh"; }'
RUNNING, LATE = 4, 6
"""Requests whose jobs run when the database goes away, and such as come while it is away."""

pytestmark = [
    pytest.mark.timeout(240),  # it may have to start a RabbitMQ first
    # What happens to the database is the same for every broker.
    pytest.mark.parametrize("rabbitmq_flavour", [DEFAULT], scope="session"),
]


async def logged(process: OrchestratorProcess, event: str) -> None:
    """Wait for the event without holding up the loop."""
    await asyncio.to_thread(process.logged, event)


class Ground:
    """Two orchestrators on one database and one broker, and jobs that wait at a gate."""

    def __init__(self, database: PostgreSQLDatabase, vhost: Vhost, directory: Path, stack: ExitStack) -> None:
        self.database, self.vhost, self.ledger = database, vhost, Ledger(directory=directory)
        self.place, self.stack = Place(directory=directory), stack
        self.repository, self.commits = self.ledger.repository("anvil", WORKFLOW, RUNNING + LATE)
        self.workers: list[OrchestratorProcess] = []

    async def start(self, name: str, **settings: str) -> OrchestratorProcess:
        environment = {
            "AMQP_URL": self.vhost.url,
            "DATABASE_URL": self.database.url,
            "WORKER_NAME": name,
            "CAPACITY_MAP": "linux=2",
            **settings,
        }
        worker = await asyncio.to_thread(self.stack.enter_context, orchestrator(self.place, **environment))
        self.workers.append(worker)
        return worker

    async def ask(self, commits: Sequence[str]) -> None:
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
        async def so_many() -> bool:
            return len(self.ledger.attempts("waits")) == count

        await becomes_true(f"{count} attempts wait at the gate", so_many)

    async def have_ended(self, store: JobStore, count: int) -> None:
        async def all_of_them() -> bool:
            runs = (await store.runs(limit=100)).runs
            return len(runs) == count and all(run.state.final for run in runs)

        await becomes_true(f"{count} runs have ended", all_of_them)

    async def are_with_the_broker(self, count: int) -> None:
        """So many job requests are not acknowledged yet, delivered or not; RabbitMQ counts them now and then."""
        queue = jobs_route(BrokerSettings()).queue

        async def so_many() -> bool:
            known = await asyncio.to_thread(self.vhost.api, "GET", "queues", queue)
            return bool(known.get("messages") == count)

        await becomes_true(f"{count} requests are with the broker", so_many)

    async def told(self, runs: int) -> list[JobStatusV1]:
        """Every status of runs and jobs, once the last word about so many runs is there."""
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

        await becomes_true(f"the end of {runs} runs was told", last_words)
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def ground(
    own_postgresql_database: PostgreSQLDatabase, rabbitmq_vhost: Vhost, tmp_path: Path, stack: ExitStack
) -> Ground:
    return Ground(own_postgresql_database, rabbitmq_vhost, tmp_path, stack)


@asynccontextmanager
async def away(database: PostgreSQLDatabase, how: str) -> AsyncIterator[None]:
    """The database server is gone meanwhile."""
    await asyncio.to_thread(getattr(database.server, how))
    try:
        yield
    finally:
        await asyncio.to_thread(database.server.start)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_while_the_database_is_away_requests_wait_jobs_go_on_and_then_all_is_recorded(
    ground: Ground, how: str
) -> None:
    ground.ledger.shut()
    for name in ("anna", "bert"):
        await ground.start(name, LEASE_SECONDS="600", RENEW_SECONDS="1")
    await ground.ask(ground.commits[:RUNNING])
    await ground.waits_at_the_gate(RUNNING)

    async with away(ground.database, how):
        await ground.ask(ground.commits[RUNNING:])
        for worker in ground.workers:
            await logged(worker, "leases.not_renewed")
        await becomes_true("intake is held", lambda: asyncio.sleep(0, any(map(is_held, ground.workers))))
        ground.ledger.open()
        await becomes_true(
            "jobs end while the database is away",
            lambda: asyncio.sleep(0, sum(ground.ledger.done().values()) == RUNNING),
        )
        await ground.are_with_the_broker(LATE)

    async with open_store(ground.database.url) as store:
        await ground.have_ended(store, RUNNING + LATE)
        runs = (await store.runs(limit=100)).runs
        assert {run.state for run in runs} == {RunState.SUCCEEDED}
        jobs = [view for run in runs for view in await store.jobs(run_id=run.run_id, limit=10)]
        assert [view.attempt for view in jobs] == [1] * (RUNNING + LATE)
        for view in jobs:
            (attempt,) = await store.attempts(view.job_id)
            assert (attempt.state, attempt.reason) == (JobState.SUCCEEDED, Reason.COMPLETED)
    assert set(ground.ledger.done().values()) == {1}
    assert len(ground.ledger.done()) == RUNNING + LATE
    statuses = await ground.told(RUNNING + LATE)
    last = {status.run_id: status.state for status in statuses if not status.job_id}
    assert set(last.values()) == {"succeeded"}
    await ground.are_with_the_broker(0)


def is_held(worker: OrchestratorProcess) -> bool:
    return any(event.get("event") == "intake.held" for event in worker.events)


async def test_a_job_whose_lease_ran_out_meanwhile_is_ended_first_and_then_runs_again(ground: Ground) -> None:
    ground.ledger.shut()
    worker = await ground.start("anna", LEASE_SECONDS="3", RENEW_SECONDS="1")
    await ground.ask(ground.commits[:2])
    await ground.waits_at_the_gate(2)

    async with away(ground.database, "kill"):
        await logged(worker, "lease.lost")
        await becomes_true(
            "both were given up",
            lambda: asyncio.sleep(0, sum(each.get("event") == "lease.lost" for each in worker.events) == 2),
        )

    async with open_store(ground.database.url) as store:
        await ground.waits_at_the_gate(4)
        ground.ledger.open()
        await ground.have_ended(store, 2)
        for run in (await store.runs(limit=10)).runs:
            assert run.state is RunState.SUCCEEDED
            (view,) = await store.jobs(run_id=run.run_id, limit=10)
            first, second = await store.attempts(view.job_id)
            assert first.reason in {Reason.LEASE_EXPIRED, Reason.AGENT_LOST, Reason.RELEASED}
            assert (second.state, second.number) == (JobState.SUCCEEDED, 2)
    # Whoever was given up did not come to its end: what is done is done by the second attempt.
    assert {attempt for _, attempt in ground.ledger.attempts("done")} == {2}


async def test_a_database_that_drops_connections_now_and_then_disturbs_nobody(ground: Ground) -> None:
    for name in ("anna", "bert"):
        await ground.start(name, LEASE_SECONDS="600", RENEW_SECONDS="1")
    over = asyncio.Event()

    async def drop() -> None:
        while not over.is_set():
            await asyncio.to_thread(ground.database.disconnect)
            await asyncio.sleep(0.2)

    async def half_of_it() -> bool:
        return sum(ground.ledger.done().values()) >= len(ground.commits) // 2

    async with asyncio.TaskGroup() as group:
        group.create_task(drop(), name="drop connections")
        await ground.ask(ground.commits)
        await becomes_true("half of the jobs are done", half_of_it)
        over.set()
    # Our own connections would be dropped like theirs, and a read is not tried again.
    async with open_store(ground.database.url) as store:
        await ground.have_ended(store, len(ground.commits))
    assert set(ground.ledger.done().values()) == {1}
    assert len(ground.ledger.done()) == len(ground.commits)
    statuses = await ground.told(len(ground.commits))
    last = {status.run_id: status.state for status in statuses if not status.job_id}
    assert set(last.values()) == {"succeeded"}


async def too_early(ground: Ground) -> OrchestratorProcess:
    """An orchestrator that has found no database."""
    settings = {"AMQP_URL": ground.vhost.url, "DATABASE_URL": ground.database.url}
    started = service_process(
        OrchestratorProcess,
        START,
        "run",
        environment=ground.place.environment(**settings),
        started="store.awaited",
    )
    return await asyncio.to_thread(ground.stack.enter_context, started)


async def test_who_starts_before_the_database_waits_for_it(ground: Ground) -> None:
    async with away(ground.database, "stop"):
        worker = await too_early(ground)
        await ground.ask(ground.commits[:1])
    async with open_store(ground.database.url) as store:
        await ground.have_ended(store, 1)
    await logged(worker, "orchestrator.started")


async def test_who_waits_for_the_database_ends_well_when_asked_to(ground: Ground) -> None:
    async with away(ground.database, "stop"):
        worker = await too_early(ground)
        worker.terminate()
        assert await asyncio.to_thread(worker.ended) == 0
