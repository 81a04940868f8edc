"""The interface of the inbox, which never loses a stored delivery.

A delivery and its copies ask for one run.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from solstice_common.values.value import Value
from solstice_forge.inbox.traced_requests import PublishTimes


class Decision(StrEnum):
    ACCEPTED = "accepted"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"


class NewDelivery(Value, frozen=True, kw_only=True):
    """A genuine delivery and what it asks for.

    `content_key` is the same for two deliveries of one event, from any hook; None when it asks for nothing. `request`
    is the canonical `jobrequest.v1`; None when it asks for nothing.
    """

    source_name: str
    delivery_id: str
    event_name: str
    repo_full_name: str | None = None
    """The repository that it names, if it names one."""
    received_at: float
    headers: dict[str, str]
    """Without signatures, tokens and authorization."""
    body: bytes
    """The JSON text, without secrets; empty when it asks for nothing."""
    reason: str
    detail: str
    content_key: str | None
    request_id: str | None
    request: bytes | None
    lookup: bytes | None = None
    """The event, when the forge must be asked for what it lacks; `request` is then None and follows later."""
    other_content_keys: tuple[str, ...] = ()
    """Further content keys with the same meaning, for a delivery that we made ourselves.

    A later delivery with one of them is a copy of this one.
    """


class KeepResult(Value, frozen=True, kw_only=True):
    """The decision about a delivery, which is the answer to the forge."""

    delivery_id: str
    decision: Decision
    reason: str
    request_ids: tuple[str, ...]
    """The run it asked for; for a duplicate, the run of the delivery it repeats."""


class PendingRequest(Value, frozen=True, kw_only=True):
    """A request that the broker has not confirmed yet."""

    row_id: int
    request_id: str
    request: bytes
    attempts: int


class Lookup(Value, frozen=True, kw_only=True):
    """A delivery that waits until the forge is asked."""

    row_id: int
    source_name: str
    delivery_id: str
    received_at: float
    traceparent: str | None
    content_key: str
    event: bytes
    """As `NewDelivery.lookup`."""
    attempts: int
    """Including this one."""


class Lookups(Protocol):
    """Deliveries that become requests after the forge is asked; raises only StoreUnavailable."""

    @property
    def lookup_added(self) -> asyncio.Event:
        """Return an event that is set whenever this process stores a lookup."""
        ...

    async def take_lookups(self, now: float, *, until: float, limit: int) -> Sequence[Lookup]:
        """Return due lookups; no process gets them again before `until`."""
        ...

    async def next_lookup_at(self) -> float | None:
        """Return when the next lookup is due; None when none waits."""
        ...

    async def lookup_answered(self, row_id: int, request: bytes) -> None:
        """Store the request, which is then pending; no effect on a settled lookup."""
        ...

    async def declined(self, row_id: int, reason: str, detail: str) -> None:
        """Store that it asks for nothing, for this reason; no effect on a settled lookup."""
        ...

    async def lookup_postponed(self, row_id: int, at: float, failure: str) -> None:
        """Store that the forge did not answer yet, and when to ask again."""
        ...


class WebhookInbox(Protocol):
    """The part of an inbox that webhooks and probes need. Raises only StoreUnavailable."""

    async def keep_all(self, deliveries: Sequence[NewDelivery]) -> Sequence[KeepResult | Exception]:
        """Do `Inbox.keep` for several, as if in this order; return each one's result or error."""
        ...

    async def backlog(self) -> int:
        """Return how many requests are pending."""
        ...


class Inbox(WebhookInbox, Protocol):
    """Durable deliveries; calls made together are one commit. Raises only StoreUnavailable."""

    async def keep(self, delivery: NewDelivery) -> KeepResult:
        """Store the delivery unless it is a duplicate; durable on return.

        It is a duplicate when its delivery id or one of its content keys was stored before.
        """
        ...

    async def pending(self, limit: int) -> Sequence[PendingRequest]:
        """Return requests to publish, in the order they were stored."""
        ...

    async def published(self, row_ids: Sequence[int], times: Sequence[PublishTimes] = ()) -> None:
        """Record that the broker has these; those with times wait to be traced (`RequestTraces`)."""
        ...

    async def not_published(self, row_ids: Sequence[int], detail: str) -> None:
        """Record that publishing these failed; they stay pending."""
        ...

    def relaying(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other process is the relay, and hold the leader lock.

        Where the lock can be lost (with a connection), `pending` returns nothing until it is held again.
        """
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Return an event that is set whenever a new request may be pending."""
        ...
