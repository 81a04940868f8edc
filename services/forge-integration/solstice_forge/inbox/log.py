"""The decision log: which deliveries arrived, what they asked for, and why each was decided.

It is the interface for readers of the inbox.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from solstice_common.values.value import Value
from solstice_forge.inbox.protocol import Decision


class DeliveryFilter(Value, frozen=True, kw_only=True):
    """Which deliveries to list; None means any."""

    source: str | None = None
    repository: str | None = None
    """The full name as the forge writes it: `owner/name`."""
    decision: Decision | None = None
    reason: str | None = None
    since: float | None = None
    """Received at this time or later, in seconds since the epoch."""


class DeliveryEntry(Value, frozen=True, kw_only=True):
    """One genuine delivery and the decision about it."""

    row_id: int
    """Its number in this inbox; later deliveries have higher numbers."""
    source_name: str
    delivery_id: str
    event_name: str
    received_at: float
    repo_full_name: str | None
    decision: Decision
    reason: str
    detail: str
    request_ids: tuple[str, ...]
    """The run it asked for; for a duplicate, the run of the delivery it repeats."""
    repeats: int | None
    """The number of the delivery that it copies, also when that one is no longer stored."""
    published: bool | None
    """Whether the broker has the request.

    None: it asks for nothing, or the forge must be asked first.
    """
    attempts: int
    """How often the relay tried to publish the request."""
    last_failure: str | None
    """The last error of the broker, or of the forge when it was asked."""


class RecordedDelivery(Value, frozen=True, kw_only=True):
    """Everything that is stored of one delivery."""

    entry: DeliveryEntry
    headers: Mapping[str, str]
    """Without signatures and tokens; empty for a copy, and once they are removed."""
    body: bytes
    """The JSON text; empty when it asked for nothing, for a copy, and once it is removed."""
    request: bytes | None
    """The canonical `jobrequest.v1` or `jobcancel.v1` that it asked for."""


class DeliveryPage(Value, frozen=True, kw_only=True):
    """One page of deliveries, newest first."""

    entries: Sequence[DeliveryEntry]
    next: int | None
    """`before` of the page with the older ones; None at the end. A page may be short or empty and have a next one."""


class DeliveryLog(Protocol):
    """Reads the log at any time, from any process, without blocking writers. Raises only StoreUnavailable."""

    async def entries(
        self, filters: DeliveryFilter, *, limit: int, before: int | None = None
    ) -> DeliveryPage:
        """Return deliveries with numbers below `before` (None: the newest), newest first."""
        ...

    async def recorded(self, row_id: int) -> RecordedDelivery | None:
        """Return the delivery of this number."""
        ...

    async def numbers_of(self, delivery_id: str) -> Sequence[int]:
        """Return the numbers of the deliveries with this id, oldest first.

        They may be of any source, and copies are included.
        """
        ...

    async def copies_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        """Return the first later copies of a delivery, oldest first."""
        ...

    async def replays_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        """Return the replays of this delivery, oldest first."""
        ...
