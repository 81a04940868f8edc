"""What the store of statuses promises: the newest of each context is never lost, and one at a time tells the forges."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, Protocol

from solstice_common.values import Value
from solstice_forge.remote.call_pacing import CallLimits
from solstice_forge.statuses.call_endings import CallEnding
from solstice_forge.statuses.wanted_status import WantedStatus

SETTLED_DAYS: Final = 30.0
"""A row outlives its telling by this: an older status that comes late must find it."""


class StatusKeepResult(StrEnum):
    """What became of a status that arrived."""

    WANTED = "wanted"
    """It will be told, also instead of one of its context that was not told yet."""
    STALE = "stale"
    """A newer one of its context, or the same, was here before."""


class Phase(StrEnum):
    PENDING = "pending"
    TOLD = "told"
    DEAD = "dead"


class OutgoingStatus(Value, frozen=True, kw_only=True):
    """A status that is about to be told; marked as under way."""

    row_id: int
    repository: str
    place: str
    run_id: str
    state: str
    final: bool
    request_id: str
    kept_at: float
    body: bytes
    failures: int
    failing_since: float | None
    since: float
    """When it was marked."""
    calls: int
    check_id: int | None
    """Of the check run that shows this run's context, if there is one."""


class StatusDeadLetter(Value, frozen=True, kw_only=True):
    """A status for the dead letters."""

    row_id: int
    request_id: str
    body: bytes
    headers: Mapping[str, str | int]


class ContextStatus(Value, frozen=True, kw_only=True):
    """What is known of one context, for people."""

    source_name: str
    repository: str
    commit_sha: str
    context: str
    run_id: str
    state: str
    phase: Phase
    told_state: str
    """What the forge shows; empty: nothing yet."""
    told_at: float | None
    failures: int
    last_failure: str
    next_at: float


class StatusStore(Protocol):
    """Durable statuses, one row for each context. Raises only StoreUnavailable; `now` in seconds since the epoch."""

    async def keep(self, statuses: Sequence[WantedStatus], now: float) -> Sequence[StatusKeepResult]:
        """Store what is newer than what is known; durable on return. A dead one that comes again is tried again."""
        ...

    def lead(self) -> AbstractAsyncContextManager[None]:
        """Waits until nobody else tells, in whatever process, and keeps it so."""
        ...

    async def take_over(self, now: float, horizon: float) -> int:
        """How many calls a dead process left under way; to be called first by whoever tells.

        They may arrive for `horizon` seconds from now.
        """
        ...

    async def take(self, source_name: str, now: float, limits: CallLimits) -> OutgoingStatus | float | None:
        """The next status to tell, marked as under way, and `limits` kept with it; or when there will be one.

        None: nothing waits. First statuses and final ones go before others. One whose context may still be reached
        by an older call waits for that.
        """
        ...

    async def ended(
        self, outgoing: OutgoingStatus, ending: CallEnding, *, now: float, horizon: float, limits: CallLimits
    ) -> None:
        """What became of it. A newer one that arrived meanwhile is pending; an undeliverable one leaves a dead letter.

        Nothing happens when another has taken over: to that one the call is uncertain.
        """
        ...

    async def retry_now(self, source_name: str, now: float) -> None:
        """The forge is back: what waits for another try is due now, unless an older call may still arrive."""
        ...

    async def limits(self, source_name: str) -> CallLimits:
        """Those kept last."""
        ...

    async def dead_letters(self, limit: int) -> Sequence[StatusDeadLetter]:
        """Dead letters to publish, oldest first."""
        ...

    async def published(self, row_ids: Sequence[int]) -> None:
        """These dead letters are with the broker."""
        ...

    async def pending(self) -> int:
        """How many statuses are to be told."""
        ...

    async def shown(self, request_id: str) -> Sequence[ContextStatus]:
        """The contexts whose newest status is of a request."""
        ...

    async def purge(self, before: float) -> int:
        """Forget what was settled before that moment; how many."""
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something new may be pending."""
        ...
