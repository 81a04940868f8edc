"""`purge`: old deliveries, or only their bodies, removed from the inbox now instead of by and by."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Annotated, Final

import orjson
import typer

from solstice_common.commandline import with_settings
from solstice_common.errors import ConfigurationError
from solstice_forge.inbox import open_inbox
from solstice_forge.retention import sweep
from solstice_forge.settings import InboxSettings

_AGE: Final = re.compile(r"(\d{1,6})([dhm])")
_UNITS: Final[Mapping[str, float]] = {"d": 86_400.0, "h": 3600.0, "m": 60.0}


@with_settings(InboxSettings)
def purge_command(
    settings: InboxSettings,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="How long ago they must have been received: 90d, 12h, 90m.")
    ],
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Only bodies and headers; what was decided stays.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many deliveries would be forgotten.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove old deliveries from the inbox; requests that are not with the broker yet stay.

    Goes in small steps beside the service, and may be interrupted. A delivery that was forgotten is not recognised when
    it comes again. FORGE_RETENTION_DAYS and FORGE_MEMORY_DAYS do the same by themselves.
    """
    seconds = _seconds(older_than)
    if bodies and dry_run:
        raise ConfigurationError("--dry-run counts whole deliveries: leave out --bodies")

    async def work() -> int:
        before = time.time() - seconds
        async with open_inbox(settings.forge_inbox_url) as inbox:
            if dry_run:
                return await inbox.forgettable(before)
            removed = await sweep(inbox.strip, before)
            return removed if bodies else await sweep(inbox.forget, before)

    count = asyncio.run(work())
    if as_json:
        document = {"bodies" if bodies else "deliveries": count, "removed": not dry_run}
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    what = "the bodies of " if bodies else ""
    verb = "would remove" if dry_run else "removed"
    noun = "delivery" if count == 1 else "deliveries"
    typer.echo(f"{verb} {what}{count} {noun} received more than {older_than} ago")


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if match is None:
        raise ConfigurationError(f"--older-than: {age!r} is no age; write 90d, 12h or 90m")
    return int(match[1]) * _UNITS[match[2]]
