"""Reads what is declared on a Redis server."""

import json
from collections.abc import Sequence

from redis.exceptions import ResponseError

from solstice_common.broker.redis_streams.redis_replies import pairs
from solstice_common.broker.redis_streams.redis_url import redis_address
from solstice_common.broker.redis_streams.redis_wire import RedisDenied, RedisLost, RedisWire, open_redis_wire
from solstice_common.broker.topology_check import (
    DECLARE,
    FoundExchange,
    FoundQueue,
    FoundTopology,
    TopologyDifference,
)
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
            found = {name: await _stream(wire, address.prefix + name, name) for name in named}
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
        queues={
            name: FoundQueue(arguments=json.loads(rows[f"q:{name}"]))
            for name, drifts in found.items()
            if drifts is not None
        },
        bindings=frozenset(
            Binding(exchange=exchange, queue=queue, routing_key=key)
            for field, queues in rows.items()
            if field.startswith("b:")
            for exchange, _, key in [field.removeprefix("b:").partition("\0")]
            for queue in json.loads(queues)
        ),
        drifts=tuple(drift for drifts in found.values() for drift in drifts or ()),
    )


async def _stream(wire: RedisWire, key: str, queue: str) -> Sequence[TopologyDifference] | None:
    """Return what is wrong with a queue's key; None when there is none."""
    kind = (await wire.command("TYPE", key)).decode()
    if kind == "none":
        return None
    label, left = f"queue {queue}", await wire.command("PTTL", key)
    drifts = []
    if kind != "stream":
        drifts.append(
            TopologyDifference(
                object=label,
                difference=f"its key holds a {kind}, has to hold a stream: publishing to it fails",
                remedy=f"rename the key, then: {DECLARE}",
            )
        )
    if left >= 0:
        drifts.append(
            TopologyDifference(
                object=label,
                difference=f"its key expires in {left / 1000:.0f} s: the queue and all in it vanish then",
                remedy=f"redis-cli PERSIST {key}",
            )
        )
    return drifts
