"""Dead letters on NATS JetStream: traps of sequences and presence."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import replace

import nats
import pytest

from solstice_common.broker import (
    Broker,
    DeadLetter,
    Message,
    PublishStatus,
    open_broker,
    open_dead_letter_queues,
)
from solstice_common.broker.jetstream.dead_letters.jetstream_dead_letters import JetStreamDeadLetters
from solstice_common.rights.nats_rights import nats_rights, user_entry
from solstice_common.rights.roles import Role
from solstice_common.runtime.public_interfaces import public_only
from solstice_common.settings import BrokerSettings
from solstice_common.topology import STATUSES, QueueType
from tests.browsing import browse
from tests.servers.nats_server import NatsServer, with_credentials
from tests.servers.versions import NATS_2_10
from tests.traffic import connected

EVERY_VERSION = True

TOPOLOGY = STATUSES.topology(QueueType.QUORUM)
STREAM = STATUSES.dlq.replace(".", "_")
ALL = 10_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(nats_flavour: str) -> Iterator[NatsServer]:
    with NatsServer(sync_interval=None, flavour=nats_flavour) as running:
        yield running


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[Broker]:
    async with open_broker(server.url, name="test") as opened:
        await opened.ready(30)
        await opened.declare(TOPOLOGY)
        async with open_dead_letter_queues(server.url, name="test") as queues:
            await queues.queue(STATUSES.dlq).purge()
        yield opened


async def fill(broker: Broker, *bodies: bytes) -> None:
    outcomes = await broker.publish(
        [
            Message(exchange=STATUSES.dlx, routing_key=STATUSES.routing_key, body=body, type="t")
            for body in bodies
        ]
    )
    assert all(each.confirmed for each in outcomes)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def ids(group: Sequence[DeadLetter]) -> Collection[str]:
    return [each.id for each in group]


async def test_a_look_leaves_no_trace_at_the_stream_and_its_consumer(
    broker: Broker, server: NatsServer
) -> None:
    await fill(broker, *numbered(5))
    client = await nats.connect(server.url)
    jetstream = client.jetstream()
    before = await jetstream.consumer_info(STREAM, "solstice")
    async with open_dead_letter_queues(server.url, name="test") as queues:
        for _ in range(100):
            assert len(await browse(queues.queue(STATUSES.dlq), ALL)) == 5
    after = await jetstream.consumer_info(STREAM, "solstice")
    stream = await jetstream.stream_info(STREAM)
    await client.close()
    facts = [
        (each.delivered, each.ack_floor, each.num_ack_pending, each.num_pending) for each in (before, after)
    ]
    assert facts[0] == facts[1]
    assert (stream.state.messages, stream.state.consumer_count) == (5, 1)


async def test_the_depth_says_how_old_the_oldest_is(broker: Broker) -> None:
    empty = await broker.depth(STATUSES.dlq)
    assert empty is not None
    assert (empty.ready, empty.oldest_seconds) == (0, None)
    await fill(broker, *numbered(2))
    full = await broker.depth(STATUSES.dlq)
    assert full is not None
    assert full.ready == 2
    assert full.oldest_seconds is not None
    assert 0 <= full.oldest_seconds < 60


async def test_two_replays_at_once_pass_on_no_message_twice(broker: Broker, server: NatsServer) -> None:
    await fill(broker, *numbered(900))
    seen: list[bytes] = []

    async def handle(group: Sequence[DeadLetter]) -> Collection[str]:
        seen.extend(each.body for each in group)
        await asyncio.sleep(0)
        return await ids(group)

    async with (
        open_dead_letter_queues(server.url, name="one") as one,
        open_dead_letter_queues(server.url, name="two") as two,
    ):
        await asyncio.gather(*(each.queue(STATUSES.dlq).take(handle, ALL) for each in (one, two)))
        assert len(seen) == len(set(seen))
        # Both may have released the same ones: a further replay gets them.
        await one.queue(STATUSES.dlq).take(handle, ALL)
        assert await one.queue(STATUSES.dlq).count() == 0
    assert sorted(seen, key=int) == numbered(900)


async def test_a_long_gap_between_dead_letters_is_skipped(broker: Broker, server: NatsServer) -> None:
    await fill(broker, *numbered(2100))
    ends = {b"0", b"2099"}

    async def all_but_the_ends(group: Sequence[DeadLetter]) -> Collection[str]:
        return [each.id for each in group if each.body not in ends]

    async with open_dead_letter_queues(server.url, name="test") as queues:
        dead = queues.queue(STATUSES.dlq)
        assert await dead.take(all_but_the_ends, ALL) == 2098
        assert {each.body for each in await browse(dead, ALL)} == ends
        assert await dead.take(ids, ALL) == 2


async def no_ids(_group: Sequence[DeadLetter]) -> Collection[str]:
    return ()


async def sent_by_a_list_of(server: NatsServer, number: int) -> int:
    """How many messages a client sends to list them all."""
    async with JetStreamDeadLetters.open(server.url, name="test") as queues:
        client = queues._connection.client
        before = client.stats["out_msgs"]
        assert len(await browse(queues.queue(STATUSES.dlq), ALL)) == number
        return client.stats["out_msgs"] - before


async def test_a_list_and_a_replay_read_many_with_one_request(
    broker: Broker, server: NatsServer, nats_flavour: str
) -> None:
    await fill(broker, *numbered(1200))
    sent = await sent_by_a_list_of(server, 1200)
    reads_each = nats_flavour == NATS_2_10 or public_only("nats")
    assert sent >= 1200 if reads_each else sent < 20
    async with JetStreamDeadLetters.open(server.url, name="test") as queues:
        client = queues._connection.client
        before = client.stats["out_msgs"]
        assert await queues.queue(STATUSES.dlq).take(no_ids, ALL) == 0
        sent = client.stats["out_msgs"] - before
    assert sent >= 1200 if reads_each else sent < 40
    # An operator may have made the stream, without direct reads.
    client = await nats.connect(server.url)
    stream = (await client.jetstream().stream_info(STREAM)).config
    await client.jetstream().update_stream(replace(stream, allow_direct=False))
    try:
        assert await sent_by_a_list_of(server, 1200) >= 1200
    finally:
        await client.jetstream().update_stream(stream)
        await client.close()


async def test_a_user_without_the_right_to_read_many_reads_each(nats_flavour: str) -> None:
    with NatsServer(sync_interval=None, flavour=nats_flavour) as own:
        async with connected(own.url, topology=TOPOLOGY) as broker:
            await fill(broker, *numbered(3))
        names = nats_rights(Role.OPERATOR, BrokerSettings()).names("otter")
        names = {**names, "publish": [each for each in names["publish"] if "DIRECT" not in each]}
        own.settings = ["authorization { users: [", *user_entry("otter", "secret", names), "] }"]
        own.reload()
        async with open_dead_letter_queues(with_credentials(own.url, "otter:secret"), name="test") as queues:
            found = await browse(queues.queue(STATUSES.dlq), ALL)
        assert [each.body for each in found] == numbered(3)


async def test_what_was_removed_by_hand_meanwhile_is_not_counted(broker: Broker, server: NatsServer) -> None:
    await fill(broker, *numbered(3))

    async def purge_by_hand(group: Sequence[DeadLetter]) -> Collection[str]:
        client = await nats.connect(server.url)
        await client.jetstream().purge_stream(STREAM)
        await client.close()
        return await ids(group)

    async with open_dead_letter_queues(server.url, name="test") as queues:
        assert await queues.queue(STATUSES.dlq).take(purge_by_hand, ALL) == 0


async def test_large_ones_are_shown_and_what_is_too_large_is_not_put_back(
    broker: Broker, server: NatsServer
) -> None:
    await fill(broker, b"x" * MIB)
    async with open_dead_letter_queues(server.url, name="test") as queues:
        dead = queues.queue(STATUSES.dlq)
        (found,) = await browse(dead, ALL, whole=True)
        assert found.body == b"x" * MIB
        outcomes = await dead.put_back(
            [
                DeadLetter(queue=STATUSES.dlq, body=b"y" * (9 * MIB)),
                DeadLetter(queue=STATUSES.dlq, body=b"", headers={"h": "z" * 70_000}),
                DeadLetter(queue=STATUSES.dlq, body=b"3"),
            ]
        )
        assert [each.status for each in outcomes] == [
            PublishStatus.REJECTED,
            PublishStatus.REJECTED,
            PublishStatus.CONFIRMED,
        ]
        assert await dead.count() == 2
