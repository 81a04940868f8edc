"""A dead-letter queue that another reader holds does not look empty."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import pytest

from solstice_common.broker import (
    Broker,
    DeadLetter,
    DeadLetterQueues,
    open_dead_letter_queues,
)
from solstice_common.broker.dead_letters import other_readers
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import browse, drop, purge, put_back
from solstice_common.broker.dead_letters.replaying import Replay, Replayed
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.errors import DeadLettersInUse
from solstice_common.settings import BrokerSettings
from solstice_common.topology import full_topology
from tests.brokers import EMBEDDED, broker_url, pytest_generate_tests
from tests.dead_letter_replays import JOBS, TOPOLOGY, another_reader, fill, refused
from tests.polling import wait_until_true
from tests.servers.rabbitmq import Vhost
from tests.servers.versions import NATS, REDIS
from tests.traffic import connected, wait_for_ready

__all__ = ["broker_url", "pytest_generate_tests"]
COUNT = 5
EXACT = (EMBEDDED, REDIS, NATS)
"""The brokers that say how many messages a reader holds."""


@pytest.fixture
async def broker(broker_url: str) -> AsyncIterator[Broker]:
    async with connected(broker_url, topology=TOPOLOGY) as opened:
        await fill(opened, *(refused(number) for number in range(COUNT)))
        yield opened


@pytest.fixture
async def ours(broker: Broker, broker_url: str) -> AsyncIterator[DeadLetterQueues]:
    del broker
    async with open_dead_letter_queues(broker_url, name="ours") as queues:
        yield queues


def ids(queues: DeadLetterQueues) -> Awaitable[list[str]]:
    def keep(found: DeadLetterFacts) -> str:
        return found.id

    return browse(queues, [JOBS.dlq], Selection(), keep)


def replaying(broker: Broker, queues: DeadLetterQueues) -> Awaitable[Replayed]:
    replay = Replay(
        broker=broker,
        queues=queues,
        dlq=JOBS.dlq,
        route=JOBS,
        selection=Selection(),
        replay_id="r",
        by="test",
    )
    return replay.run()


async def test_how_many_another_reader_holds_is_known_where_the_broker_says_it(
    broker_kind: str, broker_url: str, ours: DeadLetterQueues
) -> None:
    queue = ours.queue(JOBS.dlq)
    assert await queue.in_use() == 0
    async with another_reader(broker_url):
        assert await queue.count() == 0
        assert await queue.in_use() == (COUNT if broker_kind in EXACT else None)
    assert await queue.in_use() == 0
    assert await ours.queue("nothing.of.that.name").in_use() == 0


async def test_readers_wait_for_another_one(broker_url: str, broker: Broker, ours: DeadLetterQueues) -> None:
    async with another_reader(broker_url):
        listing = asyncio.ensure_future(ids(ours))
        await asyncio.wait([listing], timeout=1)
        assert not listing.done()
    assert len(await listing) == COUNT
    async with another_reader(broker_url):
        sending = asyncio.ensure_future(replaying(broker, ours))
        await asyncio.wait([sending], timeout=1)
        assert not sending.done()
    assert len((await sending).sent) == COUNT


async def test_what_another_reader_holds_on_and_on_is_no_empty_queue(
    broker_url: str, broker: Broker, ours: DeadLetterQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, noted = ours.queue(JOBS.dlq), list[str]()
    there = await ids(ours)
    monkeypatch.setattr(other_readers, "WAIT_SECONDS", 0.3)

    async def is_refused(work: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(DeadLettersInUse, match=JOBS.dlq):
            await work()

    async with another_reader(broker_url):
        await is_refused(lambda: ids(ours))
        await is_refused(lambda: drop(queue, Selection(ids=there)))
        await is_refused(lambda: put_back(queue, [DeadLetter(queue=JOBS.dlq, body=b"")]))
        report = await replaying(broker, ours)
        assert (report.sent, report.went_well) == ([], False)
        assert "another reader" in report.not_read
        assert await purge(queue, on_held=lambda name, _: noted.append(name)) == 0
        assert noted == [JOBS.dlq]
    assert await ids(ours) == there


async def test_what_another_reader_holds_of_a_queue_is_said_beside_the_rest(
    broker_url: str, broker: Broker, ours: DeadLetterQueues
) -> None:
    queue, noted = ours.queue(JOBS.dlq), list[str]()
    async with another_reader(broker_url):
        await queue.put_back([DeadLetter(queue=JOBS.dlq, body=b"later")])
        found = await browse(
            ours,
            [JOBS.dlq],
            Selection(),
            lambda found: found.dead_letter.body,
            on_held=lambda name, _: noted.append(name),
        )
        assert (found, noted) == ([b"later"], [JOBS.dlq])
        assert await purge(queue, on_held=lambda name, _: noted.append(name)) == 1
        assert noted == [JOBS.dlq] * 2
    assert len(await ids(ours)) == COUNT


async def test_the_management_api_of_rabbitmq_says_how_many(rabbitmq_vhost: Vhost) -> None:
    url = rabbitmq_vhost.url
    # Quorum queues are counted less often.
    async with connected(url, topology=full_topology(BrokerSettings(amqp_queue_type="classic"))) as broker:
        await broker.publish([refused(number) for number in range(COUNT)])
        await wait_for_ready(broker, JOBS.dlq, COUNT)
        opening = open_dead_letter_queues(
            url, name="ours", management_url=rabbitmq_vhost.server.management_url
        )
        async with opening as ours, another_reader(url):

            async def all_are_counted() -> bool:
                return await ours.queue(JOBS.dlq).in_use() == COUNT

            await wait_until_true("all are counted", all_are_counted)


async def test_what_a_script_got_one_by_one_is_no_empty_queue(
    rabbitmq_vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no consumer, and AMQP counts consumers alone."""
    url, noted = rabbitmq_vhost.url, list[tuple[str, int | None]]()
    monkeypatch.setattr(other_readers, "WAIT_SECONDS", 0.3)
    async with (
        connected(url, topology=full_topology(BrokerSettings(amqp_queue_type="classic"))) as broker,
        open_dead_letter_queues(
            url, name="ours", management_url=rabbitmq_vhost.server.management_url
        ) as queues,
        await aio_pika.connect(url) as script,
    ):
        await broker.publish([refused(number) for number in range(COUNT)])
        await wait_for_ready(broker, JOBS.dlq, COUNT)

        async def listed() -> int:
            return len(
                await browse(
                    queues,
                    [JOBS.dlq],
                    Selection(),
                    lambda found: found.id,
                    on_held=lambda *facts: noted.append(facts),
                )
            )

        for _ in range(10):
            assert await listed() == COUNT
        assert noted == []  # also where our own reading is counted
        channel = await script.channel()
        got_from = await channel.get_queue(JOBS.dlq, ensure=False)

        async def all_are_counted() -> bool:
            return await queues.queue(JOBS.dlq).in_use() == COUNT

        for _ in range(COUNT):
            await got_from.get()
        await wait_until_true("all are counted", all_are_counted)
        with pytest.raises(DeadLettersInUse, match=f"{COUNT} dead letters of {JOBS.dlq} cannot be read"):
            await listed()
        await channel.close()
        await wait_for_ready(broker, JOBS.dlq, COUNT)
        assert await listed() == COUNT
