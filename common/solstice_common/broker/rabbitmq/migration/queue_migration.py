"""Carries out a queue's migration on RabbitMQ, over one connection that holds its lock."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from aiormq.exceptions import AMQPError, ChannelLockedResource

from solstice_common.broker.protocol import QueueDepth
from solstice_common.broker.rabbitmq.management_api import found_topology, messages_in
from solstice_common.broker.rabbitmq.migration.migration_plan import (
    QueueMigration,
    Step,
    StepKind,
    plan,
    refusals,
)
from solstice_common.broker.rabbitmq.tools.dead_letter_messages import unchanged_copy
from solstice_common.broker.rabbitmq.tools.dead_letter_reader import DeadLetterReader
from solstice_common.broker.rabbitmq.tools.tool_connection import ToolConnection, reported, tool_connection
from solstice_common.broker.rabbitmq.wire import RPC_SECONDS
from solstice_common.broker.topology_check import FoundTopology, TopologyDifference
from solstice_common.errors import BrokerError, ConfigurationError
from solstice_common.topology import Queue

NAME: Final = "solstice topology migrate"
PREFETCH: Final = 200
IDLE_SECONDS: Final = 0.5
UNBOUND_SECONDS: Final = 2.0
"""Messages that were routed just before an unbinding have arrived by then."""
UNKNOWN_COUNTS_SECONDS: Final = 60.0
TRIES: Final = 5
"""Plans that one run makes: services may declare the old queue again in between."""


class Observer(Protocol):
    """A callback for a migration, called before each of its steps."""

    def step(self, step: Step) -> None: ...

    def moved(self, step: Step, count: int) -> None: ...

    def waiting(self, step: Step, count: int | None) -> None:
        """Consumers hold this number of messages of the queue; None while it is unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationResult:
    """The steps that a migration has done, and the messages that it moved."""

    steps: tuple[Step, ...]
    moved: int
    """How many messages were moved; one that was moved there and back counts twice."""
    consumers_left: int = 0
    """Consumers of the old queue, which stays until services use the new name; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """What a migration would do, or why it cannot."""

    steps: tuple[Step, ...]
    refusals: tuple[TopologyDifference, ...]
    found: FoundTopology


class _Changed(Exception):
    """The broker is no longer as the plan found it."""


async def planned(url: str, migration: QueueMigration, *, management_url: str | None) -> MigrationPlan:
    """Read the broker's state and plan from it; changes nothing. Raises as `found_topology` does."""
    found = await found_topology(url, migration.topology, management_url=management_url)
    reasons = refusals(migration, found)
    return MigrationPlan(steps=() if reasons else plan(migration, found), refusals=reasons, found=found)


async def migrate(
    url: str,
    migration: QueueMigration,
    *,
    management_url: str | None,
    counts_lag_seconds: float,
    observer: Observer,
) -> MigrationResult:
    """Do the remaining steps of a migration. After an interruption, the next call continues.

    The management API's counts of messages are at most `counts_lag_seconds` old. Raises ConfigurationError
    for a refused migration, BrokerUnavailable, and BrokerError while another process migrates the same queue.
    """
    async with tool_connection(url, NAME) as (connection, shown):
        work = _Work(
            connection,
            migration,
            observer,
            url=url,
            shown=shown,
            management_url=management_url,
            counts_lag_seconds=counts_lag_seconds,
        )
        async with work.locked():
            return await work.run()


class _Work:
    def __init__(
        self,
        connection: ToolConnection,
        migration: QueueMigration,
        observer: Observer,
        *,
        url: str,
        shown: str,
        management_url: str | None,
        counts_lag_seconds: float,
    ) -> None:
        self._connection = connection
        self._url = url
        self._shown = shown
        self._migration = migration
        self._management_url = management_url
        self._counts_lag_seconds = counts_lag_seconds
        self._observer = observer
        self._moved = 0
        self._done: list[Step] = []

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the exclusive queue that locks this migration; the broker deletes it with the connection."""
        name = self._migration.lock_name
        with reported(self._shown):
            channel = await self._connection.channel()
            try:
                await channel.declare_queue(name, exclusive=True, auto_delete=True, timeout=RPC_SECONDS)
            except ChannelLockedResource:
                raise BrokerError(
                    f"another 'solstice topology migrate' works on {self._migration.source}: wait for its end; "
                    "of a process that died without closing its connection, the broker takes note within a minute"
                ) from None
        yield

    async def run(self) -> MigrationResult:
        for _ in range(TRIES):
            now = await planned(self._url, self._migration, management_url=self._management_url)
            if now.refusals:
                raise ConfigurationError("; ".join(f"{e.object} {e.difference}" for e in now.refusals))
            if not now.steps:
                return MigrationResult(steps=tuple(self._done), moved=self._moved)
            try:
                for step in now.steps:
                    self._observer.step(step)
                    left = await self._do(step)
                    if left:
                        return MigrationResult(
                            steps=tuple(self._done), moved=self._moved, consumers_left=left
                        )
                    self._done.append(step)
            except _Changed:
                continue
        raise BrokerError(
            f"queue {self._migration.source} changes while it is migrated (a service declares it again and again): "
            "nothing is lost; run this again"
        )

    async def _do(self, step: Step) -> int:
        """Do a step; return how many consumers forbid it."""
        with reported(self._shown):
            channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            with reported(self._shown):
                match step.kind:
                    case StepKind.DECLARE:
                        await _declare(channel, step.queue)
                    case StepKind.BIND:
                        await self._bound(channel, step.queue, bind=True)
                    case StepKind.UNBIND:
                        await self._bound(channel, step.queue, bind=False)
                    case StepKind.DELETE:
                        return await self._delete(channel, step.queue)
            if step.kind is StepKind.EMPTY:
                await self._move(channel, step, lambda began: self._is_unused(channel, step, began))
            elif step.kind is StepKind.MOVE:
                await self._move(channel, step, _after_a_moment)
        finally:
            with contextlib.suppress(AMQPError, OSError, RuntimeError):
                await channel.close()
        return 0

    async def _bound(self, channel: AbstractChannel, queue: Queue, *, bind: bool) -> None:
        there = await channel.get_queue(queue.name, ensure=False)
        change = there.bind if bind else there.unbind
        try:
            await change(self._migration.exchange.name, self._migration.routing_key, timeout=RPC_SECONDS)
        except ChannelNotFoundEntity:
            raise _Changed from None

    async def _move(
        self, channel: AbstractChannel, step: Step, ended: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Move messages until none is ready and `ended` says so.

        Each is removed once its copy is confirmed.
        """
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        source, target = (
            DeadLetterReader(self._connection, channel, self._shown, name)
            for name in (step.queue.name, step.into)
        )
        with reported(self._shown):
            await channel.set_qos(prefetch_count=PREFETCH, timeout=RPC_SECONDS)
            queue = await channel.get_queue(step.queue.name, ensure=False)
            try:
                tag = await queue.consume(arrived.put, timeout=RPC_SECONDS)
            except ChannelNotFoundEntity:
                raise _Changed from None
        began = time.monotonic()
        while True:
            group = await _next_group(arrived)
            if group:
                await self._copy(target, step, group)
                continue
            ready = await source.ready()
            if ready is None:
                raise _Changed
            if ready == 0 and await ended(began) and arrived.empty():
                break
        with reported(self._shown):
            await queue.cancel(tag, timeout=RPC_SECONDS)
        # Messages that were delivered before the cancel: they stay in the queue.
        if not arrived.empty():
            raise _Changed

    async def _copy(
        self, target: DeadLetterReader, step: Step, group: Sequence[AbstractIncomingMessage]
    ) -> None:
        for part in _with_different_ids(group):
            outcomes = await target.publish(
                [unchanged_copy(message.properties, message.body) for message in part]
            )
            for outcome in outcomes:
                if not outcome.confirmed:
                    raise BrokerError(
                        f"queue {step.into} did not take a message ({outcome.status}: {outcome.detail}): it stays in "
                        f"{step.queue.name}; when there is room, run this again"
                    )
        with reported(self._shown):
            # `multiple` acks all of them and all earlier ones: only this consumer uses the channel.
            await group[-1].ack(multiple=True)
        self._moved += len(group)
        self._observer.moved(step, self._moved)

    async def _is_unused(self, channel: AbstractChannel, step: Step, began: float) -> bool:
        """Whether neither the queue nor its consumers hold a message.

        The queue gets no new message that the other queue does not get as well, so a count of a moment ago is
        still valid.
        """
        with reported(self._shown):
            # A service that reconnected has bound it again.
            await self._bound(channel, step.queue, bind=False)
        waited = time.monotonic() - began
        count = await messages_in(self._url, step.queue.name, management_url=self._management_url)
        if count is None and waited > self._counts_lag_seconds + UNKNOWN_COUNTS_SECONDS:
            raise ConfigurationError(
                f"the management API shows no number of messages of {step.queue.name}: let it collect statistics "
                "(management_agent.disable_metrics_collector = false), and run this again"
            )
        self._observer.waiting(step, count)
        return waited >= self._counts_lag_seconds and count == 0

    async def _delete(self, channel: AbstractChannel, queue: Queue) -> int:
        """Delete a queue; return how many consumers forbid that."""
        depth = await _depth(channel, queue.name)
        if depth is None:
            return 0
        if depth.ready:
            raise _Changed
        is_interim = queue.name == self._migration.interim_name
        if depth.consumers and is_interim:
            raise BrokerError(
                f"queue {queue.name} has a consumer that is not ours: end it, and run this again"
            )
        if depth.consumers and not self._migration.in_place:
            return depth.consumers
        classic = queue.arguments.get("x-queue-type", "classic") == "classic"
        try:
            # Quorum queues know neither condition (540 NOT_IMPLEMENTED closes the connection).
            await channel.queue_delete(
                queue.name, if_empty=classic, if_unused=classic and is_interim, timeout=RPC_SECONDS
            )
        except ChannelPreconditionFailed:
            raise _Changed from None
        return 0


async def _declare(channel: AbstractChannel, queue: Queue) -> None:
    try:
        await channel.declare_queue(
            queue.name, durable=True, arguments=dict(queue.arguments), timeout=RPC_SECONDS
        )
    except ChannelPreconditionFailed:
        # A service declared it first, with its own arguments.
        raise _Changed from None


async def _depth(channel: AbstractChannel, name: str) -> QueueDepth | None:
    try:
        found = await channel.declare_queue(name, passive=True, timeout=RPC_SECONDS)
    except ChannelNotFoundEntity:
        return None
    counts = found.declaration_result
    return QueueDepth(ready=counts.message_count or 0, consumers=counts.consumer_count or 0)


async def _after_a_moment(began: float) -> bool:
    return time.monotonic() - began >= UNBOUND_SECONDS


async def _next_group(arrived: "asyncio.Queue[AbstractIncomingMessage]") -> list[AbstractIncomingMessage]:
    """Return the arrived messages, in the queue's order; empty when none arrives for a moment."""
    group: list[AbstractIncomingMessage] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(IDLE_SECONDS):
            group.append(await arrived.get())
    while not arrived.empty() and len(group) < PREFETCH:
        group.append(arrived.get_nowait())
    return sorted(group, key=lambda message: message.delivery_tag or 0)


def _with_different_ids(group: Sequence[AbstractIncomingMessage]) -> list[list[AbstractIncomingMessage]]:
    """The messages in parts without a repeated id: aiormq identifies returned messages by their id."""
    parts: list[list[AbstractIncomingMessage]] = []
    times: dict[str, int] = {}
    for message in group:
        occurrence = 0
        if message.message_id is not None:
            occurrence = times.get(message.message_id, 0)
            times[message.message_id] = occurrence + 1
        if occurrence == len(parts):
            parts.append([])
        parts[occurrence].append(message)
    return parts
