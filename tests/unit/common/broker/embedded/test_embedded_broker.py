"""What only the embedded broker promises; the rest is in `tests/contract/test_broker.py`."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from solstice_common.broker import Message, PublishStatus, open_broker
from solstice_common.broker.delivery import Ack, Refuse, Retry
from solstice_common.broker.embedded import embedded_broker as embedded
from solstice_common.broker.embedded import embedded_consumer
from solstice_common.broker.embedded import rows as embedded_rows
from solstice_common.broker.embedded.embedded_broker import EmbeddedBroker
from solstice_common.errors import BrokerUnavailable, ConfigurationError
from solstice_common.storage.migrations import migrate, migrations_of
from solstice_common.storage.sqlite import SqliteDatabase
from solstice_common.topology import STATUSES, Binding, Exchange, Queue, QueueType, Topology

TOPOLOGY = STATUSES.topology(QueueType.QUORUM)
REFUSE = Refuse(reason="not_json", detail="on purpose")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "broker.db"


@pytest.fixture
async def broker(file: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker.open(f"sqlite:///{file}", name="here") as opened:
        await opened.declare(TOPOLOGY)
        yield opened


@pytest.fixture
def retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try a troubled file again at once."""
    monkeypatch.setattr(embedded, "TROUBLE_SECONDS", 0.001)


@pytest.fixture
def lock(file: Path, broker: EmbeddedBroker) -> Iterator[sqlite3.Connection]:
    """A connection of another process, which may keep the file locked."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
async def short_timeout_broker(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedBroker]:
    """A broker that gives up waiting for the file's lock after some milliseconds."""
    real = SqliteDatabase.open
    monkeypatch.setattr(
        SqliteDatabase, "open", lambda path, migrations: real(path, migrations, busy_seconds=0.01)
    )
    async with EmbeddedBroker.open(f"sqlite:///{file}", name="short") as opened:
        yield opened


def message(body: bytes = b"x", exchange: str = STATUSES.exchange) -> Message:
    return Message(exchange=exchange, routing_key=STATUSES.routing_key, body=body, type="t")


async def bodies(broker: EmbeddedBroker, queue: str, count: int) -> list[bytes]:
    received: list[bytes] = []
    async with broker.consume(queue, prefetch=10) as consumer, asyncio.timeout(30):
        while len(received) < count:
            batch = await consumer.batch()
            received.extend(delivery.body for delivery in batch)
            await consumer.settle([(delivery, Ack()) for delivery in batch])
    return received


async def refuse_one(broker: EmbeddedBroker, queue: str) -> None:
    async with broker.consume(queue, prefetch=1) as consumer, asyncio.timeout(30):
        (delivery,) = await consumer.batch()
        await consumer.settle([(delivery, REFUSE)])


async def test_what_an_older_version_had_delivered_comes_again_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    first, *_ = migrations_of("solstice_common.broker.embedded.schema")
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        migrate(old, path, [first])
        embedded_rows.declare(old, TOPOLOGY)
        old.executemany(
            "INSERT INTO messages (queue_id, exchange, routing_key, headers, published_at, content_type, app_id, body)"
            " SELECT queue_id, 'any', '', '{}', 0, '', '', ? FROM queues WHERE name = ?",
            [(body, STATUSES.queue) for body in (b"1", b"2")],
        )
        owner_id = embedded_rows.add_owner(old, token="killed", name="old")
        consumer_id = embedded_rows.add_consumer(old, owner_id, STATUSES.queue)
        old.execute("INSERT INTO unsettled SELECT min(message), ? FROM messages", (consumer_id,))
    async with EmbeddedBroker.open(f"sqlite:///{path}", name="new") as broker:
        depth = await broker.depth(STATUSES.queue)
        assert depth is not None
        assert (depth.ready, depth.oldest_seconds) == (2, None), "it was not recorded when they came"
        assert await bodies(broker, STATUSES.queue, 2) == [b"1", b"2"]


async def test_a_consumer_waits_for_its_queue_to_be_declared(broker: EmbeddedBroker) -> None:
    later = Topology(
        exchanges=(Exchange(name="later", kind="direct"),),
        queues=(Queue(name="later.v1"),),
        bindings=(Binding(exchange="later", queue="later.v1", routing_key=STATUSES.routing_key),),
    )
    waiting = asyncio.create_task(bodies(broker, "later.v1", 1))
    await asyncio.sleep(0)
    await broker.declare(later)
    await broker.publish([message(b"at last", "later")])
    assert await waiting == [b"at last"]


async def test_a_dead_letter_waits_until_a_queue_is_bound_for_it(broker: EmbeddedBroker) -> None:
    lonely = Topology(
        exchanges=(Exchange(name="lonely", kind="direct"), Exchange(name="lonely.dlx", kind="fanout")),
        queues=(Queue(name="lonely.v1", arguments={"x-dead-letter-exchange": "lonely.dlx"}),),
        bindings=(Binding(exchange="lonely", queue="lonely.v1", routing_key=STATUSES.routing_key),),
    )
    await broker.declare(lonely)
    await broker.publish([message(b"kept", "lonely")])
    await refuse_one(broker, "lonely.v1")
    for queue in ("lonely.dlq.a", "lonely.dlq.b"):
        assert await broker.depth(queue) is None
    await broker.declare(
        Topology(
            exchanges=(),
            queues=(Queue(name="lonely.dlq.a"), Queue(name="lonely.dlq.b")),
            bindings=tuple(
                Binding(exchange="lonely.dlx", queue=f"lonely.dlq.{one}", routing_key="") for one in "ab"
            ),
        )
    )
    for queue in ("lonely.dlq.a", "lonely.dlq.b"):
        assert await bodies(broker, queue, 1) == [b"kept"]


async def test_a_queue_without_a_dead_letter_exchange_drops_what_is_refused(
    broker: EmbeddedBroker, lock: sqlite3.Connection
) -> None:
    await broker.publish([message()])
    await refuse_one(broker, STATUSES.queue)
    await refuse_one(broker, STATUSES.dlq)
    assert lock.execute("SELECT count(*) FROM messages").fetchone() == (0,)


async def test_the_file_holds_nothing_of_a_settled_message(
    broker: EmbeddedBroker, lock: sqlite3.Connection
) -> None:
    await broker.publish([message(str(number).encode()) for number in range(50)])
    await bodies(broker, STATUSES.queue, 50)
    assert lock.execute("SELECT * FROM messages").fetchall() == []
    assert lock.execute("SELECT * FROM deliveries").fetchall() == []
    assert lock.execute("SELECT * FROM consumers").fetchall() == []


async def test_a_message_number_that_comes_again_is_not_settled_by_the_old_delivery(
    broker: EmbeddedBroker,
) -> None:
    async with broker.consume(STATUSES.queue, prefetch=1) as consumer, asyncio.timeout(30):
        await broker.publish([message(b"old")])
        (old,) = await consumer.batch()
        await consumer.settle([(old, Ack())])
        await broker.publish([message(b"new")])
        (new,) = await consumer.batch()
        assert new.tag == old.tag
        await consumer.settle([(old, Ack()), (old, REFUSE)])
        await consumer.settle([(new, Retry(reason="again"))])
        (again,) = await consumer.batch()
        assert again.body == b"new"


async def test_a_retried_message_comes_again_before_the_others_and_counts(broker: EmbeddedBroker) -> None:
    await broker.publish([message(b"0"), message(b"1")])
    seen: list[tuple[bytes, object]] = []
    async with broker.consume(STATUSES.queue, prefetch=1) as consumer, asyncio.timeout(30):
        for verdict in (Retry(reason="later"), Retry(reason="later"), Ack(), Ack()):
            (delivery,) = await consumer.batch()
            seen.append((delivery.body, delivery.headers.get("x-delivery-count")))
            await consumer.settle([(delivery, verdict)])
    assert seen == [(b"0", None), (b"0", 1), (b"0", 2), (b"1", None)]


async def test_publishes_of_one_turn_are_one_transaction(broker: EmbeddedBroker) -> None:
    traced: list[str] = []
    await broker.submit(lambda connection: connection.set_trace_callback(traced.append))
    await asyncio.gather(*(broker.publish([message()]) for _ in range(100)))
    await broker.submit(lambda connection: connection.set_trace_callback(None))
    assert traced.count("BEGIN IMMEDIATE") == 2


async def test_while_the_file_is_locked_publishing_is_unknown_and_the_health_says_so(
    broker: EmbeddedBroker, short_timeout_broker: EmbeddedBroker, lock: sqlite3.Connection
) -> None:
    lock.execute("BEGIN IMMEDIATE")
    (outcome,) = await short_timeout_broker.publish([message()])
    assert outcome.status is PublishStatus.UNKNOWN
    assert "locked" in outcome.detail
    assert "locked" in str(short_timeout_broker.health.blocked)
    with pytest.raises(BrokerUnavailable, match="locked"):
        await short_timeout_broker.declare(TOPOLOGY)
    lock.execute("ROLLBACK")
    (outcome,) = await short_timeout_broker.publish([message()])
    assert outcome.confirmed
    assert short_timeout_broker.health.blocked is None


async def test_a_consumer_sits_out_a_locked_file(
    broker: EmbeddedBroker,
    short_timeout_broker: EmbeddedBroker,
    lock: sqlite3.Connection,
    retries_at_once: None,
) -> None:
    await broker.publish([message(b"1"), message(b"2")])
    async with short_timeout_broker.consume(STATUSES.queue, prefetch=1) as consumer, asyncio.timeout(30):
        (first,) = await consumer.batch()
        lock.execute("BEGIN IMMEDIATE")
        settling = asyncio.create_task(consumer.settle([(first, Ack())]))
        while short_timeout_broker.health.blocked is None:  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0.001)
        assert not settling.done()
        lock.execute("ROLLBACK")
        await settling
        (second,) = await consumer.batch()
        await consumer.settle([(second, Ack())])
    assert (first.body, second.body) == (b"1", b"2")
    depth = await broker.depth(STATUSES.queue)
    assert depth is not None
    assert depth.ready == 0


async def test_a_closed_broker_says_so(file: Path) -> None:
    async with EmbeddedBroker.open(f"sqlite:///{file}", name="here") as broker:
        await broker.declare(TOPOLOGY)
    (outcome,) = await broker.publish([message()])
    assert outcome.status is PublishStatus.UNKNOWN
    assert not broker.health.connected
    with pytest.raises(BrokerUnavailable):
        await broker.ready(1)
    with pytest.raises(BrokerUnavailable):
        await broker.declare(TOPOLOGY)
    with pytest.raises(BrokerUnavailable):
        await broker.depth(STATUSES.queue)


async def test_what_is_under_way_when_the_broker_is_left_gets_an_outcome(file: Path) -> None:
    async with EmbeddedBroker.open(f"sqlite:///{file}", name="here") as broker:
        await broker.declare(TOPOLOGY)
        calls = [asyncio.create_task(broker.publish([message()])) for _ in range(3)]
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        outcomes = [outcome for (outcome,) in await asyncio.gather(*calls)]
    assert {outcome.status for outcome in outcomes} <= {PublishStatus.CONFIRMED, PublishStatus.UNKNOWN}


@pytest.mark.parametrize(
    "wrong",
    [
        Topology(exchanges=(), queues=(), bindings=(Binding(exchange="no", queue="no", routing_key=""),)),
        Topology(
            exchanges=(Exchange(name="yes", kind="direct"),),
            queues=(),
            bindings=(Binding(exchange="yes", queue="no", routing_key=""),),
        ),
    ],
    ids=["no exchange", "no queue"],
)
async def test_a_binding_to_nothing_is_a_configuration_error(broker: EmbeddedBroker, wrong: Topology) -> None:
    with pytest.raises(ConfigurationError, match="bound"):
        await broker.declare(wrong)


async def test_a_message_that_cannot_be_stored_is_its_publishers_error_alone(broker: EmbeddedBroker) -> None:
    outcomes = await asyncio.gather(
        broker.publish([message(b"good")]),
        broker.publish(
            [
                Message(exchange=STATUSES.exchange, routing_key="\ud800", body=b"", type="t"),
            ]
        ),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], UnicodeEncodeError)
    assert await bodies(broker, STATUSES.queue, 1) == [b"good"]


async def test_a_file_that_cannot_be_made_is_reported_when_opening(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file is no directory"):
        async with open_broker(f"sqlite:///{tmp_path}/file/broker.db", name="x"):
            pass


async def test_an_error_inside_the_block_comes_out_as_it_is(file: Path) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with (
            EmbeddedBroker.open(f"sqlite:///{file}", name="x") as broker,
            broker.consume("q", prefetch=1),
        ):
            raise LookupError("mine")


@pytest.mark.parametrize("what", ["publish", "retry", "refuse", "leave"])
async def test_everything_that_makes_a_message_ready_wakes_a_waiting_consumer(
    file: Path, broker: EmbeddedBroker, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (embedded, embedded_consumer):
        monkeypatch.setattr(module, "POLL_SECONDS", 3600)  # no consumer finds it by polling
    async with (
        EmbeddedBroker.open(f"sqlite:///{file}", name="other") as other,
        broker.consume(STATUSES.dlq if what == "refuse" else STATUSES.queue, prefetch=1) as consumer,
        asyncio.timeout(30),
    ):
        async with other.consume(STATUSES.queue, prefetch=1) as holder:
            unsettled = None
            if what != "publish":
                await other.publish([message(b"woken")])
                (unsettled,) = await holder.batch()
            waiting = asyncio.create_task(consumer.batch())
            for _ in range(20):  # until it has polled without success and sleeps
                await broker.depth(STATUSES.queue)
            assert not waiting.done()
            if what == "publish":
                await other.publish([message(b"woken")])
            elif unsettled is not None and what != "leave":
                await holder.settle([(unsettled, Retry(reason="later") if what == "retry" else REFUSE)])
            if what != "leave":
                assert [delivery.body for delivery in await waiting] == [b"woken"]
        assert [delivery.body for delivery in await waiting] == [b"woken"]
