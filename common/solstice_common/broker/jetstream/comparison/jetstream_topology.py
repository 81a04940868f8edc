"""Reads what is declared on a JetStream server."""

import json

from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from solstice_common.broker.jetstream.comparison.jetstream_drifts import (
    bucket_drifts,
    consumer_drifts,
    stream_drifts,
    subject_drift,
)
from solstice_common.broker.jetstream.jetstream_names import DURABLE, TOPOLOGY_BUCKET, stream_of
from solstice_common.broker.jetstream.jetstream_streams import (
    ARGUMENTS_KEY,
    find_stream,
    read_routes,
    require_jetstream,
)
from solstice_common.broker.jetstream.nats_address import read_address
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsLost, open_connection
from solstice_common.broker.topology_check import FoundExchange, FoundQueue, FoundTopology, TopologyDifference
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Binding, Queue, Topology


async def found_topology(url: str, topology: Topology) -> FoundTopology:
    """The objects of a topology that exist on the server of `url`, and their differences.

    Raises ConfigurationError for a wrong URL, BrokerUnavailable, and TopologyMismatch when the bindings are unreadable.
    """
    address = read_address(url)
    try:
        async with open_connection(address, "solstice topology") as opened:
            await require_jetstream(opened)
            routes = await read_routes(opened)
            queues: dict[str, FoundQueue] = {}
            drifts: list[TopologyDifference] = []
            for queue in topology.queues:
                found, differing = await _queue(opened, queue)
                drifts += differing
                if found is not None:
                    queues[queue.name] = found
            drifts += await _bucket(opened)
    except NatsLost as lost:
        raise lost.at(address.shown) from None
    except APIError as refused:
        raise BrokerUnavailable(address.shown, f"JetStream refused: {refused.description}") from None
    return FoundTopology(
        exchanges={name: FoundExchange(kind=kind) for name, kind in routes.exchanges.items()},
        queues=queues,
        bindings=frozenset(
            Binding(exchange=exchange, queue=queue_name, routing_key=key)
            for exchange, key, queue_name in routes.bindings
        ),
        drifts=tuple(drifts),
    )


async def _queue(
    connection: NatsConnection, queue: Queue
) -> tuple[FoundQueue | None, list[TopologyDifference]]:
    stream = await find_stream(connection, queue.name)
    if stream is None:
        try:
            taken_by = await connection.call(connection.jetstream.find_stream_name_by_subject(queue.name))
        except NotFoundError:
            return None, []
        return None, [subject_drift(queue, taken_by)]
    consumers = await _consumers(connection, stream_of(queue.name))
    stored = (stream.config.metadata or {}).get(ARGUMENTS_KEY)
    try:
        # A stream that an operator made has no arguments, and needs none.
        arguments = queue.arguments if stored is None else json.loads(stored)
    except ValueError:
        arguments = {ARGUMENTS_KEY: stored}
    return FoundQueue(arguments=arguments), [
        *stream_drifts(queue, stream.config),
        *consumer_drifts(queue, consumers),
    ]


async def _consumers(connection: NatsConnection, stream: str) -> list[ConsumerConfig]:
    """Return every consumer of a stream; the server returns 256 at a time."""
    found: list[ConsumerConfig] = []
    while page := await connection.call(connection.jetstream.consumers_info(stream, offset=len(found))):
        found += [each.config for each in page]
    return sorted(found, key=lambda each: (each.durable_name or each.name or "") != DURABLE)


async def _bucket(connection: NatsConnection) -> list[TopologyDifference]:
    try:
        found = await connection.call(connection.jetstream.stream_info(f"KV_{TOPOLOGY_BUCKET}"))
    except NotFoundError:
        return []
    return list(bucket_drifts(found.config))
