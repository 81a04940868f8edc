"""The interface of the store of statuses, which never loses a context's newest.

One process at a time, the leader, sends statuses to the forges.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, Protocol

from solstice_common.values.value import Value
from solstice_forge.remote.call_pacing import CallLimits
from solstice_forge.statuses.call_endings import CallEnding
from solstice_forge.statuses.reportable_status import ReportableStatus

SETTLED_DAYS: Final = 30.0
"""How long a row stays after its status was sent: an older status that comes late must find it."""


class StatusKeepResult(StrEnum):
    """The result of storing a status."""

    WANTED = "wanted"
    """It will be sent, and replaces an unsent one of its context."""
    STALE = "stale"
    """The same or a newer one of its context came before."""


class ReportPhase(StrEnum):
    PENDING = "pending"
    REPORTED = "reported"
    DEAD = "dead"


class OutgoingStatus(Value, frozen=True, kw_only=True):
    """A status that is about to be sent, marked as under way."""

    row_id: int
    repository: str
    place: str
    run_id: str
    state: str
    final: bool
    request_id: str
    stored_at: float
    body: bytes
    failures: int
    failing_since: float | None
    since: float
    """When it was marked."""
    calls: int
    check_id: int | None
    """The check run that shows this run's context, if there is one."""


class StatusDeadLetter(Value, frozen=True, kw_only=True):
    """A status that its forge did not take, to be published as a dead letter."""

    row_id: int
    request_id: str
    body: bytes
    headers: Mapping[str, str | int]


class ContextStatus(Value, frozen=True, kw_only=True):
    """The status of one context, for people."""

    source_name: str
    repository: str
    commit_sha: str
    context: str
    run_id: str
    state: str
    phase: ReportPhase
    reported_state: str
    """The state that the forge shows; empty: none yet."""
    reported_at: float | None
    failures: int
    last_failure: str
    next_at: float


class StatusStore(Protocol):
    """Durable statuses, one row for each context.

    Raises only StoreUnavailable; `now` in seconds since the epoch.
    """

    async def keep(self, statuses: Sequence[ReportableStatus], now: float) -> Sequence[StatusKeepResult]:
        """Store statuses newer than the known ones; durable on return.

        A dead one that comes again is tried again.
        """
        ...

    def lead(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other process is the leader, and hold the leader lock."""
        ...

    async def take_over(self, now: float, horizon: float) -> int:
        """Return how many calls a dead process left under way; the leader calls it first.

        They may arrive for `horizon` seconds from now.
        """
        ...

    async def take(self, source_name: str, now: float, limits: CallLimits) -> OutgoingStatus | float | None:
        """Return the next status to send, or when there will be one; None: nothing waits.

        The status is marked as under way, and `limits` are stored with the mark. First statuses and final ones go
        before others. A status waits while an older call may still reach its context.
        """
        ...

    async def ended(
        self, outgoing: OutgoingStatus, ending: CallEnding, *, now: float, horizon: float, limits: CallLimits
    ) -> None:
        """Store the result of a call.

        A newer status that arrived meanwhile is pending; an undeliverable one leaves a dead letter. There is no effect
        when another process has taken over, for which the call is uncertain.
        """
        ...

    async def retry_now(self, source_name: str, now: float) -> None:
        """Make waiting retries due now, because the forge works again.

        Not those whose older call may still arrive.
        """
        ...

    async def limits(self, source_name: str) -> CallLimits:
        """Return the limits that were stored last."""
        ...

    async def dead_letters(self, limit: int) -> Sequence[StatusDeadLetter]:
        """Return dead letters to publish, oldest first."""
        ...

    async def published(self, row_ids: Sequence[int]) -> None:
        """Record that the broker has these dead letters."""
        ...

    async def pending(self) -> int:
        """Return how many statuses are to be sent."""
        ...

    async def shown(self, request_id: str) -> Sequence[ContextStatus]:
        """Return the contexts whose newest status is of a request."""
        ...

    async def purge(self, before: float) -> int:
        """Remove rows settled before that time; return how many."""
        ...

    def changes(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Return an event that is set whenever a new status may be pending."""
        ...
