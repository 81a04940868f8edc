"""Declares exchanges, queues and bindings on a RabbitMQ connection."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from solstice_common.broker.protocol import QueueDepth
from solstice_common.broker.rabbitmq.wire import (
    CLOSE_SECONDS,
    RPC_SECONDS,
    LinkLost,
    Wire,
    WireChannel,
    describe,
    link_errors,
)
from solstice_common.errors import TopologyMismatch
from solstice_common.topology import Exchange, Queue, Topology


class IgnoringUser:
    """The user of a channel that carries no messages."""

    def delivered(self, frame: object, properties: object, body: bytes) -> None: ...

    def returned(self, frame: object, properties: object) -> None: ...

    def confirmed(self, frame: object) -> None: ...


async def declare(wire: Wire, topology: Topology) -> None:
    """Make sure everything exists, on a separate channel, which a refusal closes.

    Raises TopologyMismatch when an object exists with other properties, LinkLost when the broker does not answer or
    does not allow it.
    """
    channel = await wire.open_channel(IgnoringUser())
    try:
        for exchange in topology.exchanges:
            await _declare_exchange(channel, exchange)
        for queue in topology.queues:
            await _declare_queue(channel, queue)
        for binding in topology.bindings:
            with link_errors():
                await channel.calls.queue_bind(
                    binding.queue, binding.exchange, binding.routing_key, timeout=RPC_SECONDS
                )
    finally:
        await close_channel(channel)


async def depth(wire: Wire, queue: str) -> QueueDepth | None:
    """How many messages wait; None when there is no such queue."""
    channel = await wire.open_channel(IgnoringUser())
    try:
        with link_errors():
            try:
                found = await channel.calls.queue_declare(queue, passive=True, timeout=RPC_SECONDS)
            except ChannelNotFoundEntity:
                return None
        return QueueDepth(ready=found.message_count or 0, consumers=found.consumer_count or 0)
    finally:
        await close_channel(channel)


async def close_channel(channel: WireChannel) -> None:
    """Close the channel, as far as possible; never raises because of the broker."""
    if channel.ended.done():
        return
    closing = asyncio.ensure_future(channel.calls.close())
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not closing.done():
        closing.cancel()
    elif not closing.cancelled():
        closing.exception()


async def _declare_exchange(channel: WireChannel, exchange: Exchange) -> None:
    declared: Mapping[str, Any] = {"type": exchange.kind, "durable": True}
    with link_errors():
        try:
            await channel.calls.exchange_declare(
                exchange.name, exchange_type=exchange.kind, durable=True, timeout=RPC_SECONDS
            )
        except ChannelPreconditionFailed as refused:
            raise TopologyMismatch("exchange", exchange.name, declared, describe(refused)) from None
        except ChannelAccessRefused as refused:
            raise LinkLost(describe(refused)) from None


async def _declare_queue(channel: WireChannel, queue: Queue) -> None:
    arguments = dict(queue.arguments)
    with link_errors():
        try:
            await channel.calls.queue_declare(
                queue.name, durable=True, arguments=dict(arguments), timeout=RPC_SECONDS
            )
        except (ChannelPreconditionFailed, ChannelLockedResource) as refused:
            declared = {"durable": True, **arguments}
            raise TopologyMismatch("queue", queue.name, declared, describe(refused)) from None
