"""`solstice doctor`: check a set-up, and say what to fix."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from solstice_cli.doctor.examination import Examination, examine
from solstice_cli.doctor.findings import Check, Finding, Level
from solstice_cli.doctor.setup_settings import SetupSettings
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, note_when_slow, one_line, print_json, print_rows
from solstice_common.cli.program import Exit

COLOURS: Final[Mapping[Level, str]] = {
    Level.OK: typer.colors.GREEN,
    Level.WARNING: typer.colors.YELLOW,
    Level.FAILURE: typer.colors.RED,
}


@with_settings(SetupSettings)
def doctor(
    settings: SetupSettings,
    *,
    only: Annotated[
        list[Check] | None,
        typer.Option("--only", help="Only this check; may be repeated.", show_default="all"),
    ] = None,
    webhook_url: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Where forges reach forge-integration.", show_default="its own host and port"
        ),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long a server may take to answer."),
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Check a set-up, and say what to fix. Changes nothing.

    Run it as the user of the services, with their settings. Exit 1 when a check fails; warnings alone exit 0.
    """
    visit = Examination(settings=settings, webhook_url=webhook_url, seconds=seconds)
    with note_when_slow("the servers of the set-up"):
        found = asyncio.run(examine(visit, only or list(Check)))
    if as_json:
        print_json({"checks": [_document(each) for each in found], "well": _well(found)})
    elif sys.stdout.isatty():
        for each in found:
            _print(each)
    else:
        print_rows((each.level, each.check, each.detail, each.remedy, each.page) for each in found)
    if not _well(found):
        raise typer.Exit(Exit.FAILED)


def _well(found: Sequence[Finding]) -> bool:
    return all(each.level is not Level.FAILURE for each in found)


def _document(found: Finding) -> Mapping[str, str]:
    return {
        "check": found.check.value,
        "level": found.level.value,
        "detail": found.detail,
        "remedy": found.remedy,
        "page": found.page,
    }


def _print(found: Finding) -> None:
    typer.secho(f"{found.level:8}", fg=COLOURS[found.level], nl=False)
    typer.echo(f" {found.check:13} {one_line(found.detail)}")
    if found.remedy:
        typer.echo(f"{'':22} -> {found.remedy} ({found.page})")
