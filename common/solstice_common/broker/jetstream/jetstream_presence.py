"""Lets the consumers of a queue answer what they hold, and asks them.

JetStream's counters do not show it: returned messages still count as pending acknowledgement, and a full
consumer requests nothing.
"""

import asyncio
import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from solstice_common.broker.jetstream.jetstream_names import presence_subject
from solstice_common.broker.jetstream.nats_connection import NatsConnection, NatsLost, described

FIRST_ANSWER_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 0.05
"""The wait for another answer after each one."""
MOST_HELD: Final = 1_000_000
"""The most sequences of one answer: a foreign answer may name any range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessages:
    """The answer of a consumer, or of a reader of dead letters."""

    count: int = 0
    sequences: frozenset[int] = frozenset()
    """The sequences of the held messages in their stream; empty from a process of an older version."""
    reader: str = ""
    """An id that tells readers of dead letters apart."""
    lease_seconds: float | None = None
    """How long the AckWait of the held messages that ends first still lasts."""


def _without_lease() -> None:
    pass


async def answer_presence(
    connection: NatsConnection,
    queue: str,
    held: Callable[[], Collection[int]],
    *,
    lease_seconds: Callable[[], float | None] = _without_lease,
    reader: str = "",
) -> Subscription:
    """Answer which messages are held here, until the subscription ends."""

    async def answer(msg: Msg) -> None:
        if msg.reply:
            await connection.client.publish(msg.reply, presence_answer(held(), reader, lease_seconds()))

    try:
        return await connection.client.subscribe(presence_subject(queue), cb=answer)
    except nats.errors.Error as error:
        raise NatsLost(described(error)) from None


@dataclass(slots=True)
class _Answers:
    held: list[HeldMessages] = field(default_factory=list)
    no_responders: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, msg: Msg) -> None:
        if (msg.headers or {}).get("Status") == "503":
            self.no_responders = True
        else:
            self.held.append(held_in(msg.data))
        self.arrived.set()


async def held_by_consumers(connection: NatsConnection, queue: str) -> list[HeldMessages]:
    """Return the messages that each living consumer and reader of the queue holds. Raises NatsLost."""
    client, answers = connection.client, _Answers()
    inbox = client.new_inbox()
    try:
        subscription = await client.subscribe(inbox, cb=answers.take)
        try:
            await client.publish(presence_subject(queue), reply=inbox)
            wait_seconds = FIRST_ANSWER_SECONDS
            while not answers.no_responders:
                answers.arrived.clear()
                try:
                    async with asyncio.timeout(wait_seconds):
                        await answers.arrived.wait()
                except TimeoutError:
                    break
                wait_seconds = QUIET_SECONDS
        finally:
            await subscription.unsubscribe()
    except nats.errors.Error as error:
        raise NatsLost(described(error)) from None
    return answers.held


def presence_answer(sequences: Collection[int], reader: str, lease_seconds: float | None = None) -> bytes:
    """Writes the answer that `held_in` reads; sequences become ranges. Pure.

    A range is its first and last sequence.
    """
    ranges: list[list[int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    answer = {"held": len(sequences), "sequences": ranges, "reader": reader}
    if lease_seconds is not None:
        answer["lease_seconds"] = round(lease_seconds, 3)
    return json.dumps(answer).encode()


def held_in(data: bytes) -> HeldMessages:
    """Reads an answer; unreadable parts count as nothing held. Pure."""
    try:
        answer = json.loads(data)
        count, ranges, reader = answer["held"], answer.get("sequences", ()), answer.get("reader", "")
        sequences, lease = _expanded(ranges), answer.get("lease_seconds")
    except (AttributeError, KeyError, TypeError, ValueError):
        return HeldMessages()
    if not isinstance(count, int) or count < 0 or not isinstance(reader, str):
        return HeldMessages()
    if not isinstance(lease, int | float | None) or not 0 <= (lease or 0) < math.inf:
        return HeldMessages()
    return HeldMessages(count=count, sequences=sequences, reader=reader, lease_seconds=lease)


def _expanded(ranges: Sequence[tuple[int, int]]) -> frozenset[int]:
    # A range that goes backwards is empty, and makes no room for another.
    if sum(max(0, last - first + 1) for first, last in ranges) > MOST_HELD:
        raise ValueError("no process holds so many")
    return frozenset(number for first, last in ranges for number in range(first, last + 1))
