"""Dead letters on Redis: traps of streams, leases and permissions."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress

import pytest

from solstice_common.broker import (
    Broker,
    DeadLetter,
    Message,
    PublishStatus,
    open_broker,
    open_dead_letter_queues,
)
from solstice_common.topology import STATUSES, QueueType
from tests.browsing import browse
from tests.servers.proxy import fault_proxy
from tests.servers.redis_server import RedisServer
from tests.traffic import wait_for_ready

EVERY_VERSION = True

TOPOLOGY = STATUSES.topology(QueueType.QUORUM)
ALL = 1000


@pytest.fixture
async def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
async def broker(url: str) -> AsyncIterator[Broker]:
    async with open_broker(url, name="test") as opened:
        await opened.ready(30)
        await opened.declare(TOPOLOGY)
        await opened.publish(
            [
                Message(
                    exchange=STATUSES.dlx, routing_key=STATUSES.routing_key, body=b"%d" % number, type="t"
                )
                for number in range(3)
            ]
        )
        yield opened


class Endless:
    """A handler that never comes back."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, _: Sequence[DeadLetter]) -> Collection[str]:
        self.begun.set()
        await asyncio.sleep(3600)
        return ()


async def read_by_a_cut_off_reader(url: str) -> None:
    """Have a reader take all, and cut its connection: it can return nothing itself."""
    handler = Endless()
    async with fault_proxy(url) as proxy, open_dead_letter_queues(proxy.url(url), name="cut-off") as queues:
        taking = asyncio.create_task(queues.queue(STATUSES.dlq).take(handler, ALL))
        await handler.begun.wait()
        proxy.refuse()
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking


async def test_what_a_reader_held_whose_connection_is_gone_comes_back_at_once(
    broker: Broker, url: str
) -> None:
    await read_by_a_cut_off_reader(url)
    async with open_dead_letter_queues(url, name="test") as queues:
        dead = queues.queue(STATUSES.dlq)
        async with asyncio.timeout(10):  # the lease is 30 s
            while len(found := await browse(dead, ALL)) < 3:  # noqa: ASYNC110  asks a server
                await asyncio.sleep(0.01)
    assert [each.body for each in found] == [b"0", b"1", b"2"]
    await wait_for_ready(broker, STATUSES.dlq, 3)


async def test_without_the_permission_to_list_clients_it_comes_back_when_its_lease_ends(
    broker: Broker, url: str, redis_server: RedisServer
) -> None:
    with redis_server.client() as admin:
        admin.acl_setuser(
            "operator",
            enabled=True,
            passwords=["+secret"],
            keys=["*"],
            categories=["+@all"],
            commands=["-client|list"],
        )
        restricted = url.replace("redis://", "redis://operator:secret@") + "?lease=1"
        try:
            await read_by_a_cut_off_reader(restricted)
            async with asyncio.timeout(10), open_dead_letter_queues(restricted, name="test") as queues:
                while len(await browse(queues.queue(STATUSES.dlq), ALL)) < 3:  # noqa: ASYNC110  asks a server
                    await asyncio.sleep(0.01)
        finally:
            admin.acl_deluser("operator")


async def test_a_living_reader_renews_its_lease_and_keeps_what_it_holds(
    broker: Broker, url: str, redis_server: RedisServer
) -> None:
    handler, short = Endless(), url + "?lease=4"
    async with (
        open_dead_letter_queues(short, name="one") as one,
        open_dead_letter_queues(short, name="two") as two,
    ):
        taking = asyncio.create_task(one.queue(STATUSES.dlq).take(handler, ALL))
        await handler.begun.wait()
        with redis_server.client() as client:
            ((reader, first),) = client.zrange(f"{STATUSES.dlq}:consumers", 0, -1, withscores=True)
            async with asyncio.timeout(20):
                while client.zscore(f"{STATUSES.dlq}:consumers", reader) <= first:  # noqa: ASYNC110  asks a server
                    await asyncio.sleep(0.05)
        assert await two.queue(STATUSES.dlq).count() == 0
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        assert await two.queue(STATUSES.dlq).count() == 3


async def test_what_redis_cannot_carry_is_rejected_and_the_rest_put_back(broker: Broker, url: str) -> None:
    async with open_dead_letter_queues(url, name="test") as queues:
        dead = queues.queue(STATUSES.dlq)
        outcomes = await dead.put_back(
            [
                DeadLetter(queue=STATUSES.dlq, body=b"", headers={"n": 1 << 80}),
                DeadLetter(queue=STATUSES.dlq, body=b"3", headers={"n": 1}),
            ]
        )
        assert [each.status for each in outcomes] == [PublishStatus.REJECTED, PublishStatus.CONFIRMED]
        assert [each.body for each in await browse(dead, ALL)] == [b"0", b"1", b"2", b"3"]
