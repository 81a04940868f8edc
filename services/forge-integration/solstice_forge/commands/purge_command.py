"""The command line of `purge`: removes old deliveries, or only their bodies, now."""

import asyncio
import time
from typing import Annotated

import typer

from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, note_when_slow, print_json
from solstice_common.errors import ConfigurationError
from solstice_common.settings import without_password
from solstice_common.values.quantities import quantity
from solstice_forge.inbox import open_inbox
from solstice_forge.inbox.retention import sweep
from solstice_forge.settings import InboxSettings


@with_settings(InboxSettings)
def purge_command(
    settings: InboxSettings,
    *,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="How long ago they must have been received: 90d, 12h, 90m, 60s."),
    ],
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Only bodies and headers; decisions stay.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how many deliveries would be removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old deliveries. Unpublished requests stay.

    It works in small steps beside the service, and may be interrupted. A removed delivery is not recognised when it
    comes again. FORGE_RETENTION_DAYS and FORGE_MEMORY_DAYS do the same by themselves.
    """
    seconds = age_given("--older-than", older_than)
    if bodies and dry_run:
        raise ConfigurationError("--dry-run counts whole deliveries: leave out --bodies")

    async def work() -> int:
        before = time.time() - seconds
        async with open_inbox(settings.forge_inbox_url) as inbox:
            if dry_run:
                return await inbox.forgettable(before)
            removed = await sweep(inbox.strip, before)
            return removed if bodies else await sweep(inbox.forget, before)

    with note_when_slow(f"the inbox at {without_password(settings.forge_inbox_url)}"):
        count = asyncio.run(work())
    if as_json:
        document = {"bodies" if bodies else "deliveries": count, "removed": not dry_run}
        print_json(document)
        return
    what = "the bodies of " if bodies else ""
    verb = "would remove" if dry_run else "removed"
    deliveries = quantity(count, "delivery", "deliveries")
    typer.echo(f"{verb} {what}{deliveries} received more than {older_than} ago")
