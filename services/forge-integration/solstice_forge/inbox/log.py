"""The decision log: what arrived, what was decided about it and why, what it asked for. What readers of the inbox get."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from solstice_common.values import Value
from solstice_forge.inbox.protocol import Decision


class DeliveryFilter(Value, frozen=True, kw_only=True):
    """Which deliveries to list; what is None does not matter."""

    source: str | None = None
    repository: str | None = None
    """In full, as the forge writes it: `owner/name`."""
    decision: Decision | None = None
    reason: str | None = None
    since: float | None = None
    """Received then or later, in seconds since the epoch."""


class DeliveryEntry(Value, frozen=True, kw_only=True):
    """One genuine delivery and its verdict."""

    row_id: int
    """Its number here; later ones have higher numbers."""
    source_name: str
    delivery_id: str
    event_name: str
    received_at: float
    repo_full_name: str | None
    decision: Decision
    reason: str
    detail: str
    request_ids: tuple[str, ...]
    """Of the run it asked for; of a duplicate, those of the delivery it repeats."""
    repeats: int | None
    """Number of the delivery that it is a copy of; also when that is no longer kept."""
    published: bool | None
    """Whether the request is with the broker; None for what asks for nothing by itself, or not before the forge was asked."""
    attempts: int
    """How often the request was offered to the broker."""
    last_failure: str | None
    """What the broker said when it last did not take it, or the forge when it last did not tell."""


class RecordedDelivery(Value, frozen=True, kw_only=True):
    """Everything that is kept of one delivery."""

    entry: DeliveryEntry
    headers: Mapping[str, str]
    """Without signatures and tokens; empty for a copy, and once they are no longer kept."""
    body: bytes
    """The JSON text; empty for what asked for nothing, for a copy, and once it is no longer kept."""
    request: bytes | None
    """The canonical `jobrequest.v1` or `jobcancel.v1` that it asked for."""


class DeliveryPage(Value, frozen=True, kw_only=True):
    """One page of deliveries, newest first."""

    entries: Sequence[DeliveryEntry]
    next: int | None
    """`before` of the page with the older ones; None at the end. A page may be short, even empty, and have a next one."""


class DeliveryLog(Protocol):
    """Reading the log. It may be read at any time, from any process, and holds up nobody. Raises only StoreUnavailable."""

    async def entries(
        self, filters: DeliveryFilter, *, limit: int, before: int | None = None
    ) -> DeliveryPage:
        """Deliveries with numbers below `before` (None: the newest), newest first."""
        ...

    async def recorded(self, row_id: int) -> RecordedDelivery | None:
        """The delivery of this number."""
        ...

    async def numbers_of(self, delivery_id: str) -> Sequence[int]:
        """The numbers of the deliveries that came under this id, of whatever source, copies too; oldest first."""
        ...

    async def copies_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        """The first copies of a delivery that came later: oldest first."""
        ...

    async def replays_of(self, row_id: int, *, limit: int) -> Sequence[DeliveryEntry]:
        """The deliveries that a person made of this one: oldest first."""
        ...
