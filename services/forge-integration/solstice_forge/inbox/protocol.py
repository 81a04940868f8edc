"""What the inbox promises: a delivery that was kept is never lost, and asks for a run once."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Decision(StrEnum):
    ACCEPTED = "accepted"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """A genuine delivery and what it asks for.

    `content_key` is the same for two deliveries of one event, whatever hook sent them; None when it asks for nothing.
    `request` is the canonical `jobrequest.v1`; None when it asks for nothing.
    """

    source_name: str
    delivery_id: str
    event_name: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of it: the answer to the forge."""

    delivery_id: str
    decision: Decision
    reason: str
    request_ids: tuple[str, ...]
    """Of the run it asked for; for a duplicate, those of the delivery it repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that is not with the broker yet."""

    row_id: int
    request_id: str
    request: bytes
    attempts: int


class Inbox(Protocol):
    """Durable deliveries. Calls made together are one commit; raises only StoreUnavailable."""

    async def keep(self, delivery: NewDelivery) -> Kept:
        """Store it, unless its delivery id or its content key was stored before; durable on return."""
        ...

    async def pending(self, limit: int) -> Sequence[Pending]:
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
        """Waits until nobody else relays what is pending, in whatever process, and keeps it so."""
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something new may be pending."""
        ...
