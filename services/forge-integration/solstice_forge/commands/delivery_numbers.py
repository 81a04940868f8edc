"""Completes the numbers of deliveries. Without an answer of the inbox there are none."""

import asyncio
from collections.abc import Sequence
from typing import Final

import typer

from solstice_common.cli.options import found_settings
from solstice_common.settings import sqlite_path
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter
from solstice_forge.settings import DeliveriesSettings

SECONDS: Final = 2.0
NEWEST: Final = 100


def newest_numbers(context: typer.Context, incomplete: str) -> Sequence[tuple[str, str]]:
    """Return the newest deliveries whose numbers begin so, each with what it is."""
    url = context.params.get("forge_inbox_url")
    settings = found_settings(DeliveriesSettings, {} if url is None else {"forge_inbox_url": url})
    where = settings.forge_inbox_url
    if where.startswith("sqlite:") and not sqlite_path(where).exists():
        return ()

    async def found_entries() -> Sequence[DeliveryEntry]:
        async with asyncio.timeout(SECONDS), open_inbox(where) as inbox:
            return (await inbox.entries(DeliveryFilter(), limit=NEWEST)).entries

    return [
        (
            str(each.row_id),
            f"{each.event_name} of {each.repo_full_name or each.source_name}, {each.decision.value}",
        )
        for each in asyncio.run(found_entries())
        if str(each.row_id).startswith(incomplete)
    ]
