"""Publish the outbox in order and in batches, and keep messages until they are confirmed."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_common.broker.forwarder import Forwarder
from solstice_common.broker.protocol import Broker, HeaderValue, Message, Published
from solstice_common.messages import JobRequestV1, JobStatusV1, Priority
from solstice_common.messages.priorities import PRIORITY_NUMBERS, class_in
from solstice_common.topology import STATUSES, Route, Topology
from solstice_orchestrator.log_events import LogEvent
from solstice_orchestrator.metrics import Metrics
from solstice_orchestrator.store.protocol import JobStore, OutboxKind, OutboxMessage
from solstice_orchestrator.store.records.topics import StoreTopic

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 5.0
"""For when a notification was lost, or the orchestrator that published so far is gone."""
LINGER_SECONDS: Final = 0.025
"""How long a status may wait for others. A push writes four within some 20 ms, and every group takes two writes of the
store, a publish and an ack."""


def message_of(message: OutboxMessage, jobs: Route) -> Message:
    """Return the broker message of an outbox entry.

    A status goes to the exchange of statuses, a dead letter to that of the jobs or of its request's class, with its
    history in the headers.
    """
    if message.kind is OutboxKind.STATUS:
        route, exchange, version, number = STATUSES, STATUSES.exchange, JobStatusV1.VERSION, None
    else:
        priority = class_in(message.body) or Priority.DEFAULT
        route, version, number = jobs.of(priority), JobRequestV1.VERSION, PRIORITY_NUMBERS[priority]
        exchange = route.dlx
    headers: Mapping[str, HeaderValue] = dict(message.headers)
    return Message(
        exchange=exchange,
        routing_key=route.routing_key,
        body=message.body,
        type=version,
        correlation_id=message.request_id,
        headers=headers,
        priority=number,
    )


def numbers_done(messages: Sequence[OutboxMessage], outcomes: Sequence[Published]) -> list[int]:
    """Return the numbers of messages that need not be published again.

    Those are confirmed, and so is every earlier message of the same request here. A message that was confirmed behind a
    gap is published again after the gap, so that the last status of a run is its newest.
    """
    done: list[int] = []
    behind_a_gap: set[str] = set()
    for message, outcome in zip(messages, outcomes, strict=True):
        if not outcome.confirmed:
            behind_a_gap.add(message.request_id)
        elif message.request_id not in behind_a_gap:
            done.append(message.number)
    return done


class OutboxRelay(Forwarder[OutboxMessage]):
    """Publishes the outbox of the store."""

    def __init__(
        self,
        *,
        store: JobStore,
        broker: Broker,
        jobs: Route,
        topology: Topology,
        metrics: Metrics,
        rng: random.Random,
    ) -> None:
        super().__init__(
            _OutboxBacklog(store=store, jobs=jobs, metrics=metrics),
            noun="status",
            broker=broker,
            topology=topology,
            rng=rng,
            poll_seconds=POLL_SECONDS,
            linger_seconds=LINGER_SECONDS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutboxBacklog:
    """A Backlog of the forwarder: the statuses and dead letters that are not published yet."""

    store: JobStore
    jobs: Route
    metrics: Metrics

    def lead(self) -> AbstractAsyncContextManager[asyncio.Event]:
        # The store decides with every batch which of several orchestrators publishes it.
        return self.store.changes(StoreTopic.OUTBOX)

    async def next_group(self, limit: int) -> Sequence[OutboxMessage]:
        return await self.store.outbox(limit)

    def message_of(self, message: OutboxMessage) -> Message:
        return message_of(message, self.jobs)

    def answered(self, group: Sequence[OutboxMessage], outcomes: Sequence[Published]) -> Sequence[int]:
        for outcome in outcomes:
            self.metrics.outbox_published(outcome.status)
        for message, outcome in zip(group, outcomes, strict=True):
            if message.kind is OutboxKind.DEAD_LETTER and outcome.confirmed:
                self.metrics.request_dead(class_in(message.body) or Priority.DEFAULT)
        return numbers_done(group, outcomes)

    async def mark(self, numbers: Sequence[int]) -> None:
        await self.store.published(numbers)

    async def ended(
        self, group: Sequence[OutboxMessage], failed: Sequence[tuple[OutboxMessage, Published]]
    ) -> None:
        if failed:
            first = failed[0][1]
            log.warning(
                LogEvent.OUTBOX_NOT_PUBLISHED,
                count=len(failed),
                status=first.status.value,
                detail=first.detail,
            )
        else:
            log.debug(
                LogEvent.OUTBOX_PUBLISHED,
                count=len(group),
                dead_letters=sum(message.kind is OutboxKind.DEAD_LETTER for message in group),
            )

    def interrupted(self, detail: str) -> None:
        log.warning(LogEvent.OUTBOX_PAUSED, detail=detail)

    def resumed(self, paused_seconds: float) -> None:
        log.info(LogEvent.OUTBOX_RESUMED, paused_seconds=paused_seconds)
