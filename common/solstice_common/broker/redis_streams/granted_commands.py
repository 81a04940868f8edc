"""Tells which commands a user of Redis may run on which keys.

ACL DRYRUN answers that, and runs none of them. Source: redis.io/docs/latest/commands/acl-dryrun (Redis 7.0, Valkey).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from redis.exceptions import ResponseError

from solstice_common.broker.redis_streams.redis_url import redis_address
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, RedisWire, open_redis_wire
from solstice_common.errors import ConfigurationError

KEY: Final = "KEY"
ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bzpopmin": "KEY 1",
        "client|setname": "name",
        "config|get": "appendonly",
        "evalsha": "sha 0",
        "hexists": "KEY field",
        "hget": "KEY field",
        "hgetall": "KEY",
        "hset": "KEY field value",
        "info": "",
        "pexpire": "KEY 1",
        "ping": "",
        "pttl": "KEY",
        "sadd": "KEY member",
        "script|load": "script",
        "sismember": "KEY member",
        "time": "",
        "type": "KEY",
        "xack": "KEY group 1-1",
        "xadd": "KEY * field value",
        "xclaim": "KEY group consumer 0 1-1",
        "xdel": "KEY 1-1",
        "xgroup|create": "KEY group $",
        "xgroup|delconsumer": "KEY group consumer",
        "xinfo|consumers": "KEY group",
        "xinfo|groups": "KEY",
        "xinfo|stream": "KEY",
        "xlen": "KEY",
        "xpending": "KEY group",
        "xrange": "KEY - +",
        "xreadgroup": "GROUP group consumer STREAMS KEY >",
        "zadd": "KEY 1 member",
        "zcount": "KEY 0 1",
        "zrange": "KEY 0 1",
        "zrangebyscore": "KEY 0 1",
        "zrem": "KEY member",
        "zscore": "KEY member",
    }
)
"""As many arguments as the command needs: the server finds its key by them."""


async def granted_rights(
    url: str, rights: Collection[tuple[str, str]], *, user: str
) -> frozenset[tuple[str, str]]:
    """Return those of the commands with their keys that a user may run.

    Raises ConfigurationError for a wrong URL, a user that does not exist, and Redis 6.2, BrokerUnavailable, and
    RightMissing when the URL's own user may not ask (`+acl|dryrun`).
    """
    address = redis_address(url)
    try:
        async with open_redis_wire(address, "rights") as wire:
            # The server answers in order; one round trip serves all.
            ordered = sorted(rights)
            answers = await asyncio.gather(*(_may(wire, user, each, address.prefix) for each in ordered))
    except (RedisLost, RedisDenied) as error:
        raise error.at(address.shown) from None
    except ResponseError as error:
        raise ConfigurationError(
            f"the rights of {user!r} on {address.shown}, which Redis tells since 7.0: {error}"
        ) from None
    return frozenset(right for right, may in zip(ordered, answers, strict=True) if may)


async def _may(wire: RedisWire, user: str, right: tuple[str, str], prefix: str) -> bool:
    answer = await wire.command("ACL", "DRYRUN", user, *_words(*right, prefix=prefix))
    return bool(answer == b"OK")


def _words(command: str, key: str, *, prefix: str) -> Sequence[str]:
    """Return the command as a client sends it, on one key of a pattern."""
    named = prefix + key.replace("*", "0")
    return [*command.split("|"), *(named if word == KEY else word for word in ARGUMENTS[command].split())]
