"""One connection to a real Redis, with several calls under way."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from solstice_common.broker.redis_streams.redis_url import redis_address
from solstice_common.broker.redis_streams.redis_wire import RedisLost, RedisWire, open_redis_wire
from tests.polling import wait_until
from tests.servers.redis_server import RedisServer

EVERY_VERSION = True


@pytest.fixture
async def wire(redis_server: RedisServer) -> AsyncIterator[RedisWire]:
    async with open_redis_wire(redis_address(redis_server.fresh_url()), "test") as wire:
        yield wire


async def test_calls_under_way_together_get_their_own_replies_in_order(wire: RedisWire) -> None:
    assert await asyncio.gather(*(wire.command("ECHO", f"{number}") for number in range(500))) == [
        f"{number}".encode() for number in range(500)
    ]


async def test_a_call_is_sent_while_the_server_works_on_another(
    redis_server: RedisServer, wire: RedisWire
) -> None:
    slow = asyncio.create_task(wire.command("BLPOP", "never", "30"))
    behind = asyncio.create_task(wire.command("ECHO", "behind"))
    with redis_server.client() as other:
        # It lies in the server's buffer of this connection.
        await wait_until(
            lambda: any(each["name"] == "test" and each["qbuf"] != "0" for each in other.client_list())
        )
        assert not slow.done()
        other.rpush("never", "now")
    assert await slow == [b"never", b"now"]
    assert await behind == b"behind"


async def test_a_caller_that_leaves_does_not_take_the_reply_of_the_next(wire: RedisWire) -> None:
    leaving = asyncio.create_task(wire.command("BLPOP", "never", "0.3"))
    behind = asyncio.create_task(wire.command("ECHO", "mine"))
    await asyncio.sleep(0.05)
    leaving.cancel()
    assert await behind == b"mine"


async def test_an_overdue_call_ends_the_connection_for_all_and_says_so(wire: RedisWire) -> None:
    first = asyncio.create_task(wire.command("BLPOP", "never", "0.6"))
    overdue = asyncio.create_task(wire.command("PING", seconds=0.2))
    later = asyncio.create_task(wire.command("PING"))
    with pytest.raises(RedisLost, match=r"did not answer within 0\.2 s"):
        await overdue
    assert await wire.ended == "the server did not answer within 0.2 s"
    # Its reply was on the way: it was read before those of the others could be mistaken for it.
    assert await first is None
    with pytest.raises(RedisLost, match=r"did not answer within 0\.2 s"):
        await later
    with pytest.raises(RedisLost, match=r"did not answer within 0\.2 s"):
        await wire.command("PING")
