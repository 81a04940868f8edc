"""The relay with a scripted broker and inbox.

The real ones are in tests/integration.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import orjson
import pytest

from solstice_common.broker.forwarder import GROUP
from solstice_common.broker.protocol import BrokerHealth, Message, Published, PublishStatus
from solstice_common.errors import BrokerUnavailable, StoreUnavailable, TopologyMismatch
from solstice_common.topology import Route, Topology
from solstice_forge.inbox.protocol import PendingRequest
from solstice_forge.metrics import Metrics
from solstice_forge.relay.inbox_relay import Relay, split

ROUTE = Route(exchange="jobs", queue="jobs.v1", routing_key="jobrequest.v1", dlx="dead", dlq="dead.v1")
TOPOLOGY = Topology(exchanges=(), queues=(), bindings=())
OK = Published(PublishStatus.CONFIRMED)


class ScriptedBroker:
    """Confirms everything, except as `says` and `raises` define for the next calls."""

    url = "scripted://"

    def __init__(self) -> None:
        self.health = BrokerHealth(connected=True)
        self.calls: list[list[str]] = []
        self.attempts: list[object] = []
        self.declared = 0
        self.outcomes: list[dict[str, PublishStatus]] = []
        self.raises: list[Exception] = []

    async def ready(self, timeout_seconds: float) -> None:
        if self.raises:
            raise self.raises.pop(0)

    async def declare(self, topology: Topology) -> None:
        self.declared += 1

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        await asyncio.sleep(0)
        ids = [str(message.correlation_id) for message in messages]
        self.calls.append(ids)
        self.attempts += [message.headers["x-solstice-attempt"] for message in messages]
        outcomes = self.outcomes.pop(0) if self.outcomes else {}
        return [Published(outcomes.get(one, PublishStatus.CONFIRMED), "a reason") for one in ids]


class ListInbox:
    """The pending requests, in a list."""

    def __init__(self, *ids: str) -> None:
        self.rows = {number: (one, 0) for number, one in enumerate(ids)}
        self.bodies = {one: request(one) for one in ids}
        self.changed = asyncio.Event()
        self.mark_raises: list[Exception] = []
        self.failures: list[str] = []

    async def pending(self, limit: int) -> Sequence[PendingRequest]:
        return [
            PendingRequest(row_id=row, request_id=one, request=self.bodies[one], attempts=attempts)
            for row, (one, attempts) in sorted(self.rows.items())[:limit]
        ]

    async def published(self, row_ids: Sequence[int]) -> None:
        if self.mark_raises:
            raise self.mark_raises.pop(0)
        for row in row_ids:
            del self.rows[row]

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        self.failures.append(detail)
        for row in row_ids:
            one, attempts = self.rows[row]
            self.rows[row] = (one, attempts + 1)

    async def keep(self, delivery: object) -> None:
        raise NotImplementedError

    async def backlog(self) -> int:
        return len(self.rows)

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[asyncio.Event]:
        yield self.changed


class NoWaiting(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def request(request_id: str) -> bytes:
    return orjson.dumps({"request_id": request_id, "schema_version": "jobrequest.v1"})


def relay_of(inbox: ListInbox, broker: ScriptedBroker) -> Relay:
    return Relay(
        inbox=inbox,  # type: ignore[arg-type]  # keep is not for relays
        broker=broker,  # type: ignore[arg-type]  # consume and depth neither
        route=ROUTE,
        topology=TOPOLOGY,
        metrics=Metrics(),
        rng=NoWaiting(),
    )


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110  the fakes tell of no change
            await asyncio.sleep(0.001)


async def until_empty(relay: Relay, inbox: ListInbox) -> None:
    """Run the relay until nothing is pending, then end it as a service does."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(relay.run())
        await until(lambda: not inbox.rows or running.done())
        relay.finish()


async def test_everything_is_published_once_in_order_and_in_groups() -> None:
    ids = [f"r{number}" for number in range(GROUP + 3)]
    inbox, broker = ListInbox(*ids), ScriptedBroker()
    await until_empty(relay_of(inbox, broker), inbox)
    assert [len(call) for call in broker.calls] == [GROUP, 3]
    assert [one for call in broker.calls for one in call] == ids
    assert broker.declared == 1


@pytest.mark.parametrize("status", [PublishStatus.UNKNOWN, PublishStatus.REJECTED, PublishStatus.UNROUTABLE])
async def test_what_is_not_confirmed_is_tried_again_and_the_rest_is_not(status: PublishStatus) -> None:
    inbox, broker = ListInbox("a", "b", "c"), ScriptedBroker()
    broker.outcomes = [{"b": status, "c": status}, {"b": status}]
    await until_empty(relay_of(inbox, broker), inbox)
    assert broker.calls == [["a", "b", "c"], ["b", "c"], ["b"]]
    assert broker.attempts == [1, 1, 1, 2, 2, 3]
    assert inbox.failures == [f"{status.value}: a reason"] * 2
    assert broker.declared == 3, "what was missing on the broker may have to be made again"


async def test_nothing_is_offered_while_the_broker_is_away() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    broker.raises = [BrokerUnavailable("scripted://", "gone")] * 3
    relay = relay_of(inbox, broker)
    await until_empty(relay, inbox)
    assert broker.calls == [["a"]]
    assert broker.attempts == [1]
    assert relay.problem is None


async def test_blocked_broker_gets_nothing() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    broker.health = BrokerHealth(connected=True, blocked="low on memory")
    relay = relay_of(inbox, broker)
    running = asyncio.create_task(relay.run())
    await until(lambda: relay.problem is not None)
    assert relay.problem is not None
    assert "low on memory" in relay.problem
    broker.health = BrokerHealth(connected=True)
    await until(lambda: not inbox.rows)
    relay.finish()
    await running
    assert broker.calls == [["a"]]


async def test_mismatched_topology_is_reported_and_waited_out() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    broker.raises = [TopologyMismatch("queue", "jobs.v1", {}, "classic")]
    relay = relay_of(inbox, broker)
    await until_empty(relay, inbox)
    assert broker.calls == [["a"]]


async def test_confirmed_request_is_not_published_again_when_the_inbox_could_not_mark_it() -> None:
    inbox, broker = ListInbox("a", "b"), ScriptedBroker()
    inbox.mark_raises = [StoreUnavailable("inbox", "disk full")] * 3
    await until_empty(relay_of(inbox, broker), inbox)
    assert broker.calls == [["a", "b"]]


async def test_finish_publishes_what_is_pending() -> None:
    inbox, broker = ListInbox("a", "b"), ScriptedBroker()
    relay = relay_of(inbox, broker)
    relay.finish()
    await relay.run()
    assert broker.calls == [["a", "b"]]


async def test_finish_gives_up_when_the_broker_is_away() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    broker.raises = [BrokerUnavailable("scripted://", "gone")]
    relay = relay_of(inbox, broker)
    relay.finish()
    await relay.run()
    assert inbox.rows


async def test_finish_gives_up_when_the_broker_does_not_take_it() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    broker.outcomes = [{"a": PublishStatus.REJECTED}]
    relay = relay_of(inbox, broker)
    relay.finish()
    await relay.run()
    assert broker.calls == [["a"]]


async def test_new_delivery_wakes_the_relay() -> None:
    inbox, broker = ListInbox(), ScriptedBroker()
    relay = relay_of(inbox, broker)
    running = asyncio.create_task(relay.run())
    await until(lambda: broker.declared > 0)
    inbox.rows[0], inbox.bodies["a"] = ("a", 0), request("a")
    inbox.changed.set()
    await until(lambda: not inbox.rows)
    relay.finish()
    await running
    assert broker.calls == [["a"]]


async def test_request_of_a_newer_version_is_published_nevertheless() -> None:
    inbox, broker = ListInbox("a"), ScriptedBroker()
    newer = b'{"request_id": "a", "schema_version": "jobrequest.v1", "priority": "someday", "repo_url": 7}'

    inbox.bodies["a"] = newer
    await until_empty(relay_of(inbox, broker), inbox)
    assert broker.calls == [["a"]]


def test_split_keeps_the_order() -> None:
    group = [
        PendingRequest(row_id=number, request_id=str(number), request=b"", attempts=0) for number in range(4)
    ]
    lost = Published(PublishStatus.UNKNOWN)
    confirmed, failed = split(group, [OK, lost, OK, lost])
    assert [one.row_id for one in confirmed] == [0, 2]
    assert [(one.row_id, outcome) for one, outcome in failed] == [(1, lost), (3, lost)]
