"""A replay publishes as many as it may, at its rate."""

import asyncio
import math
from collections.abc import Sequence

import pytest

from solstice_common.broker import DeadLetter, Message, Published, PublishStatus
from solstice_common.broker.dead_letters.replaying import Replay
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.broker.protocol import CONFIRMED
from solstice_common.settings import BrokerSettings
from solstice_common.topology import jobs_route
from tests.unit.common.broker.dead_letters.test_dead_letter_operations import QueueInMemory

UNKNOWN = Published(PublishStatus.UNKNOWN, "the link is lost")


class RecordingBroker:
    """A broker that answers each message in turn, and then confirms all."""

    def __init__(self, *outcomes: Published) -> None:
        self.published: list[bytes] = []
        self._outcomes = list(outcomes)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self.published += [message.body for message in messages]
        return [self._outcomes.pop(0) if self._outcomes else CONFIRMED for _ in messages]


def queue_of(count: int) -> QueueInMemory:
    return QueueInMemory(*(DeadLetter(queue="q", body=str(number).encode()) for number in range(count)))


def replay_of(
    queue: QueueInMemory, broker: RecordingBroker, *, rate: float | None = None, most: float = math.inf
) -> Replay:
    return Replay(
        broker=broker,  # type: ignore[arg-type]  # a replay only publishes
        queues=queue,
        dlq="q",
        route=jobs_route(BrokerSettings()),
        selection=Selection(),
        replay_id="one",
        by="test",
        rate=rate,
        most=most,
    )


async def test_at_most_so_many_are_sent_from_the_front() -> None:
    queue, broker = queue_of(5), RecordingBroker()
    report = await replay_of(queue, broker, most=3).run()
    assert broker.published == [b"0", b"1", b"2"]
    assert [each.body for each in queue.dead_letters] == [b"3", b"4"]
    assert (len(report.sent), report.left, report.went_well) == (3, 2, True)


async def test_what_the_broker_does_not_take_counts_among_so_many_and_stays() -> None:
    queue = queue_of(4)
    broker = RecordingBroker(Published(PublishStatus.REJECTED, "the queue is full"))
    report = await replay_of(queue, broker, most=2).run()
    assert broker.published == [b"0", b"1"]
    assert [each.body for each in queue.dead_letters] == [b"0", b"2", b"3"]
    assert (len(report.sent), len(report.failed)) == (1, 1)


async def test_it_sends_no_faster_than_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    queue, broker = queue_of(6), RecordingBroker()
    await replay_of(queue, broker, rate=2.0).run()
    assert len(broker.published) == 6
    assert sum(slept) == pytest.approx(6 / 2.0, abs=0.5)


async def test_without_a_broker_it_reads_no_further() -> None:
    queue, broker = queue_of(1000), RecordingBroker(CONFIRMED, UNKNOWN)
    report = await replay_of(queue, broker).run()
    assert broker.published == [b"0", b"1"]
    assert len(queue.dead_letters) == 999
    assert not report.went_well
