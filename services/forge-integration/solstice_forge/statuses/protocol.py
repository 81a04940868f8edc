"""What the store of statuses promises: the newest of each context is never lost, and one at a time tells the forges."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, Protocol

from solstice_common.values import Value
from solstice_forge.remote.call_pacing import Limits
from solstice_forge.statuses.call_endings import Ending
from solstice_forge.statuses.wanted_status import Wanted

SETTLED_DAYS: Final = 30.0
"""A row outlives its telling by this: an older status that comes late must find it."""


class Kept(StrEnum):
    """What became of a status that arrived."""

    WANTED = "wanted"
    """It will be told, also instead of one of its context that was not told yet."""
    STALE = "stale"
    """A newer one of its context, or the same, was here before."""


class Phase(StrEnum):
    PENDING = "pending"
    TOLD = "told"
    DEAD = "dead"


class Telling(Value, frozen=True, kw_only=True):
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


class Letter(Value, frozen=True, kw_only=True):
    """A status for the dead letters."""

    row_id: int
    request_id: str
    body: bytes
    headers: Mapping[str, str | int]


class Shown(Value, frozen=True, kw_only=True):
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

    async def keep(self, statuses: Sequence[Wanted], now: float) -> Sequence[Kept]:
        """Store what is newer than what is known; durable on return. A dead one that comes again is tried again."""
        ...

    def telling(self) -> AbstractAsyncContextManager[None]:
        """Waits until nobody else tells, in whatever process, and keeps it so."""
        ...

    async def take_over(self, now: float, horizon: float) -> int:
        """How many calls a dead process left under way; to be called first by whoever tells.

        They may arrive for `horizon` seconds from now.
        """
        ...

    async def take(self, source_name: str, now: float, limits: Limits) -> Telling | float | None:
        """The next status to tell, marked as under way, and `limits` kept with it; or when there will be one.

        None: nothing waits. First statuses and final ones go before others. One whose context may still be reached
        by an older call waits for that.
        """
        ...

    async def ended(
        self, telling: Telling, ending: Ending, *, now: float, horizon: float, limits: Limits
    ) -> None:
        """What became of it. A newer one that arrived meanwhile is pending; a dead one leaves a letter.

        Nothing happens when another has taken over: to that one the call is uncertain.
        """
        ...

    async def hurry(self, source_name: str, now: float) -> None:
        """The forge is back: what waits for another try is due now, unless an older call may still arrive."""
        ...

    async def limits(self, source_name: str) -> Limits:
        """Those kept last."""
        ...

    async def letters(self, limit: int) -> Sequence[Letter]:
        """Dead letters to publish, oldest first."""
        ...

    async def published(self, row_ids: Sequence[int]) -> None:
        """These letters are with the broker."""
        ...

    async def pending(self) -> int:
        """How many statuses are to be told."""
        ...

    async def shown(self, request_id: str) -> Sequence[Shown]:
        """The contexts whose newest status is of a request."""
        ...

    async def purge(self, before: float) -> int:
        """Forget what was settled before that moment; how many."""
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event set whenever something new may be pending."""
        ...
