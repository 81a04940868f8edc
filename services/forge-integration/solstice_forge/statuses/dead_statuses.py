"""Lists the dead letters of statuses without taking them, and sends them again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solstice_common.broker.delivery import Ack
from solstice_common.broker.headers import without_broker_headers
from solstice_common.broker.protocol import Broker, Consumer, Delivery, Message
from solstice_common.errors import InvalidMessage
from solstice_common.messages import JobStatusV1
from solstice_common.topology import STATUSES, Topology
from solstice_common.values import Value

CONNECT_SECONDS: Final = 10.0
ARRIVAL_SECONDS: Final = 5.0
"""A dead letter that has not come by then is with another reader of the queue."""
PREFETCH: Final = 200
_OURS: Final = "x-solstice-"


class DeadStatus(Value, frozen=True, kw_only=True):
    """One dead letter, for people; fields that cannot be read are empty."""

    reason: str
    detail: str
    refused_at: str
    attempts: int
    source_name: str
    repository: str
    commit_sha: str
    context: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How many were sent again, and how many the broker did not take.

    The latter stay where they are.
    """

    sent: int
    left: int


async def dead_statuses(broker: Broker, topology: Topology, limit: int) -> Sequence[DeadStatus]:
    """Return the oldest dead letters; all of them stay in the queue.

    Raises BrokerUnavailable, TopologyMismatch.
    """
    count = min(await _count(broker, topology, limit), PREFETCH)
    async with broker.consume(STATUSES.dlq, prefetch=max(1, count)) as consumer:
        return [dead_status(dead_letter) for dead_letter in await _arrived(consumer, count)]


async def replay(broker: Broker, topology: Topology, limit: int, *, reason: str | None = None) -> Replayed:
    """Publish the oldest dead letters again, and remove the published ones.

    `reason`: only those with this reason.
    """
    count = min(await _count(broker, topology, limit), PREFETCH)
    async with broker.consume(STATUSES.dlq, prefetch=max(1, count)) as consumer:
        dead_letters = [
            dead_letter
            for dead_letter in await _arrived(consumer, count)
            if reason is None or dead_letter.headers.get("x-solstice-reason") == reason
        ]
        outcomes = await broker.publish([status_message(dead_letter) for dead_letter in dead_letters])
        gone = [
            dead_letter
            for dead_letter, outcome in zip(dead_letters, outcomes, strict=True)
            if outcome.confirmed
        ]
        await consumer.settle([(dead_letter, Ack()) for dead_letter in gone])
        return Replayed(sent=len(gone), left=len(dead_letters) - len(gone))


def status_message(dead_letter: Delivery) -> Message:
    """Return the original status, without the dead letter's headers."""
    return Message(
        exchange=STATUSES.exchange,
        routing_key=STATUSES.routing_key,
        body=dead_letter.body,
        type=JobStatusV1.VERSION,
        correlation_id=dead_letter.correlation_id,
        headers={
            name: value
            for name, value in without_broker_headers(dead_letter.headers).items()
            if not name.startswith(_OURS) and isinstance(value, str | int | bool)
        },
    )


def dead_status(dead_letter: Delivery) -> DeadStatus:
    """Return the contents of a dead letter."""
    headers = dead_letter.headers
    attempt = headers.get("x-solstice-attempt")
    try:
        status = JobStatusV1.decode(dead_letter.body)
    except InvalidMessage:
        status = None
    return DeadStatus(
        reason=str(headers.get("x-solstice-reason", "")),
        detail=str(headers.get("x-solstice-detail", "")),
        refused_at=str(headers.get("x-solstice-refused-at", "")),
        attempts=attempt if isinstance(attempt, int) else 1,
        source_name=(status and status.source_name) or "",
        repository=(status and (status.repo_full_name or status.repo_url)) or "",
        commit_sha=status.commit_sha if status else "",
        context=status.context if status else "",
        state=status.state if status else "",
    )


async def _count(broker: Broker, topology: Topology, limit: int) -> int:
    await broker.ready(CONNECT_SECONDS)
    await broker.declare(topology)
    depth = await broker.depth(STATUSES.dlq)
    return min(limit, depth.ready) if depth is not None else 0


async def _arrived(consumer: Consumer, count: int) -> list[Delivery]:
    dead_letters: list[Delivery] = []
    try:
        while len(dead_letters) < count:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                dead_letters.extend(await consumer.batch())
    except TimeoutError:
        pass
    return dead_letters[:count]
