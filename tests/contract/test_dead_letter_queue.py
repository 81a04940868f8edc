"""What every broker promises about its dead-letter queues (`broker/dead_letter_queue.py`)."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from solstice_common.broker import (
    Broker,
    DeadLetter,
    DeadLetterQueue,
    DeadLetterQueues,
    Message,
    PublishStatus,
    open_broker,
    open_dead_letter_queues,
)
from solstice_common.broker.dead_letters.hashed_bodies import GROUP_BYTES, HEAD_BYTES
from solstice_common.broker.delivery import Ack, Refuse
from solstice_common.topology import QueueType, Route
from tests.browsing import browse
from tests.contract.test_broker import collect, drain, message, publish
from tests.traffic import wait_for_ready

EVERY_VERSION = True
"""See `tests.brokers`."""
WHY = Refuse(reason="invalid_field", detail="commit_sha: must be 40 hexadecimal digits")
EVERYTHING = 10_000
BROWSED_TIMES = 100
LARGE_BYTES = 7 << 20
"""Less than NATS takes in the tests, and too large for a consumer to hold."""


@pytest.fixture
async def queues(broker_url: str) -> AsyncIterator[DeadLetterQueues]:
    async with open_dead_letter_queues(broker_url, name="contract-dead-letters") as opened:
        yield opened


@pytest.fixture
async def declared(broker_url: str, route: Route, queue_type: QueueType) -> AsyncIterator[Broker]:
    """A broker with the topology of each type of queues that it has."""
    async with open_broker(broker_url, name="contract", confirm_timeout_seconds=20) as opened:
        await opened.ready(30)
        await opened.declare(route.topology(queue_type))
        yield opened


@pytest.fixture
def dead(declared: Broker, queues: DeadLetterQueues, route: Route) -> DeadLetterQueue:
    return queues.queue(route.dlq)


async def refuse(broker: Broker, route: Route, *messages: Message) -> None:
    """Have each message refused, and wait until all are in the dead-letter queue."""
    before = await broker.depth(route.dlq)
    assert before is not None
    await publish(broker, *messages)
    async with broker.consume(route.queue, prefetch=len(messages)) as consumer:
        await collect(consumer, len(messages), WHY)
    await wait_for_ready(broker, route.dlq, before.ready + len(messages))


async def publish_dead(broker: Broker, route: Route, *bodies: bytes) -> None:
    """Publish dead letters in this order: RabbitMQ itself makes those of large messages, and later."""
    for body in bodies:
        await publish(broker, message(body, exchange=route.dlx))
    await wait_for_ready(broker, route.dlq, len(bodies))


async def some(broker: Broker, route: Route, count: int) -> None:
    await refuse(
        broker,
        route,
        *(message(str(number).encode(), correlation_id=f"r{number}") for number in range(count)),
    )


def bodies(dead_letters: Sequence[DeadLetter]) -> list[int]:
    return [int(dead_letter.body) for dead_letter in dead_letters]


class RecordingHandler:
    """A handler that notes what it gets, and has some removed."""

    def __init__(self, *chosen: int) -> None:
        self.seen: list[int] = []
        self._chosen = chosen

    async def __call__(self, dead_letters: Sequence[DeadLetter]) -> Collection[str]:
        self.seen += bodies(dead_letters)
        return {each.id for each in dead_letters if int(each.body) in self._chosen}


class TestBrowsing:
    async def test_a_dead_letter_is_shown_with_all_its_properties_and_its_refusal(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        sent = Message(
            exchange=route.exchange,
            routing_key=route.routing_key,
            body=b"\x00\xff not json",
            type="order.v1",
            correlation_id="c-1",
            headers={"x-solstice-idempotency-key": "k-1", "tries": 3, "loud": True},
            priority=7,
            timestamp=datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC),
        )
        await refuse(declared, route, sent)
        (found,) = await browse(dead, EVERYTHING)
        assert (found.queue, found.body, found.type) == (route.dlq, sent.body, sent.type)
        assert (found.correlation_id, found.priority) == ("c-1", 7)
        assert found.timestamp == sent.timestamp
        assert (found.content_type, found.app_id) == ("application/json", "solstice-ci")
        assert found.message_id
        assert found.headers["x-solstice-reason"] == WHY.reason
        assert found.headers["x-solstice-idempotency-key"] == "k-1"
        assert (found.headers["tries"], found.headers["loud"]) == (3, True)

    async def test_the_oldest_come_first_and_no_more_than_asked_for(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 30)
        assert bodies(await browse(dead, 7)) == list(range(7))
        assert bodies(await browse(dead, EVERYTHING)) == list(range(30))

    async def test_a_hundred_looks_change_nothing(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 12)
        first = await browse(dead, EVERYTHING)
        for number in range(BROWSED_TIMES):
            limit = EVERYTHING if number % 2 else 5
            found = await browse(dead, limit)
            assert [each.id for each in found] == [each.id for each in first][:limit], f"number {number}"
        last = await browse(dead, EVERYTHING)
        assert [(each.body, each.message_id, each.timestamp) for each in last] == [
            (each.body, each.message_id, each.timestamp) for each in first
        ]
        counters = [
            int(delivery.headers.get("x-delivery-count", 0))  # type: ignore[call-overload]  # the broker writes a number
            for delivery in await drain(declared, route.dlq, 12)
        ]
        assert max(counters) <= 6, "the broker's counter stays far from any limit"

    async def test_a_newcomer_stands_behind_what_was_looked_at(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 3)
        for _ in range(8):
            await browse(dead, EVERYTHING)
        await refuse(declared, route, message(b"3"))
        assert bodies(await browse(dead, EVERYTHING)) == [0, 1, 2, 3]

    async def test_messages_that_differ_in_their_id_alone_are_two(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        at = datetime.now(UTC)
        one = Message(
            exchange=route.exchange, routing_key=route.routing_key, body=b"1", type="t", timestamp=at
        )
        await refuse(declared, route, one)
        await refuse(declared, route, one)
        assert len({each.id for each in await browse(dead, EVERYTHING)}) == 2

    async def test_an_empty_queue_and_a_missing_one_have_none(
        self, declared: Broker, queues: DeadLetterQueues, dead: DeadLetterQueue
    ) -> None:
        assert await dead.count() == 0
        assert list(await browse(dead, EVERYTHING)) == []
        missing = queues.queue("nothing.of.that.name")
        assert await missing.count() is None
        assert list(await browse(missing, EVERYTHING)) == []
        assert await missing.take(RecordingHandler(), EVERYTHING) == 0
        assert await missing.purge() == 0
        assert await dead.count() == 0, "the connection still works"

    async def test_of_a_large_one_the_beginning_is_shown_and_all_of_it_where_it_is_wanted(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        large = random.Random(1).randbytes(LARGE_BYTES)
        await publish_dead(declared, route, b"0", large, b"2")
        shown, whole = await browse(dead, EVERYTHING), await browse(dead, EVERYTHING, whole=True)
        assert [each.body for each in whole] == [b"0", large, b"2"]
        assert [each.id for each in shown] == [each.id for each in whole]
        assert [each.size for each in shown] == [1, LARGE_BYTES, 1]
        assert shown[1].body == large[:HEAD_BYTES]
        assert shown[1].digest == sha256(large).digest() == whole[1].digest

    async def test_large_ones_survive_many_looks(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        """Of RabbitMQ's quorum queues they are copied meanwhile."""
        sent = [random.Random(number).randbytes(LARGE_BYTES) for number in range(5)]
        await publish_dead(declared, route, *sent)
        first = await browse(dead, EVERYTHING)
        for _ in range(7):
            assert [each.id for each in await browse(dead, EVERYTHING)] == [each.id for each in first]
        assert [each.body for each in await browse(dead, EVERYTHING, whole=True)] == sent

    async def test_an_error_of_who_looks_ends_the_look_and_changes_nothing(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 3)

        def broken(dead_letter: DeadLetter) -> None:
            raise ValueError(f"a mistake about {dead_letter.id}")

        with pytest.raises(ValueError, match="a mistake"):
            await dead.browse(EVERYTHING, broken)
        await wait_for_ready(declared, route.dlq, 3)
        assert bodies(await browse(dead, EVERYTHING)) == [0, 1, 2]


class TestTaking:
    async def test_large_ones_are_taken_in_their_places_and_cut(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        large = [bytes([number]) * LARGE_BYTES for number in range(3)]
        await publish_dead(declared, route, b"a", *large, b"b")
        seen: list[DeadLetter] = []

        async def first_and_last_large(group: Sequence[DeadLetter]) -> Collection[str]:
            assert sum(len(each.body) for each in group) <= GROUP_BYTES
            seen.extend(group)
            return [each.id for each in group if each.body[:1] in {b"\x00", b"\x02"}]

        shown = await browse(dead, EVERYTHING)
        assert await dead.take(first_and_last_large, EVERYTHING) == 2
        assert [(each.id, each.size) for each in seen] == [(each.id, each.size) for each in shown]
        await wait_for_ready(declared, route.dlq, 3)
        assert [each.body[:1] for each in await browse(dead, EVERYTHING)] == [b"a", b"\x01", b"b"]

    async def test_what_the_handler_chose_is_removed_and_the_rest_stays_in_its_place(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 10)
        handler = RecordingHandler(1, 4, 9)
        assert await dead.take(handler, EVERYTHING) == 3
        assert handler.seen == list(range(10))
        await wait_for_ready(declared, route.dlq, 7)
        assert bodies(await browse(dead, EVERYTHING)) == [0, 2, 3, 5, 6, 7, 8]

    async def test_many_come_in_groups(self, declared: Broker, dead: DeadLetterQueue, route: Route) -> None:
        await some(declared, route, 250)
        sizes: list[int] = []

        async def handle(group: Sequence[DeadLetter]) -> Collection[str]:
            sizes.append(len(group))
            return {each.id for each in group}

        assert await dead.take(handle, 240) == 240
        assert sum(sizes) == 240
        assert max(sizes) <= 100
        await wait_for_ready(declared, route.dlq, 10)

    async def test_once_it_is_enough_the_rest_stays_unseen_in_its_place(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 250)
        handle = RecordingHandler(0, 1, 2)
        assert await dead.take(handle, EVERYTHING, enough=lambda: len(handle.seen) > 0) == 3
        assert handle.seen == list(range(len(handle.seen)))
        assert len(handle.seen) <= 100
        await wait_for_ready(declared, route.dlq, 247)
        assert bodies(await browse(dead, EVERYTHING)) == list(range(3, 250))

    async def test_a_handler_that_fails_removes_nothing_of_its_group(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 5)

        async def broken(group: Sequence[DeadLetter]) -> Collection[str]:
            raise ValueError(f"a mistake in the {len(group)} of us")

        with pytest.raises(ValueError, match="a mistake"):
            await dead.take(broken, EVERYTHING)
        await wait_for_ready(declared, route.dlq, 5)
        assert bodies(await browse(dead, EVERYTHING)) == list(range(5))

    async def test_a_cancelled_take_returns_what_it_held(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 5)
        begun = asyncio.Event()

        async def endless(_: Sequence[DeadLetter]) -> Collection[str]:
            begun.set()
            await asyncio.sleep(3600)
            return ()

        taking = asyncio.create_task(dead.take(endless, EVERYTHING))
        await begun.wait()
        assert list(await browse(dead, EVERYTHING)) == [], "what another reader holds is not seen"
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await wait_for_ready(declared, route.dlq, 5)
        assert bodies(await browse(dead, EVERYTHING)) == list(range(5))

    async def test_purging_removes_all(self, declared: Broker, dead: DeadLetterQueue, route: Route) -> None:
        await some(declared, route, 5)
        assert await dead.purge() == 5
        assert await dead.count() == 0
        assert await dead.purge() == 0


class TestPuttingBack:
    async def test_what_was_taken_out_comes_back_with_its_id(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await refuse(
            declared,
            route,
            *(message(b"%d" % n, headers={"k": n}, correlation_id=f"c{n}", priority=n) for n in range(4)),
        )
        before = await browse(dead, EVERYTHING)
        assert await dead.purge() == 4
        outcomes = await dead.put_back(before)
        assert [outcome.status for outcome in outcomes] == [PublishStatus.CONFIRMED] * 4
        await wait_for_ready(declared, route.dlq, 4)
        after = await browse(dead, EVERYTHING)
        assert sorted(each.id for each in after) == sorted(each.id for each in before)
        assert {each.id: each.headers for each in after} == {each.id: each.headers for each in before}

    async def test_nothing_is_put_into_a_missing_queue(
        self, declared: Broker, queues: DeadLetterQueues, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 1)
        (outcome,) = await queues.queue("nothing.of.that.name").put_back(await browse(dead, 1))
        assert outcome.status is PublishStatus.UNROUTABLE
        assert "nothing.of.that.name" in outcome.detail
        assert await dead.count() == 1

    async def test_what_was_put_back_can_be_read_by_a_consumer(
        self, declared: Broker, dead: DeadLetterQueue, route: Route
    ) -> None:
        await some(declared, route, 1)
        found = await browse(dead, EVERYTHING)
        await dead.purge()
        await dead.put_back(found)
        async with declared.consume(route.dlq, prefetch=1) as consumer:
            (delivery,) = await collect(consumer, 1, Ack())
        assert (delivery.body, delivery.correlation_id) == (b"0", "r0")
        assert delivery.headers["x-solstice-reason"] == WHY.reason
