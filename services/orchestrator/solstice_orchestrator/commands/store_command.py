"""`solstice store` and `solstice purge`: maintain the database of the orchestrators."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, note_when_slow, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.errors import ConfigurationError
from solstice_common.settings import is_postgresql, sqlite_path, without_password
from solstice_common.values.quantities import quantity
from solstice_orchestrator.settings import StoreSettings
from solstice_orchestrator.stages.retention import purge_all
from solstice_orchestrator.store import open_store

if TYPE_CHECKING:
    from solstice_orchestrator.store.admin.check import StoreCheck
    from solstice_orchestrator.store.admin.move import MoveResult
    from solstice_orchestrator.store.admin.move import Progress as ReportProgress

app: Final = typer.Typer(
    help="The database: migrate, check, move.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)


@app.command("migrate")
@with_settings(StoreSettings)
def migrate_store(settings: StoreSettings, *, as_json: AsJson = False) -> None:
    """Bring the schema up to date. Every start of an orchestrator does so.

    Safe to repeat, and beside others.
    """

    async def work() -> "StoreCheck":
        async with open_store(settings.database_url):
            pass
        return await _check(settings.database_url)

    with _note_when_slow(settings):
        report = asyncio.run(work())
    if as_json:
        print_json({"database": report.database, "version": report.version})
    else:
        typer.echo(f"{report.database} has schema version {report.version}")


@app.command("check")
@with_settings(StoreSettings)
def check_store(settings: StoreSettings, *, as_json: AsJson = False) -> None:
    """Check the database. Shows the schema and counts of rows, and changes nothing.

    Exits 0 when all is well, 1 when there is something to migrate or to fix, 3 when the database does not answer.
    """
    with _note_when_slow(settings):
        report = asyncio.run(_check(settings.database_url))
    if as_json:
        print_json({**asdict(report), "well": report.well})
    else:
        typer.echo(f"database  {report.database}")
        typer.echo(f"schema    version {report.version}, of {report.known} that this Solstice CI knows")
        for table, count in report.counts.items():
            typer.echo(f"rows      {count} {table}")
        if report.pending:
            typer.echo(f"pending   {', '.join(map(str, report.pending))}: run 'solstice store migrate'")
        for problem in report.problems:
            typer.secho(f"problem   {problem}", fg=typer.colors.RED)
        if report.well:
            typer.echo("all is well")
    if not report.well:
        raise typer.Exit(Exit.FAILED)


@app.command("move")
def move_store(
    *,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The store to move: sqlite:///FILE.")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="An empty database: postgresql://USER@HOST/DATABASE; the password may be in PGPASSWORD.",
        ),
    ],
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Move although an orchestrator was active a moment ago.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a SQLite store into PostgreSQL. The target must be empty.

    End the orchestrators first. All of it arrives, or nothing: after an interruption, begin again. The source stays
    as it is; keep it until you have seen the new store at work.
    """
    if not is_postgresql(target):
        raise ConfigurationError(f"--to: {without_password(target)!r} does not start with postgresql://")
    path = sqlite_path(source)
    with (
        note_when_slow(f"the database at {without_password(target)}") as answers,
        _progress(answers) as report,
    ):
        moved = asyncio.run(_move(path, target, in_use=in_use, report=report))
    if as_json:
        print_json({"from": str(path), "to": without_password(target), "rows": moved.rows})
        return
    for table, count in moved.rows.items():
        typer.echo(f"moved     {count} {table}")
    typer.echo(f"now start the orchestrators with DATABASE_URL={without_password(target)}")


@with_settings(StoreSettings)
def purge(
    settings: StoreSettings,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="How long ago a run must have ended: 30d, 12h, 90m, 60s.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print how many there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old runs with their jobs and logs.

    Goes in small steps beside the orchestrators' work, and may be interrupted. RETENTION_DAYS does the same by itself.
    """
    seconds = age_given("--older-than", older_than)

    async def work() -> int:
        async with open_store(settings.database_url) as store:
            if dry_run:
                return await store.purgeable(seconds)
            return await purge_all(store, seconds)

    with _note_when_slow(settings):
        runs = asyncio.run(work())
    if as_json:
        print_json({"runs": runs, "older_than_seconds": seconds, "removed": not dry_run})
    else:
        ended = f"{quantity(runs, 'run')} that ended more than {older_than} ago"
        typer.echo(f"would remove {ended}" if dry_run else f"removed {ended}")


def _note_when_slow(settings: StoreSettings) -> AbstractContextManager[object]:
    return note_when_slow(f"the database at {without_password(settings.database_url)}")


# Imported late: the other commands of `solstice` do not wait for PostgreSQL's client library.


async def _check(url: str) -> "StoreCheck":
    from solstice_orchestrator.store.admin.check import check  # noqa: PLC0415

    return await check(url)


async def _move(source: Path, target: str, *, in_use: bool, report: "ReportProgress") -> "MoveResult":
    from solstice_orchestrator.store.admin.move import move  # noqa: PLC0415

    return await move(source, target, in_use=in_use, progress=report)


@contextmanager
def _progress(answers: Callable[[], None]) -> Iterator["ReportProgress"]:
    """Show a bar per table, on a terminal; `answers` is called before the first."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tables: dict[str, TaskID] = {}

        def report(table: str, done: int, total: int) -> None:
            answers()
            if table not in tables:
                tables[table] = bars.add_task(table, total=total)
            bars.update(tables[table], completed=done)

        yield report
