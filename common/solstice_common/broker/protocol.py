"""The contract of every broker, which one contract suite tests.

`capabilities` declares what a broker promises beyond it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from solstice_common.broker.capabilities import Capabilities
from solstice_common.broker.delivery import Verdict
from solstice_common.topology import Topology
from solstice_common.values.value import Value

HeaderValue = str | int | bool
NO_HEADERS: Final[Mapping[str, HeaderValue]] = MappingProxyType({})
HELD_BODY_BYTES: Final = 512 * 1024
"""The largest body that every broker delivers: twice the largest message that is valid.

A consumer holds `prefetch` bodies, and strangers with access to the broker may publish larger ones.
"""


class Message(Value, frozen=True, kw_only=True):
    """A message to publish: persistent and mandatory.

    It has every property that helps a person in the management UI.

    The broker adds a fresh `message_id` to every publish attempt (returns are correlated by it) and strips the
    headers that only a broker may write (`x-death`, `x-delivery-count`, ...).
    """

    exchange: str
    routing_key: str
    body: bytes
    type: str
    """The schema version, e.g. `jobrequest.v1`."""
    correlation_id: str | None = None
    """The request id."""
    headers: Mapping[str, HeaderValue] = NO_HEADERS
    priority: int | None = None
    """0 to 31, as in AMQP; the store decides the order of jobs, not this."""
    timestamp: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    content_type: str = "application/json"
    app_id: str = "solstice-ci"
    repeat: bool = False
    """Whether an earlier attempt ended as UNKNOWN: the broker may recognise it by the idempotency key."""


class PublishStatus(StrEnum):
    """How a publish ended."""

    CONFIRMED = "confirmed"
    """The broker has stored it in at least one queue."""
    UNROUTABLE = "unroutable"
    """No queue is bound for the message: the broker does not have it."""
    REJECTED = "rejected"
    """The broker rejected the message (queue full, exchange missing) and does not have it."""
    UNKNOWN = "unknown"
    """Timeout or lost link: the broker may have it.

    Publish again with the same idempotency key.
    """


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of one publish. `detail` is the broker's own text where it gave one."""

    status: PublishStatus
    detail: str = ""
    lacks_right: bool = False
    """Rejected, because the user of the broker lacks a right, which `detail` names."""

    @property
    def confirmed(self) -> bool:
        return self.status is PublishStatus.CONFIRMED


CONFIRMED: Final = Published(PublishStatus.CONFIRMED)


class Delivery(Protocol):
    """One delivery of one message.

    Only the consumer that made the delivery can interpret `tag`.
    """

    @property
    def body(self) -> bytes: ...
    @property
    def omitted_bytes(self) -> int:
        """The size of a body that is too large to be delivered; else 0.

        `body` is empty then.
        """
        ...

    @property
    def tag(self) -> object: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str: ...
    @property
    def type(self) -> str | None: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def headers(self) -> Mapping[str, object]: ...

    def header(self, name: str) -> object:
        """Return one of the headers; None where it is missing.

        Where it is the only one that is asked for, the others may not even be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivered:
    """A Delivery whose fields are all known from the start."""

    body: bytes
    tag: object
    exchange: str = ""
    routing_key: str = ""
    type: str | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    headers: Mapping[str, object] = field(default_factory=lambda: NO_HEADERS)
    redelivered: bool = False
    omitted_bytes: int = 0

    def header(self, name: str) -> object:
        return self.headers.get(name)


class Consumer(Protocol):
    """The deliveries of one queue.

    One task at a time may wait in `batch`; `settle` may be called from any task.
    """

    @property
    def subscribed(self) -> bool:
        """Whether the broker delivers to it at the moment.

        Not before it has answered for the first time, and not without a connection or the queue.
        """
        ...

    async def batch(self) -> Sequence[Delivery]:
        """Wait for at least one delivery; return all that arrived, oldest first.

        At most `prefetch` are returned.

        It waits through lost connections, restarts and cancelled consumers, without a limit; the broker
        delivers unsettled messages again after such a loss, with `redelivered` set. It raises only
        TopologyMismatch.
        """
        ...

    async def settle(self, verdicts: Iterable[tuple[Delivery, Verdict]]) -> None:
        """Carry out verdicts; each delivery is settled once.

        The broker gets them in groups where it allows that.

        Ack: forgotten by the broker. Retry: requeued. Refuse: published to the queue's dead-letter exchange
        with headers `x-solstice-reason`, `-detail`, `-queue`, `-refused-at`, `-refused-by`, `-attempt`,
        confirmed, and then acked; if that publish fails it is rejected, so that the broker dead-letters it
        itself. So it is, too, when the body was omitted. A delivery whose connection is lost is ignored: the broker delivers it again. Never raises for
        that.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """The broker's health as `/readyz` and the gauges show it."""

    connected: bool
    blocked: str | None = None
    """Why the broker takes no publishes at the moment (memory or disk alarm), else None."""
    degraded: str | None = None
    """Why it is ready, but less durable than it could be, with the setting to change; else None."""
    detail: str = ""
    transport: str = ""
    """Which broker it is: the name of its capabilities."""
    host: str = ""
    """The host in use, or used last, as `name:port`; empty before the first, and for a file."""

    @property
    def notices(self) -> Mapping[str, str]:
        """The notices of `/readyz` about a broker that is ready."""
        return {} if self.degraded is None else {"broker": f"degraded: {self.degraded}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How full a queue is; None where the broker does not know."""

    ready: int
    consumers: int
    pending: int | None = None
    """Delivered and not settled."""
    oldest_seconds: float | None = None
    """Age of the oldest message, delivered or not; None also for an empty queue."""
    lease_seconds: float | None = None
    """How long the lease that ends first still lasts; None also without leases."""


class Broker(Protocol):
    """The connection of one process to the broker.

    It connects in the background, and again whenever the link is lost. Opened by
    `solstice_common.broker.open_broker(url)` as an async context manager; leaving it closes every connection, in any
    state, within a few seconds.
    """

    @property
    def url(self) -> str:
        """The broker's address without its password, for messages and logs."""
        ...

    @property
    def health(self) -> BrokerHealth: ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can promise; properties that need a connection are unknown before the first one."""
        ...

    async def ready(self, timeout_seconds: float) -> None:
        """Return once connected; BrokerUnavailable when that takes longer than `timeout_seconds`."""
        ...

    async def declare(self, topology: Topology) -> None:
        """Make sure everything in `topology` exists; safe to repeat.

        Raises TopologyMismatch when an object exists with other properties (the connection stays usable), and
        BrokerUnavailable when there is no connection.
        """
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """Publish and wait for the confirms.

        Returns one outcome per message, in order. Never raises because of the broker.

        Calls made in one iteration of the event loop, from any number of tasks, are one group. Messages of
        one call reach a queue in the order given. The broker's confirm timeout bounds the call; after it, the
        outcome is UNKNOWN.
        """
        ...

    def consume(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Consumer]:
        """Consume `queue`. Leaving returns unsettled deliveries to the queue."""
        ...

    async def depth(self, queue: str) -> QueueDepth | None:
        """Return how many messages wait in the queue; None when there is no such queue.

        BrokerUnavailable without a connection.
        """
        ...


def new_message_id() -> str:
    """Return a fresh id for one publish attempt, a random UUID."""
    # A third of the time that `uuid` takes, once per message on the hot path.
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
