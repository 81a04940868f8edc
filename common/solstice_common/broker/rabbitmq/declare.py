"""Declares exchanges, queues and bindings on a RabbitMQ connection."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiormq.exceptions import ChannelLockedResource, ChannelNotFoundEntity, ChannelPreconditionFailed

from solstice_common.broker.protocol import QueueDepth
from solstice_common.broker.rabbitmq.link_errors import (
    TO_BIND,
    TO_DECLARE,
    TO_DECLARE_EXCHANGE,
    AccessRefused,
    describe,
    link_errors,
)
from solstice_common.broker.rabbitmq.wire import CLOSE_SECONDS, RPC_SECONDS, Wire, WireChannel
from solstice_common.errors import TopologyMismatch
from solstice_common.topology import Binding, Exchange, Queue, Topology


class IgnoringUser:
    """The user of a channel that carries no messages."""

    def delivered(self, frame: object, properties: object, body: bytes) -> None: ...

    def returned(self, frame: object, properties: object) -> None: ...

    def confirmed(self, frame: object) -> None: ...


async def declare(wire: Wire, topology: Topology) -> None:
    """Make sure everything exists, on a separate channel.

    A user who may not declare passes where everything exists; its arguments and bindings are not compared then.

    Raises TopologyMismatch when an object exists with other properties, AccessRefused when one is missing and the user
    may not declare it, LinkLost when the broker does not answer.
    """
    declaration = _Declaration(wire)
    try:
        for exchange in topology.exchanges:
            await declaration.ensure(exchange)
        for queue in topology.queues:
            await declaration.ensure(queue)
        for binding in topology.bindings:
            await declaration.bind(binding)
    finally:
        await declaration.close()


class _Declaration:
    """One run over a topology.

    Once the broker has refused a declaration, each further object is looked for first: a refusal closes the channel,
    and the server logs it as an error.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._channel: WireChannel | None = None
        self._is_refused = False
        self._made: set[str] = set()

    async def ensure(self, target: Exchange | Queue) -> None:
        if self._is_refused and await self._exists(target):
            return
        try:
            await self._declare(target)
        except AccessRefused:
            if self._is_refused or not await self._exists(target):
                raise
            self._is_refused = True
        else:
            self._made.add(target.name)

    async def bind(self, binding: Binding) -> None:
        """Bind, unless the user may not declare: the admin has done it then."""
        if binding.queue not in self._made and self._is_refused:
            return
        channel = await self._open()
        with link_errors(TO_BIND):
            await channel.calls.queue_bind(
                binding.queue, binding.exchange, binding.routing_key, timeout=RPC_SECONDS
            )

    async def close(self) -> None:
        if self._channel is not None:
            await close_channel(self._channel)

    async def _open(self) -> WireChannel:
        """Return the channel, opened again after a refusal."""
        if self._channel is None or self._channel.ended.done():
            self._channel = await self._wire.open_channel(IgnoringUser())
        return self._channel

    async def _declare(self, target: Exchange | Queue) -> None:
        channel = await self._open()
        if isinstance(target, Exchange):
            await _declare_exchange(channel, target)
        else:
            await _declare_queue(channel, target)

    async def _exists(self, target: Exchange | Queue) -> bool:
        calls = (await self._open()).calls
        declare_passively = calls.exchange_declare if isinstance(target, Exchange) else calls.queue_declare
        with link_errors():
            try:
                await declare_passively(target.name, passive=True, timeout=RPC_SECONDS)
            except ChannelNotFoundEntity:
                return False
        return True


async def depth(wire: Wire, queue: str) -> QueueDepth | None:
    """Return how many messages wait; None when there is no such queue."""
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
    with link_errors(TO_DECLARE_EXCHANGE):
        try:
            await channel.calls.exchange_declare(
                exchange.name, exchange_type=exchange.kind, durable=True, timeout=RPC_SECONDS
            )
        except ChannelPreconditionFailed as refused:
            raise TopologyMismatch("exchange", exchange.name, declared, describe(refused)) from None


async def _declare_queue(channel: WireChannel, queue: Queue) -> None:
    arguments = dict(queue.arguments)
    with link_errors(TO_DECLARE):
        try:
            await channel.calls.queue_declare(
                queue.name, durable=True, arguments=dict(arguments), timeout=RPC_SECONDS
            )
        except (ChannelPreconditionFailed, ChannelLockedResource) as refused:
            declared = {"durable": True, **arguments}
            raise TopologyMismatch("queue", queue.name, declared, describe(refused)) from None
