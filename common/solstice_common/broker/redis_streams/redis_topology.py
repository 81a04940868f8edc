"""Reads what is declared on a Redis server."""

import json

from redis.exceptions import ResponseError

from solstice_common.broker.redis_streams.redis_replies import pairs
from solstice_common.broker.redis_streams.redis_url import redis_address
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, open_redis_wire
from solstice_common.broker.topology_check import FoundExchange, FoundQueue, FoundTopology
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Binding


async def found_topology(url: str) -> FoundTopology:
    """Return everything declared on the server of `url`.

    A queue whose stream was deleted does not exist. Raises ConfigurationError for a wrong URL,
    BrokerUnavailable.
    """
    address = redis_address(url)
    try:
        async with open_redis_wire(address, "topology") as wire:
            rows = pairs(await wire.command("HGETALL", f"{address.prefix}solstice:topology"))
            named = [field.removeprefix("q:") for field in rows if field.startswith("q:")]
            there = {name for name in named if await wire.command("EXISTS", address.prefix + name)}
    except (RedisLost, RedisDenied) as error:
        raise error.at(address.shown) from None
    except ResponseError as error:
        raise BrokerUnavailable(address.shown, str(error)) from None
    return FoundTopology(
        exchanges={
            field.removeprefix("x:"): FoundExchange(kind=kind)
            for field, kind in rows.items()
            if field.startswith("x:")
        },
        queues={name: FoundQueue(arguments=json.loads(rows[f"q:{name}"])) for name in there},
        bindings=frozenset(
            Binding(exchange=exchange, queue=queue, routing_key=key)
            for field, queues in rows.items()
            if field.startswith("b:")
            for exchange, _, key in [field.removeprefix("b:").partition("\0")]
            for queue in json.loads(queues)
        ),
    )
