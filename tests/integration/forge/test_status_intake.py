"""Statuses from a broker into the store: invalid ones, an unavailable store, internal errors."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from solstice_common.broker import Broker, Message, open_broker
from solstice_common.errors import StoreUnavailable
from solstice_common.topology import STATUSES, QueueType
from solstice_forge.metrics import Metrics
from solstice_forge.statuses.intake import StatusIntake
from solstice_forge.statuses.protocol import StatusKeepResult
from solstice_forge.statuses.reportable_status import ReportableStatus
from solstice_forge.statuses.sqlite import SqliteStatuses
from tests.polling import wait_until
from tests.statuses import job_status
from tests.traffic import drain

HAS_REMOTE = {"forgejo": True, "github": False}
TOPOLOGY = STATUSES.topology(QueueType.QUORUM)


class FailingStatuses(SqliteStatuses):
    """A store that is unavailable while `away`, and breaks on one run."""

    away = False
    calls = 0
    broken_by = ""

    async def keep(self, statuses: Sequence[ReportableStatus], now: float) -> Sequence[StatusKeepResult]:
        self.calls += 1
        if self.away:
            raise StoreUnavailable("the test's store", "it is in a mood")
        if self.broken_by in {status.run_id for status in statuses}:
            raise ValueError("a bug")
        return await super().keep(statuses, now)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FailingStatuses]:
    async with FailingStatuses.open(tmp_path / "statuses.db") as opened:
        assert isinstance(opened, FailingStatuses)
        yield opened


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with open_broker(f"sqlite:///{tmp_path}/broker.db", name="test") as opened:
        await opened.declare(TOPOLOGY)
        yield opened


@asynccontextmanager
async def running_intake(broker: Broker, store: FailingStatuses, metrics: Metrics) -> AsyncIterator[None]:
    intake = StatusIntake(
        broker=broker, store=store, has_remote=HAS_REMOTE, metrics=metrics, rng=random.Random(1)
    )
    task = asyncio.create_task(intake.run(STATUSES, TOPOLOGY, prefetch=64))
    yield
    assert not task.done(), "it takes no more"
    task.cancel()
    await asyncio.wait([task])


async def publish(broker: Broker, *bodies: bytes) -> None:
    outcomes = await broker.publish(
        [
            Message(
                exchange=STATUSES.exchange, routing_key=STATUSES.routing_key, body=body, type="jobstatus.v1"
            )
            for body in bodies
        ]
    )
    assert all(outcome.confirmed for outcome in outcomes)


def counted(metrics: Metrics, outcome: str) -> float:
    line = f'solstice_forge_status_messages_total{{outcome="{outcome}"}} '
    lines = metrics.text().decode().splitlines()
    return sum(float(each.removeprefix(line)) for each in lines if each.startswith(line))


async def test_every_message_is_counted_by_what_became_of_it(broker: Broker, store: FailingStatuses) -> None:
    metrics = Metrics()
    bodies = [
        job_status(source="github").encode(),
        job_status(run=2).encode(),
        job_status(run=1).encode(),
        job_status(source_name=None).encode(),
        b"poison",
        job_status(source_name="unknown").encode(),
    ]
    await publish(broker, *bodies)
    async with running_intake(broker, store, metrics):
        dead_letters = await drain(broker, STATUSES.dlq, 2)
        outcomes = {"wanted": 1, "stale": 1, "no_credentials": 1, "no_source": 1, "refused": 2}
        await wait_until(lambda: {name: counted(metrics, name) for name in outcomes} == outcomes)
        depth = await broker.depth(STATUSES.queue)
    assert [each.headers["x-solstice-reason"] for each in dead_letters] == ["not_json", "unknown_source"]
    assert depth is not None
    assert depth.ready == 0
    assert [each.run_id for each in await store.shown(job_status(run=2).request_id)] == [
        job_status(run=2).run_id
    ]


async def test_a_store_that_is_away_loses_no_status(broker: Broker, store: FailingStatuses) -> None:
    store.away = True
    metrics = Metrics()
    async with running_intake(broker, store, metrics):
        await publish(broker, job_status().encode())
        await wait_until(lambda: store.calls >= 2)
    store.away = False
    async with running_intake(broker, store, metrics):
        await wait_until(lambda: counted(metrics, "wanted") == 1)
    assert await store.pending() == 1


async def test_a_mistake_of_ours_over_one_status_stops_no_other(
    broker: Broker, store: FailingStatuses
) -> None:
    statuses = [job_status(run=number, context=f"solstice/{number}") for number in (1, 2, 3)]
    store.broken_by = statuses[1].run_id
    metrics = Metrics()
    await publish(broker, *(status.encode() for status in statuses))
    with capture_logs() as logs:
        async with running_intake(broker, store, metrics):
            (dead_letter,) = await drain(broker, STATUSES.dlq, 1)
            await wait_until(lambda: counted(metrics, "wanted") == 2)
    assert dead_letter.body == statuses[1].encode()
    assert dead_letter.headers["x-solstice-reason"] == "internal_error"
    assert counted(metrics, "refused") == 1
    (crashed,) = (one for one in logs if one["event"] == "status.handling_crashed")
    assert (crashed["source"], crashed["request_id"]) == ("forgejo", statuses[1].request_id)
