"""The relay publishes pending requests in the order they were stored, with confirms.

It publishes in groups, and a request stays pending until the broker has confirmed it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from solstice_common.broker.forwarder import Forwarder, reason_of
from solstice_common.broker.protocol import Broker, Message, Published
from solstice_common.topology import Route, Topology
from solstice_forge.inbox.protocol import Inbox, PendingRequest
from solstice_forge.log_events import LogEvent
from solstice_forge.metrics import Metrics
from solstice_forge.relay.publication import publication
from solstice_forge.relay.request_trace_backlog import PublishClock

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 30.0
"""The longest wait between two polls, in case a notification was lost."""


def split(
    group: Sequence[PendingRequest], outcomes: Sequence[Published]
) -> tuple[list[PendingRequest], list[tuple[PendingRequest, Published]]]:
    """Return the confirmed and the unconfirmed rows of the group, each in order."""
    pairs = list(zip(group, outcomes, strict=True))
    return (
        [one for one, outcome in pairs if outcome.confirmed],
        [(one, outcome) for one, outcome in pairs if not outcome.confirmed],
    )


class Relay(Forwarder[PendingRequest]):
    """The publisher of what the inbox stores; `/readyz` shows its `problem`."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        broker: Broker,
        route: Route,
        topology: Topology,
        metrics: Metrics,
        rng: random.Random,
        publish_clock: PublishClock | None = None,
    ) -> None:
        """`publish_clock` notes when traced requests are published; None while none are."""
        super().__init__(
            _PendingRequests(inbox=inbox, route=route, metrics=metrics, publish_clock=publish_clock),
            noun="request",
            broker=broker,
            topology=topology,
            rng=rng,
            poll_seconds=POLL_SECONDS,
            # A problem with the broker should be known before the first webhook.
            declare_early=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingRequests:
    """A Backlog of the inbox's pending requests."""

    inbox: Inbox
    route: Route
    metrics: Metrics
    publish_clock: PublishClock | None

    @asynccontextmanager
    async def lead(self) -> AsyncIterator[asyncio.Event]:
        async with self.inbox.relaying(), self.inbox.changes() as changed:
            yield changed

    async def next_group(self, limit: int) -> Sequence[PendingRequest]:
        return await self.inbox.pending(limit)

    def message_of(self, row: PendingRequest) -> Message:
        message = publication(row.request, self.route, attempt=row.attempts + 1)
        if self.publish_clock is not None:
            self.publish_clock.sending(row.row_id, message)
        return message

    def answered(self, group: Sequence[PendingRequest], outcomes: Sequence[Published]) -> Sequence[int]:
        for status, count in Counter(outcome.status for outcome in outcomes).items():
            self.metrics.published(status, count)
        confirmed, _ = split(group, outcomes)
        if self.publish_clock is not None:
            self.publish_clock.confirmed(confirmed)
        if confirmed:
            log.info(
                LogEvent.RELAY_PUBLISHED,
                count=len(confirmed),
                request_ids=[one.request_id for one in confirmed],
            )
        return [one.row_id for one in confirmed]

    async def mark(self, row_ids: Sequence[int]) -> None:
        if self.publish_clock is None:
            await self.inbox.published(row_ids)
            return
        await self.inbox.published(row_ids, self.publish_clock.times(row_ids))
        self.publish_clock.recorded(row_ids)

    async def ended(
        self,
        group: Sequence[PendingRequest],  # noqa: ARG002  Backlog's
        failed: Sequence[tuple[PendingRequest, Published]],
    ) -> None:
        """Leave failed requests pending: the broker may route or take them later."""
        if not failed:
            return
        first = failed[0][1]
        log.warning(
            LogEvent.RELAY_NOT_PUBLISHED,
            count=len(failed),
            status=first.status.value,
            detail=first.detail,
            request_ids=[one.request_id for one, _ in failed],
        )
        await self.inbox.not_published([one.row_id for one, _ in failed], reason_of(first))

    def interrupted(self, detail: str) -> None:
        log.warning(LogEvent.RELAY_PAUSED, detail=detail)

    def resumed(self, paused_seconds: float) -> None:
        log.info(LogEvent.RELAY_RESUMED, paused_seconds=paused_seconds)
