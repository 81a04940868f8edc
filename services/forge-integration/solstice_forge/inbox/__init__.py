"""Where deliveries are kept until their requests are with the broker, and what was decided; the URL's scheme chooses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from solstice_forge.inbox.log import DeliveryLog
from solstice_forge.inbox.protocol import Inbox, Lookups
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.inbox.sweeping import InboxCleanup


class InboxStore(Inbox, Lookups, DeliveryLog, InboxCleanup, Protocol):
    """All that an inbox can do; those who use it ask for the part they need."""

    @property
    def reconcile_state(self) -> ReconcileState: ...


@asynccontextmanager
async def open_inbox(url: str) -> AsyncIterator[InboxStore]:
    """The inbox at `url` (`sqlite:///FILE`, `postgresql://...`), with its schema brought up to date.

    Raises ConfigurationError for a URL that names none, StoreUnavailable, SchemaTooNew.
    """
    # Imported late: a process that uses one inbox does not pay for the other's client library.
    if url.partition(":")[0] in {"postgresql", "postgres"}:
        from solstice_forge.inbox.postgresql import PostgreSQLInbox  # noqa: PLC0415

        async with PostgreSQLInbox.open(url) as shared:
            yield shared
    else:
        from solstice_forge.inbox.sqlite.inbox import SqliteInbox  # noqa: PLC0415

        async with SqliteInbox.open(url) as inbox:
            yield inbox
