"""The forwarder itself; tests/unit/forge/relay/test_inbox_relay.py tests the fate of rows."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from solstice_common.broker.forwarder import GROUP, STREAM_GROUP, STREAM_LINGER, Forwarder, reason_of
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.protocol import (
    BrokerHealth,
    Message,
    Published,
    PublishStatus,
)
from solstice_common.errors import BrokerUnavailable
from solstice_common.topology import Topology

GONE = BrokerUnavailable("scripted://", "gone")
TOO_OFTEN = 1000


class ScriptedBroker:
    """A broker that is unavailable on some checks, and rejects its first messages.

    `away` numbers the checks; `rejected` counts the messages.
    """

    url = "scripted://"
    health = BrokerHealth(connected=True)

    def __init__(self, *, away: Container[int] = (), rejected: int = 0) -> None:
        self.away = away
        self.rejected = rejected
        self.ready_calls = self.declared = 0
        self.bodies: list[bytes] = []

    async def ready(self, timeout_seconds: float) -> None:
        self.ready_calls += 1
        assert self.ready_calls < TOO_OFTEN, "asked in a tight loop"
        if self.ready_calls in self.away:
            raise GONE

    async def declare(self, topology: Topology) -> None:
        self.declared += 1

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        self.bodies += [message.body for message in messages]
        scripted = []
        for _ in messages:
            self.rejected -= 1
            rejected = Published(PublishStatus.REJECTED, "full")
            scripted.append(rejected if self.rejected >= 0 else Published(PublishStatus.CONFIRMED))
        return scripted


class Rows:
    """A backlog of numbers that records its calls."""

    def __init__(self, *rows: int) -> None:
        self.rows = list(rows)
        self.changed = asyncio.Event()
        self.calls = 0
        self.story: list[str] = []

    @asynccontextmanager
    async def lead(self) -> AsyncIterator[asyncio.Event]:
        self.story.append("leadership begun")
        yield self.changed
        self.story.append("leadership over")

    async def next_group(self, limit: int) -> Sequence[int]:
        self.calls += 1
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

    def resumed(self, paused_seconds: float) -> None:
        self.story.append("resumed")


class NoWaiting(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def forwarder_of(
    rows: Rows, broker: ScriptedBroker, *, declare_early: bool = False, linger_seconds: float = 0.0
) -> Forwarder[int]:
    return Forwarder(
        rows,
        noun="number",
        broker=broker,  # type: ignore[arg-type]  # consume and depth are not for forwarders
        topology=Topology(exchanges=(), queues=(), bindings=()),
        rng=NoWaiting(),
        poll_seconds=3600,
        linger_seconds=linger_seconds,
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
    await run_until(forwarder_of(rows, broker, declare_early=early), lambda: rows.calls > 0)
    assert (broker.ready_calls, broker.declared) == (declared, declared)


async def test_rows_wait_a_moment_for_others_and_a_large_group_for_none() -> None:
    rows, broker = Rows(*range(2 * GROUP)), ScriptedBroker()

    def all_published() -> bool:
        if len(broker.bodies) == 2 * GROUP and not rows.rows:
            # The forwarder has been idle, and waits now.
            rows.rows = [-1]
            rows.changed.set()
        elif rows.rows == [-1]:
            rows.rows = [-1, -2]
        return not rows.rows

    await run_until(forwarder_of(rows, broker, linger_seconds=0.3), all_published)
    assert [line for line in rows.story if line.startswith("answered")] == [
        f"answered {GROUP}",
        f"answered {GROUP}",
        "answered 2",
    ]


async def test_rows_wait_longer_in_a_stream_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, broker, sleep = Rows(*range(STREAM_GROUP)), ScriptedBroker(), asyncio.sleep
    lingered: list[float] = []

    async def lingers(seconds: float) -> None:
        if seconds >= 1:
            lingered.append(seconds)
        await sleep(0)

    def both_published() -> bool:
        if not rows.rows and len(broker.bodies) == STREAM_GROUP:
            rows.rows = [-1]
            rows.changed.set()
        return len(broker.bodies) > STREAM_GROUP and not rows.rows

    monkeypatch.setattr(asyncio, "sleep", lingers)
    await run_until(forwarder_of(rows, broker, linger_seconds=1.0), both_published)
    assert lingered[0] == STREAM_LINGER
    assert set(lingered[1:]) <= {1.0}


async def test_each_absence_of_the_broker_is_reported_once_and_so_is_each_return() -> None:
    rows, broker = Rows(1, 2), ScriptedBroker(away={1, 2, 3, 6, 7}, rejected=2)

    def all_reported() -> bool:
        if not rows.rows and broker.ready_calls == 5:
            rows.rows = [3]
            rows.changed.set()
        return not rows.rows

    await run_until(forwarder_of(rows, broker), all_reported)
    assert rows.story == [
        "leadership begun",
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
        "leadership over",
    ]


async def test_broker_that_stays_away_is_not_asked_in_a_tight_loop() -> None:
    rows, broker = Rows(1), ScriptedBroker(away=range(1, TOO_OFTEN))
    await run_until(forwarder_of(rows, broker), lambda: broker.ready_calls >= 3)
    assert broker.bodies == []


async def test_what_is_done_with_is_marked_before_the_rest_is_reported() -> None:
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
    assert broker.declared == 2, "what was missing on the broker may have to be made again"


async def test_problem_says_what_was_not_taken_and_why() -> None:
    forwarder = forwarder_of(Rows(1), ScriptedBroker(rejected=1))
    forwarder.finish()
    await forwarder.run()
    assert forwarder.problem == "the broker did not take a number (rejected: full)"


@pytest.mark.parametrize(("detail", "words"), [("", "unknown"), ("link lost", "unknown: link lost")])
def test_reason_is_the_status_and_the_brokers_own_word(detail: str, words: str) -> None:
    assert reason_of(Published(PublishStatus.UNKNOWN, detail)) == words


async def test_what_ended_as_unknown_is_published_again_as_a_repeat_and_nothing_else_is() -> None:
    class Uncertain(ScriptedBroker):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[list[tuple[bytes, bool]]] = []

        async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
            self.calls.append([(message.body, message.repeat) for message in messages])
            first = len(self.calls) == 1
            return [
                Published(
                    {b"1": PublishStatus.UNKNOWN, b"2": PublishStatus.REJECTED}.get(
                        message.body if first else b"", PublishStatus.CONFIRMED
                    )
                )
                for message in messages
            ]

    class Keyed(Rows):
        def message_of(self, row: int) -> Message:
            return msgspec.structs.replace(
                super().message_of(row), headers={IDEMPOTENCY_HEADER: f"key-{row}"}
            )

    broker, rows = Uncertain(), Keyed(1, 2, 3)

    def ended() -> bool:
        if not rows.rows and len(broker.calls) == 2:
            rows.rows = [1]
            rows.changed.set()
        return len(broker.calls) >= 3

    await run_until(forwarder_of(rows, broker), ended)
    assert broker.calls == [
        [(b"1", False), (b"2", False), (b"3", False)],
        [(b"1", True), (b"2", False)],
        [(b"1", False)],
    ]


class SlowBroker(ScriptedBroker):
    """A broker that gets two more rows before it answers for the first group."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self._rows = rows

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        if not self.bodies:
            for row in (2, 3):
                self._rows.rows.append(row)
                self._rows.changed.set()
                await asyncio.sleep(0)
        return await super().publish(messages)


async def test_rows_that_arrive_while_a_group_is_published_share_the_next_one() -> None:
    rows = Rows(1)
    await run_until(forwarder_of(rows, SlowBroker(rows)), lambda: not rows.rows)
    assert [line for line in rows.story if line.startswith("answered")] == ["answered 1", "answered 2"]
