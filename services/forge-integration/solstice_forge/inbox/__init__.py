"""Stores deliveries until the broker has their requests, and logs what was decided.

The scheme of the inbox's URL chooses the database.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from solstice_common.settings import is_postgresql
from solstice_forge.inbox.log import DeliveryLog
from solstice_forge.inbox.protocol import Inbox, Lookups
from solstice_forge.inbox.reconcile_state import ReconcileState
from solstice_forge.inbox.sweeping import InboxCleanup
from solstice_forge.inbox.traced_requests import RequestTraces


class InboxStore(Inbox, Lookups, RequestTraces, DeliveryLog, InboxCleanup, Protocol):
    """All interfaces of an inbox; each user asks for the part that it needs."""

    @property
    def reconcile_state(self) -> ReconcileState: ...


@asynccontextmanager
async def open_inbox(url: str) -> AsyncIterator[InboxStore]:
    """Open the inbox at `url` and bring its schema up to date.

    The URL is `sqlite:///FILE`, `memory:` or `postgresql://...`. Raises ConfigurationError for any other, StoreUnavailable,
    SchemaTooNew.
    """
    # Imported here: a process that uses one inbox does not load the other's client library.
    if is_postgresql(url):
        from solstice_forge.inbox.postgresql import PostgreSQLInbox  # noqa: PLC0415

        async with PostgreSQLInbox.open(url) as shared:
            yield shared
    else:
        from solstice_forge.inbox.sqlite.inbox import SqliteInbox  # noqa: PLC0415

        async with SqliteInbox.open(url) as inbox:
            yield inbox
