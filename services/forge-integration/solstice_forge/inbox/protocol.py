"""What the inbox promises: a delivery that was kept is never lost, and asks for a run once."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from solstice_common.values import Value


class Decision(StrEnum):
    ACCEPTED = "accepted"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"


class NewDelivery(Value, frozen=True, kw_only=True):
    """A genuine delivery and what it asks for.

    `content_key` is the same for two deliveries of one event, whatever hook sent them; None when it asks for nothing.
    `request` is the canonical `jobrequest.v1`; None when it asks for nothing.
    """

    source_name: str
    delivery_id: str
    event_name: str
    repo_full_name: str | None = None
    """The repository it is about, where it is about one."""
    received_at: float
    headers: dict[str, str]
    """Without signatures, tokens and authorization."""
    body: bytes
    """The JSON text, without secrets; empty for one that asks for nothing."""
    reason: str
    detail: str
    content_key: str | None
    request_id: str | None
    request: bytes | None
    lookup: bytes | None = None
    """The event, when only the forge can tell what it lacks; `request` is None then, and follows."""
    also: tuple[str, ...] = ()
    """Further content keys that mean the same, of a delivery that we made ourselves: what comes with one of them later is a
    copy of this one."""


class KeepResult(Value, frozen=True, kw_only=True):
    """What became of it: the answer to the forge."""

    delivery_id: str
    decision: Decision
    reason: str
    request_ids: tuple[str, ...]
    """Of the run it asked for; for a duplicate, those of the delivery it repeats."""


class PendingRequest(Value, frozen=True, kw_only=True):
    """A request that is not with the broker yet."""

    row_id: int
    request_id: str
    request: bytes
    attempts: int


class Lookup(Value, frozen=True, kw_only=True):
    """A delivery that waits until the forge was asked."""

    row_id: int
    source_name: str
    delivery_id: str
    received_at: float
    traceparent: str | None
    content_key: str
    event: bytes
    """As `NewDelivery.lookup` was."""
    attempts: int
    """With this one."""


class Lookups(Protocol):
    """Deliveries that become requests once the forge was asked; raises only StoreUnavailable."""

    @property
    def lookup_added(self) -> asyncio.Event:
        """Set whenever this process kept one."""
        ...

    async def take_lookups(self, now: float, *, until: float, limit: int) -> Sequence[Lookup]:
        """Those whose time has come; nobody, in whatever process, gets them again before `until`."""
        ...

    async def next_lookup_at(self) -> float | None:
        """When the next one's time comes; None when none waits."""
        ...

    async def looked_up(self, row_id: int, request: bytes) -> None:
        """It became this request, which is pending now; nothing happens to one that was settled before."""
        ...

    async def declined(self, row_id: int, reason: str, detail: str) -> None:
        """It asks for nothing after all, for this reason; nothing happens to one that was settled before."""
        ...

    async def look_up_later(self, row_id: int, at: float, failure: str) -> None:
        """The forge did not tell yet."""
        ...


class Inbox(Protocol):
    """Durable deliveries. Calls made together are one commit; raises only StoreUnavailable."""

    async def keep(self, delivery: NewDelivery) -> KeepResult:
        """Store it, unless its delivery id or its content key (one of them) was stored before; durable on return."""
        ...

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        """`keep` for what came together, as if in this order: for each the answer, or the error that is its own."""
        ...

    async def pending(self, limit: int) -> Sequence[PendingRequest]:
        """Requests to publish, in the order they were kept."""
        ...

    async def published(self, row_ids: Sequence[int]) -> None:
        """These are with the broker."""
        ...

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        """These were tried and are not: they stay pending."""
        ...

    async def backlog(self) -> int:
        """How many requests are pending."""
        ...

    def relaying(self) -> AbstractAsyncContextManager[None]:
        """Waits until nobody else relays what is pending, in whatever process, and keeps it so.

        Where that can be lost (a connection is), `pending` gives nothing until it is had again.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something new may be pending."""
        ...
