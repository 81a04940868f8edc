"""What the forwarder does by itself; what becomes of rows is told in tests/unit/forge/relay/test_inbox_relay.py."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager

import pytest

from solstice_common.broker.forwarder import Forwarder, reason_of
from solstice_common.broker.protocol import BrokerHealth, Message, Published, PublishStatus
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Topology

GONE = BrokerUnavailable("scripted://", "gone")
TOO_OFTEN = 1000


class ScriptedBroker:
    """A broker that is away on the looks numbered in `away`, and rejects the first `rejected` messages."""

    url = "scripted://"
    health = BrokerHealth(connected=True)

    def __init__(self, *, away: Container[int] = (), rejected: int = 0) -> None:
        self.away = away
        self.rejected = rejected
        self.asked = self.declared = 0
        self.bodies: list[bytes] = []

    async def ready(self, timeout_seconds: float) -> None:
        self.asked += 1
        assert self.asked < TOO_OFTEN, "asked in a tight loop"
        if self.asked in self.away:
            raise GONE

    async def declare(self, topology: Topology) -> None:
        self.declared += 1

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self.bodies += [message.body for message in messages]
        said = []
        for _ in messages:
            self.rejected -= 1
            rejected = Published(PublishStatus.REJECTED, "full")
            said.append(rejected if self.rejected >= 0 else Published(PublishStatus.CONFIRMED))
        return said


class Rows:
    """Numbers that wait; writes down what it is told."""

    def __init__(self, *rows: int) -> None:
        self.rows = list(rows)
        self.changed = asyncio.Event()
        self.looks = 0
        self.story: list[str] = []

    @asynccontextmanager
    async def lead(self) -> AsyncIterator[asyncio.Event]:
        self.story.append("turn begun")
        yield self.changed
        self.story.append("turn over")

    async def next_group(self, limit: int) -> Sequence[int]:
        self.looks += 1
        return self.rows[:limit]

    def message_of(self, row: int) -> Message:
        return Message(exchange="x", routing_key="k", body=b"%d" % row, type="t")

    def answered(self, group: Sequence[int], outcomes: Sequence[Published]) -> Sequence[int]:
        self.story.append(f"answered {len(group)}")
        return [row for row, outcome in zip(group, outcomes, strict=True) if outcome.confirmed]

    async def mark(self, row_ids: Sequence[int]) -> None:
        self.story.append(f"marked {list(row_ids)}")
        self.rows = [row for row in self.rows if row not in row_ids]

    async def ended(self, group: Sequence[int], failed: Sequence[tuple[int, Published]]) -> None:
        self.story.append(f"ended {list(group)} without {[row for row, _ in failed]}")

    def interrupted(self, detail: str) -> None:
        self.story.append("held")

    def resumed(self, held_seconds: float) -> None:
        self.story.append("resumed")


class NoWaiting(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def forwarder_of(rows: Rows, broker: ScriptedBroker, *, declare_early: bool = False) -> Forwarder[int]:
    return Forwarder(
        rows,
        noun="number",
        broker=broker,  # type: ignore[arg-type]  # consume and depth are not for forwarders
        topology=Topology(exchanges=(), queues=(), bindings=()),
        rng=NoWaiting(),
        look_again_seconds=3600,
        declare_early=declare_early,
    )


async def run_until(forwarder: Forwarder[int], reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(forwarder.run(), name="forwarder")
        while not reached():  # noqa: ASYNC110  the fakes tell of no change
            await asyncio.sleep(0.001)
        forwarder.finish()


@pytest.mark.parametrize(("early", "declared"), [(False, 0), (True, 1)], ids=["late", "early"])
async def test_idle_forwarder_leaves_the_broker_alone_unless_it_declares_early(
    early: bool, declared: int
) -> None:
    rows, broker = Rows(), ScriptedBroker()
    await run_until(forwarder_of(rows, broker, declare_early=early), lambda: rows.looks > 0)
    assert (broker.asked, broker.declared) == (declared, declared)


async def test_each_absence_of_the_broker_is_told_of_once_and_so_is_each_return() -> None:
    rows, broker = Rows(1, 2), ScriptedBroker(away={1, 2, 3, 6, 7}, rejected=2)

    def all_told() -> bool:
        if not rows.rows and broker.asked == 5:
            rows.rows = [3]
            rows.changed.set()
        return not rows.rows

    await run_until(forwarder_of(rows, broker), all_told)
    assert rows.story == [
        "turn begun",
        "held",
        "resumed",
        "answered 2",
        "ended [1, 2] without [1, 2]",
        "answered 2",
        "marked [1, 2]",
        "ended [1, 2] without []",
        "held",
        "resumed",
        "answered 1",
        "marked [3]",
        "ended [3] without []",
        "turn over",
    ]


async def test_broker_that_stays_away_is_not_asked_in_a_tight_loop() -> None:
    rows, broker = Rows(1), ScriptedBroker(away=range(1, TOO_OFTEN))
    await run_until(forwarder_of(rows, broker), lambda: broker.asked >= 3)
    assert broker.bodies == []


async def test_what_is_done_with_is_marked_before_the_rest_is_told_of() -> None:
    rows, broker = Rows(1, 2), ScriptedBroker(rejected=1)
    await run_until(forwarder_of(rows, broker), lambda: not rows.rows)
    assert rows.story[1:-1] == [
        "answered 2",
        "marked [2]",
        "ended [1, 2] without [1]",
        "answered 1",
        "marked [1]",
        "ended [1] without []",
    ]
    assert broker.declared == 2, "what was missing on the broker may have to be made anew"


async def test_problem_says_what_was_not_taken_and_why() -> None:
    forwarder = forwarder_of(Rows(1), ScriptedBroker(rejected=1))
    forwarder.finish()
    await forwarder.run()
    assert forwarder.problem == "the broker did not take a number (rejected: full)"


@pytest.mark.parametrize(("detail", "words"), [("", "unknown"), ("link lost", "unknown: link lost")])
def test_reason_is_the_status_and_the_brokers_own_word(detail: str, words: str) -> None:
    assert reason_of(Published(PublishStatus.UNKNOWN, detail)) == words
