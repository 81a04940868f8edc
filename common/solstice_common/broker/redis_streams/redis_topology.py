"""Reads what is declared on a Redis server."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from solstice_common.broker.redis_streams.redis_durability import evicts_queues
from solstice_common.broker.redis_streams.redis_replies import info, pairs
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

GROUP: Final = "solstice"
EntryId = tuple[int, int]


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
            found = {name: await _queue_drifts(wire, address.prefix + name, name) for name in named}
            of_server = _server_drifts(info(await wire.command("INFO", "memory")))
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
        drifts=(*of_server, *(drift for drifts in found.values() for drift in drifts or ())),
    )


def _server_drifts(memory: Mapping[str, str]) -> Iterator[TopologyDifference]:
    policy, limit = memory.get("maxmemory_policy", ""), memory.get("maxmemory", "0")
    if evicts_queues(policy):
        at = f"at {limit} bytes (maxmemory)" if limit != "0" else "once there is a maxmemory"
        yield TopologyDifference(
            object="server",
            difference=f"has maxmemory-policy {policy}: {at} it evicts queues with all in them, so services publish nothing",
            remedy="redis-cli CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        )


async def _queue_drifts(wire: RedisWire, key: str, queue: str) -> Sequence[TopologyDifference] | None:
    """Return what is wrong with a queue's key; None when there is none."""
    kind = (await wire.command("TYPE", key)).decode()
    if kind == "none":
        return None
    label, left = f"queue {queue}", await wire.command("PTTL", key)
    drifts = []
    if kind == "stream":
        drifts += [drift async for drift in _group_drifts(wire, key, label)]
    else:
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


async def _group_drifts(wire: RedisWire, key: str, label: str) -> AsyncIterator[TopologyDifference]:
    """Yield the differences of a stream's consumer groups."""
    stream = _fields(await wire.command("XINFO", "STREAM", key))
    groups = {
        each["name"].decode(): each for each in map(_fields, await wire.command("XINFO", "GROUPS", key))
    }
    for other in sorted(groups.keys() - {GROUP}):
        yield TopologyDifference(
            object=label,
            difference=f"has the consumer group {other!r}, which is not ours: its readers get copies of messages",
            remedy=f"redis-cli XGROUP DESTROY {key} {other}",
        )
    if GROUP not in groups:
        yield TopologyDifference(
            object=label, difference=f"has no consumer group {GROUP!r}: nothing is delivered", remedy=DECLARE
        )
        return
    delivered, oldest = _entry_id(groups[GROUP]["last-delivered-id"]), _oldest(stream)
    remedy = f"stop the services, then: redis-cli XGROUP SETID {key} {GROUP} 0"
    if delivered > _entry_id(stream["last-generated-id"]):
        yield TopologyDifference(
            object=label,
            difference=f"its group {GROUP!r} begins after messages that are still to come: they are not delivered",
            remedy=remedy,
        )
    pending, first_pending, *_ = await wire.command("XPENDING", key, GROUP)
    if oldest is None or oldest > delivered or (pending and oldest >= _entry_id(first_pending)):
        return
    # It may have been acked just before; then it is removed.
    if _oldest(_fields(await wire.command("XINFO", "STREAM", key))) == oldest:
        yield TopologyDifference(
            object=label,
            difference=f"its group {GROUP!r} began after messages that were waiting (the oldest is "
            f"{oldest[0]}-{oldest[1]}): they are not delivered",
            remedy=remedy,
        )


def _fields(reply: Sequence[Any]) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _oldest(stream: Mapping[str, Any]) -> EntryId | None:
    entry = stream["first-entry"]
    return None if entry is None else _entry_id(entry[0])


def _entry_id(text: bytes) -> EntryId:
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)
