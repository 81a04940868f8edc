"""The exchanges, queues and bindings of Solstice CI, as frozen values.

The names are those published for Solstice CI v1, so that services written in other languages interoperate. Publishers
and consumers declare the same value, idempotently. RabbitMQ allows no later change of arguments, so only the few that
decide safety are set; numeric limits belong in a policy (`docs/operations/rabbitmq.md`).

Source: rabbitmq.com/docs/quorum-queues (dead-letter-strategy, overflow), rabbitmq.com/docs/dlx.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from solstice_common.messages import Priority
from solstice_common.settings import BrokerSettings

Argument = str | int | bool
WEIGHTS: Final[Mapping[Priority, int]] = MappingProxyType(
    {Priority.CRITICAL: 8, Priority.HIGH: 4, Priority.DEFAULT: 2, Priority.LOW: 1}
)
"""How many messages of each class are taken in a round, where the classes have queues of their own."""


class QueueType(StrEnum):
    QUORUM = "quorum"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: Literal["direct", "fanout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A durable queue. `arguments` are the immutable ones of its declaration."""

    name: str
    arguments: Mapping[str, Argument] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def dead_letter_exchange(self) -> str | None:
        """The exchange for refused messages of this queue, if any."""
        name = self.arguments.get("x-dead-letter-exchange")
        return None if name is None else str(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    exchange: str
    queue: str
    routing_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]

    def queue(self, name: str) -> Queue:
        """Return the queue of that name; KeyError when the topology has none."""
        for queue in self.queues:
            if queue.name == name:
                return queue
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The exchange, queue and dead-letter pair of one kind of message."""

    exchange: str
    queue: str
    routing_key: str
    dlx: str
    dlq: str
    classes: Mapping[Priority, "Route"] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """The routes of priority classes that have their own; messages of all others take this one."""

    def of(self, priority: Priority | None) -> "Route":
        """Return the route of a message of that class."""
        return self if priority is None else self.classes.get(priority, self)

    @property
    def weights(self) -> Mapping[str, int]:
        """The queues to consume, the most urgent first, each with its weight."""
        return {self.of(each).queue: weight for each, weight in WEIGHTS.items()}

    def topology(self, queue_type: QueueType) -> Topology:
        """Return everything this route needs on the broker."""
        work, dead = _arguments(self.dlx, queue_type)
        own = Topology(
            exchanges=(Exchange(name=self.exchange, kind="direct"), Exchange(name=self.dlx, kind="fanout")),
            queues=(Queue(name=self.queue, arguments=work), Queue(name=self.dlq, arguments=dead)),
            bindings=(
                Binding(exchange=self.exchange, queue=self.queue, routing_key=self.routing_key),
                Binding(exchange=self.dlx, queue=self.dlq, routing_key=""),
            ),
        )
        return _merged([own, *(each.topology(queue_type) for each in self.classes.values())])


STATUSES = Route(
    exchange="solstice.statuses",
    queue="solstice.statuses.v1",
    routing_key="jobstatus.v1",
    dlx="solstice.statuses.dlx",
    dlq="solstice.statuses.v1.dlq",
)


CANCELS = Route(
    exchange="solstice.cancels",
    queue="solstice.cancels.v1",
    routing_key="jobcancel.v1",
    dlx="solstice.cancels.dlx",
    dlq="solstice.cancels.v1.dlq",
)


def jobs_route(settings: BrokerSettings) -> Route:
    """Return the route of `jobrequest.v1`, under the names the settings give."""
    route = split_jobs_route(settings)
    return route if settings.amqp_priorities == "split" else replace(route, classes=MappingProxyType({}))


def split_jobs_route(settings: BrokerSettings) -> Route:
    """Return the route with AMQP_PRIORITIES=split, under any setting.

    The default class has the names published for v1: a publisher that knows no classes publishes to it.
    """
    route = Route(
        exchange=settings.amqp_exchange,
        queue=settings.amqp_queue,
        routing_key=settings.amqp_routing_key,
        dlx=settings.amqp_dlx,
        dlq=settings.amqp_dlq,
    )
    classes: Mapping[Priority, Route] = {
        each: _class_route(route, each) for each in Priority if each is not Priority.DEFAULT
    }
    return replace(route, classes=MappingProxyType(classes))


def _class_route(route: Route, priority: Priority) -> Route:
    """Return the names of a class: those of the route with its own behind them.

    A dead-letter queue still ends in `.dlq`, by which policies and alerts may know it.
    """
    is_dlq = route.dlq.endswith(".dlq")
    return Route(
        exchange=route.exchange,
        queue=f"{route.queue}.{priority}",
        routing_key=f"{route.routing_key}.{priority}",
        dlx=f"{route.dlx}.{priority}",
        dlq=f"{route.dlq.removesuffix('.dlq')}.{priority}{'.dlq' if is_dlq else ''}",
    )


def full_topology(settings: BrokerSettings) -> Topology:
    """Return all routes together: what `solstice topology declare` declares."""
    return _together(settings, jobs_route(settings), CANCELS, STATUSES)


def asking_topology(settings: BrokerSettings) -> Topology:
    """Return the topology that forge-integration publishes to: requests and cancel requests."""
    return _together(settings, jobs_route(settings), CANCELS)


def _together(settings: BrokerSettings, *routes: Route) -> Topology:
    return _merged(route.topology(QueueType(settings.amqp_queue_type)) for route in routes)


def _merged(topologies: Iterable[Topology]) -> Topology:
    """Return all of it, each exchange once."""
    parts = list(topologies)
    return Topology(
        exchanges=tuple(dict.fromkeys(exchange for part in parts for exchange in part.exchanges)),
        queues=tuple(queue for part in parts for queue in part.queues),
        bindings=tuple(binding for part in parts for binding in part.bindings),
    )


def _arguments(dlx: str, queue_type: QueueType) -> tuple[Mapping[str, Argument], Mapping[str, Argument]]:
    """Return the arguments of a work queue and of its dead-letter queue."""
    if queue_type is QueueType.CLASSIC:
        # Exactly the arguments of the published v1 services: with one more, they could not share the queue
        # with us.
        return MappingProxyType({"x-dead-letter-exchange": dlx}), MappingProxyType({})
    work: dict[str, Argument] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": dlx,
        # Without reject-publish, at-least-once silently becomes at-most-once.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    return MappingProxyType(work), MappingProxyType({"x-queue-type": "quorum"})
