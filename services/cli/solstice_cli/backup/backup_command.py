"""`solstice backup` and `solstice restore`."""

import asyncio
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from solstice_cli.backup.making import make_backup
from solstice_cli.backup.manifest import BackupManifest
from solstice_cli.backup.parts import BackupPart, BackupSettings, DatabaseName, databases
from solstice_cli.backup.restoring import RestoreResult, restore_backup
from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.settings import without_password
from solstice_common.values.quantities import quantity
from solstice_common.values.times import format_seconds

Only = Annotated[
    list[BackupPart] | None,
    typer.Option("--only", help="Only this part; may be repeated.", show_default="all"),
]
ReportProgress = Callable[[str, int, int | None], None]


@with_settings(BackupSettings)
def backup(
    settings: BackupSettings,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; it never replaces one.")],
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Copy the databases of both services into one file, while they work.

    Everything is of one moment. The file is for its owner alone: it has all that the databases have.
    """
    chosen = databases(settings, only or list(BackupPart))
    with _bars() as report:
        manifest = asyncio.run(
            make_backup(file, chosen, left_out=_left_out(settings, only or list(BackupPart)), progress=report)
        )
    if as_json:
        print_json(_document(file, manifest))
        return
    for copy in manifest.databases:
        typer.echo(f"{copy.name:9} {copy.where}, schema version {copy.version}, {_bytes(copy.size)}")
    for sentence in manifest.left_out:
        typer.echo(f"left out  {sentence}")
    typer.echo(f"wrote {file} ({_bytes(file.stat().st_size)})")


@with_settings(BackupSettings)
def restore(
    settings: BackupSettings,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What 'solstice backup' wrote.")],
    only: Only = None,
    republish: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Publish requests once more that arrived so long before the backup, or later, and that the restored store does not know.",
        ),
    ] = "3d",
    as_json: AsJson = False,
) -> None:
    """Put the databases of a backup where there are none yet. Stop the services first.

    The whole file is verified before anything is written. After an interruption start it again: it goes on.
    """
    seconds = age_given("--republish", republish)
    chosen = databases(settings, only or list(BackupPart))
    inbox = next(each for each in databases(settings, list(BackupPart)) if each.name is DatabaseName.INBOX)
    with _bars() as report:
        result = asyncio.run(
            restore_backup(
                file,
                chosen,
                living_inbox=inbox if inbox.is_server or inbox.path.exists() else None,
                republish_seconds=seconds,
                progress=report,
            )
        )
    if as_json:
        print_json(
            {
                **_document(file, result.manifest),
                "restored": [
                    {"name": name, "to": target.where, "was_there": name in result.already}
                    for name, target in result.restored.items()
                ],
                "republished": result.republished,
            }
        )
    else:
        _print_restored(result)


def _print_restored(result: RestoreResult) -> None:
    for name, target in result.restored.items():
        verb = "is already in" if name in result.already else "restored to"
        typer.echo(f"{name:9} {verb} {target.where}")
    typer.echo(f"it is as of {format_seconds(result.manifest.created_at)}")
    if result.republished:
        typer.echo(
            f"{quantity(result.republished, 'request')} of the inbox, unknown to the store, will be published once more"
        )
    typer.echo("now start the services")


def _left_out(settings: BackupSettings, parts: Collection[BackupPart]) -> Sequence[str]:
    """Return what a backup of these parts does not hold, as sentences."""
    sentences = [f"the {part}, as --only says" for part in BackupPart if part not in parts]
    if BackupPart.BROKER in parts and not settings.amqp_url.startswith("sqlite:"):
        sentences.append(f"the messages in {without_password(settings.amqp_url)}: back up the broker itself")
    return sentences


def _document(file: Path, manifest: BackupManifest) -> dict[str, Any]:
    return {
        "file": str(file),
        "created_at": format_seconds(manifest.created_at),
        "version": manifest.solstice_version,
        "databases": [
            {
                "name": copy.name,
                "kind": copy.kind,
                "where": copy.where,
                "schema": copy.version,
                "bytes": copy.size,
            }
            for copy in manifest.databases
        ],
        "left_out": list(manifest.left_out),
    }


def _bytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


@contextmanager
def _bars() -> Iterator[ReportProgress]:
    """Show a bar for each part, on a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
