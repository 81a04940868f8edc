"""Users of a broker with a role's rights, and what each role does.

A step is one thing that users do. It succeeds, or names the right that its user lacks: `refusals` returns which.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from structlog.testing import capture_logs

from solstice_common.broker import (
    Broker,
    DeadLetterQueue,
    Message,
    open_broker,
    open_dead_letter_queues,
    read_topology,
)
from solstice_common.broker.delivery import Ack, Refuse, Verdict
from solstice_common.broker.headers import IDEMPOTENCY_HEADER
from solstice_common.broker.protocol import HELD_BODY_BYTES
from solstice_common.errors import ConfigurationError, RightMissing
from solstice_common.rights.roles import Role
from solstice_common.settings import BrokerSettings
from solstice_common.topology import CANCELS, STATUSES, QueueType, Route, full_topology, jobs_route
from tests.browsing import browse
from tests.polling import WAIT_SECONDS, wait_until

SETTINGS: Final = BrokerSettings()
JOBS: Final = jobs_route(SETTINGS)
TOPOLOGY: Final = full_topology(SETTINGS)
SPLIT: Final = full_topology(BrokerSettings(amqp_priorities="split"))
"""What `topology check` looks for as well."""


@dataclass(frozen=True, order=True)
class Refusal:
    """A right that the broker missed, in its words."""

    right: str
    target: str


class RoleBroker(ABC):
    """A broker with everything declared, and users whose rights a test chooses."""

    url: str
    """The address of a user who may do everything."""
    management_url: str | None = None
    losing: Route = STATUSES
    """The route that `lose_topology` removes."""
    beyond: Mapping[Role, frozenset[str]] = MappingProxyType({})
    """Steps outside a role that this broker cannot tell from those of the role."""

    publishing: Any
    """The right without which forge-integration cannot publish requests."""
    reading: Any
    """The right without which the orchestrator cannot read requests."""

    @abstractmethod
    def is_named(self, right: Any, refusal: Refusal) -> bool:
        """Whether a user is told so that it lacks this right."""

    @abstractmethod
    def losing_for(self, right: Any) -> Route:
        """The route that must be missing for an admin to need this right."""

    @abstractmethod
    def end_connections(self) -> None:
        """End the connections of the user."""

    @abstractmethod
    def rights(self, role: Role) -> Sequence[Any]:
        """The single rights of a role."""

    @abstractmethod
    def single(self, rights: Sequence[Any]) -> frozenset[tuple[str, str]]:
        """The same rights as `topology check --role` names them."""

    @abstractmethod
    def options_of_check(self, url: str) -> Sequence[str]:
        """Options of `topology check --role` for the user of `url`."""

    @abstractmethod
    def user(self, rights: Sequence[Any]) -> str:
        """Make a user with exactly these rights, and return its address."""

    @abstractmethod
    async def lose_topology(self) -> None:
        """Remove a route, which only a user who may declare can make again."""

    def is_shown(self, right: Any) -> bool:
        """Whether a test can show within its time that a role needs this right."""
        return True

    def substitutes(self, right: Any) -> Sequence[Any]:
        """The rights that spare a user this one, and must be missing too."""
        return ()

    def waits(self) -> bool:
        """Whether the user's consumer, which has taken everything, has asked for more."""
        return True

    def forget(self) -> None:  # noqa: B027  not every server remembers
        """Have the server forget what it remembers of other users' commands."""

    async def declared(self) -> None:
        """Declare everything, as a user who may."""
        async with open_broker(self.url, name="test") as broker:
            await broker.ready(WAIT_SECONDS)
            await broker.declare(TOPOLOGY)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a step, by the user of `url`.

    `logs` shows what was refused meanwhile.
    """

    at: RoleBroker
    url: str
    logs: Sequence[Mapping[str, Any]]

    @asynccontextmanager
    async def broker(self, url: str = "") -> AsyncIterator[Broker]:
        async with open_broker(url or self.url, name="test", confirm_timeout_seconds=WAIT_SECONDS) as broker:
            await wait_until(lambda: broker.health.connected or refused_in(self.logs))
            if not broker.health.connected:
                first = refused_in(self.logs)[0]
                raise RightMissing(self.url, user="", right=first.right, target=first.target)
            yield broker

    async def know_the_durability(self) -> None:
        async with self.broker() as broker:
            if "grant +config|get" in (broker.health.degraded or ""):
                raise RightMissing(self.url, user="", right="config|get", target="server")

    async def publish(self, route: Route, exchange: str = "") -> None:
        """Declare, publish a message, and repeat it as after an unknown outcome."""
        exchange, key = exchange or route.exchange, route.routing_key
        async with self.broker() as broker:
            await broker.declare(route.topology(QueueType.QUORUM))
            for repeat in (False, True):
                (outcome,) = await broker.publish([_message(exchange, key, repeat=repeat)])
                assert outcome.confirmed or outcome.lacks_right, outcome

    async def measure(self, *queues: str) -> None:
        async with self.broker() as broker:
            for queue in queues:
                assert await broker.depth(queue) is not None
            for each in SPLIT.queues:
                if each not in TOPOLOGY.queues and each.dead_letter_exchange:
                    assert await broker.depth(each.name) is None

    async def settle(self, route: Route, verdict: Verdict, body: bytes = b"{}") -> None:
        """Take a message that another user published, leave, and settle it."""
        async with self.broker(self.at.url) as other:
            (outcome,) = await other.publish([_message(route.exchange, route.routing_key, body)])
            assert outcome.confirmed
        async with self.broker() as broker:
            await broker.declare(route.topology(QueueType.QUORUM))
            for prefetch, decided in ((1, []), (1000, [verdict])):
                async with broker.consume(route.queue, prefetch=prefetch) as consumer:
                    taking = asyncio.create_task(consumer.batch())
                    await self._wait_or_raise(taking)
                    if taking.done():
                        settled = [(each, one) for each in taking.result() for one in decided]
                        settling = asyncio.create_task(consumer.settle(settled))
                        # A refused settlement is tried again until it is allowed.
                        await self._wait_or_raise(settling)
                        settling.cancel()
                        if decided:
                            await wait_until(lambda: refused_in(self.logs) or self.at.waits())
                    taking.cancel()
                    await asyncio.wait([taking])

    async def _wait_or_raise(self, task: "asyncio.Task[Any]") -> None:
        await wait_until(lambda: task.done() or refused_in(self.logs))

    async def dead(self, route: Route, work: Callable[[DeadLetterQueue], Awaitable[object]]) -> None:
        """Do something with a dead-letter queue that has one message."""
        async with self.broker(self.at.url) as other:
            (outcome,) = await other.publish([_message(route.dlx, route.routing_key)])
            assert outcome.confirmed
        async with open_dead_letter_queues(self.url, name="test") as queues:
            await work(queues.queue(route.dlq))

    async def declare(self) -> None:
        await self.at.lose_topology()
        async with self.broker() as broker:
            await broker.declare(TOPOLOGY)

    async def compare(self) -> None:
        await read_topology(self.url, SPLIT, management_url=self.at.management_url)


Step = Callable[[Attempt], Awaitable[object]]
REFUSE: Final = Refuse(reason="invalid_field", detail="a test")
LARGE: Final = bytes(HELD_BODY_BYTES + 1)
"""A body that consumers leave at the broker."""


async def _take_and_put_back(queue: DeadLetterQueue) -> None:
    dead_letters: list[Any] = []

    async def handle(group: Sequence[Any]) -> Sequence[str]:
        dead_letters.extend(group)
        return [each.id for each in group]

    await queue.take(handle, 1000)
    outcomes = await queue.put_back(dead_letters)
    assert all(each.confirmed for each in outcomes), outcomes


STEPS: Final[Mapping[str, Step]] = {
    "publish a request": lambda at: at.publish(JOBS),
    "publish a cancel": lambda at: at.publish(CANCELS),
    "publish a dead letter": lambda at: at.publish(JOBS, JOBS.dlx),
    "publish a status": lambda at: at.publish(STATUSES),
    "know the durability": lambda at: at.know_the_durability(),
    "measure requests": lambda at: at.measure(JOBS.queue),
    "measure every queue": lambda at: at.measure(*(each.name for each in TOPOLOGY.queues)),
    "take a request": lambda at: at.settle(JOBS, Ack()),
    "take a cancel": lambda at: at.settle(CANCELS, Ack()),
    "take a status": lambda at: at.settle(STATUSES, Ack()),
    "refuse a request": lambda at: at.settle(JOBS, REFUSE),
    "refuse a cancel": lambda at: at.settle(CANCELS, REFUSE),
    "refuse a status": lambda at: at.settle(STATUSES, REFUSE),
    "refuse a large request": lambda at: at.settle(JOBS, REFUSE, LARGE),
    "refuse a large cancel": lambda at: at.settle(CANCELS, REFUSE, LARGE),
    "refuse a large status": lambda at: at.settle(STATUSES, REFUSE, LARGE),
    "read dead requests": lambda at: at.dead(JOBS, lambda queue: browse(queue, 10)),
    "read dead cancels": lambda at: at.dead(CANCELS, lambda queue: browse(queue, 10)),
    "read dead statuses": lambda at: at.dead(STATUSES, lambda queue: browse(queue, 10)),
    "purge dead statuses": lambda at: at.dead(STATUSES, lambda queue: queue.purge()),
    "put back dead requests": lambda at: at.dead(JOBS, _take_and_put_back),
    "put back dead cancels": lambda at: at.dead(CANCELS, _take_and_put_back),
    "put back dead statuses": lambda at: at.dead(STATUSES, _take_and_put_back),
    "declare": lambda at: at.declare(),
    "compare": lambda at: at.compare(),
}
WORK: Final[Mapping[Role, frozenset[str]]] = {
    Role.FORGE_INTEGRATION: frozenset(
        {
            *("publish a request", "publish a cancel"),
            *("take a status", "refuse a status", "refuse a large status"),
            *("know the durability", "measure requests"),
        }
    ),
    Role.ORCHESTRATOR: frozenset(
        {
            *("take a request", "refuse a request", "refuse a large request"),
            *("take a cancel", "refuse a cancel", "refuse a large cancel", "publish a status"),
            *("publish a dead letter", "know the durability", "measure requests", "measure every queue"),
        }
    ),
    Role.PUBLISHER: frozenset({"publish a request"}),
    Role.OPERATOR: frozenset(
        {
            *("publish a request", "publish a cancel", "publish a status"),
            *("read dead requests", "read dead cancels", "read dead statuses"),
            *("put back dead requests", "put back dead cancels", "put back dead statuses"),
            "purge dead statuses",
        }
    ),
    Role.ADMIN: frozenset({"declare", "compare"}),
    Role.MONITORING: frozenset({"compare"}),
}
"""The steps of each role; all others must be refused."""


async def refusals(at: RoleBroker, url: str, step: str) -> list[Refusal]:
    """Try a step; return the rights that its user lacks, each once.

    Any other failure is raised.
    """
    at.forget()
    with capture_logs() as logs:
        try:
            await STEPS[step](Attempt(at=at, url=url, logs=logs))
        except RightMissing as missing:
            return [Refusal(missing.right, missing.target)]
        except ConfigurationError as refused:
            # The management API, which has no words for a right.
            if "the tag 'management'" not in str(refused):
                raise
            return [Refusal("tag", "management")]
    return refused_in(logs)


def refused_in(logs: Sequence[Mapping[str, Any]]) -> list[Refusal]:
    """The rights that a log names as missing."""
    found = [line for line in logs if line["event"] == "broker.right_missing"]
    return list(dict.fromkeys(Refusal(line["right"], line["target"]) for line in found))


def _message(exchange: str, key: str, body: bytes = b"{}", *, repeat: bool = False) -> Message:
    return Message(
        exchange=exchange,
        routing_key=key,
        body=body,
        type=key,
        correlation_id="of a test",
        headers={IDEMPOTENCY_HEADER: f"{exchange} of a test"},
        repeat=repeat,
    )


async def does_its_work_and_nothing_else(at: RoleBroker, role: Role, url: str | None = None) -> None:
    """Assert that a role's user can do its steps, and nothing else.

    The user is made here unless `url` names it. Each refusal names the right.
    """
    await at.declared()
    url = at.user(at.rights(role)) if url is None else url
    for step in STEPS:
        missing = await refusals(at, url, step)
        may = step in WORK[role] | at.beyond.get(role, frozenset())
        assert bool(missing) != may, (step, missing)
        if step == "declare":
            await at.declared()


async def first_refusals(at: RoleBroker, role: Role, *, without: Any) -> list[Refusal]:
    """What a user without a right of a role, and its substitutes, is refused first."""
    missing_rights = {without, *at.substitutes(without)}
    url = at.user([each for each in at.rights(role) if each not in missing_rights])
    for step in sorted(WORK[role]):
        if missing := await refusals(at, url, step):
            return missing
    return []
