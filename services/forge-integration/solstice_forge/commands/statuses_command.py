"""The command line of `statuses`."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Final

import msgspec
import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from solstice_common.broker import open_broker, open_dead_letter_queues
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, json_option, note_when_slow, one_line, print_json, print_rows
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.settings import BrokerSettings, without_password
from solstice_forge.statuses.dead_statuses import DeadStatus, ReplayedStatuses, dead_statuses, replay

CONNECT_SECONDS: Final = 10.0
MOST: Final = 200
_SHA_DIGITS: Final = 10
TABLE_COLUMNS: Final = 100
"""On narrower terminals each dead letter has lines of its own."""
Limit = Annotated[int, typer.Option(min=1, max=MOST, help="At most so many, those that died first.")]


def statuses_commands() -> typer.Typer:
    """`statuses dead` and `statuses replay`."""
    commands = typer.Typer(
        name="statuses",
        help="Refused statuses: dead, replay.",
        no_args_is_help=True,
        context_settings=CONTEXT_SETTINGS,
    )
    commands.command("dead")(with_settings(BrokerSettings)(dead_command))
    commands.command("replay")(with_settings(BrokerSettings)(replay_command))
    return commands


def dead_command(
    settings: BrokerSettings,
    *,
    limit: Limit = 50,
    as_json: Annotated[bool, json_option(prints="A JSON array instead of a table.")] = False,
) -> None:
    """List refused statuses. They stay dead letters."""

    async def load() -> Sequence[DeadStatus]:
        async with open_dead_letter_queues(settings.amqp_url, name="statuses dead") as queues:
            return await dead_statuses(queues, limit)

    with _note_when_slow(settings):
        dead_letters = asyncio.run(load())
    if as_json:
        sys.stdout.buffer.write(
            orjson.dumps(msgspec.to_builtins(dead_letters), option=orjson.OPT_APPEND_NEWLINE)
        )
    elif dead_letters and not sys.stdout.isatty():
        print_rows(map(_row, dead_letters))
    elif dead_letters and (console := Console()).width < TABLE_COLUMNS:
        for dead_letter in map(_harmless, dead_letters):
            console.print(_block(dead_letter), markup=False, highlight=False)
    elif dead_letters:
        console.print(_table([*map(_harmless, dead_letters)]))
    else:
        typer.echo("no dead letters: every forge took its statuses")


def replay_command(
    settings: BrokerSettings,
    *,
    limit: Limit = MOST,
    reason: Annotated[
        str | None, typer.Option(help="Only those with this reason, such as not_found.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send refused statuses once more. Fix the cause first.

    A status that is no longer the newest of its context is dropped.

    Exits 1 when the broker did not take all of them.
    """

    async def send() -> ReplayedStatuses:
        name = "forge-integration statuses replay"
        async with (
            open_broker(settings.amqp_url, name=name) as broker,
            open_dead_letter_queues(settings.amqp_url, name=name) as queues,
        ):
            await broker.ready(CONNECT_SECONDS)
            return await replay(broker, queues, limit, reason=reason, by=name)

    with _note_when_slow(settings):
        done = asyncio.run(send())
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        typer.echo(
            f"sent {done.sent} again" + (f"; the broker did not take {done.left}" if done.left else "")
        )
    if done.broken_off:
        typer.echo(f"broken off: {done.broken_off}. Run it again: what is sent twice counts once", err=True)
    if done.left or done.broken_off:
        raise typer.Exit(1)


def _note_when_slow(settings: BrokerSettings) -> AbstractContextManager[object]:
    return note_when_slow(f"the broker at {without_password(settings.amqp_url)}")


def _row(dead_letter: DeadStatus) -> Sequence[object]:
    """Return the columns of `_table` with whole values, for pipes."""
    return (
        dead_letter.refused_at,
        dead_letter.source_name,
        dead_letter.repository,
        dead_letter.commit_sha,
        dead_letter.context,
        dead_letter.state,
        dead_letter.reason,
        dead_letter.detail,
    )


def _harmless(dead_letter: DeadStatus) -> DeadStatus:
    """Return it with texts of one line that steer no terminal.

    A stranger may have published it.
    """
    texts = {
        name: one_line(value)
        for name, value in msgspec.structs.asdict(dead_letter).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(dead_letter, **texts)


def _block(dead_letter: DeadStatus) -> str:
    """Return a dead letter in lines of its own, for narrow terminals."""
    return (
        f"{dead_letter.refused_at}  {dead_letter.source_name}  {dead_letter.state}\n  {dead_letter.repository} {dead_letter.commit_sha[:_SHA_DIGITS]}\n"
        f"  {dead_letter.context}\n  {dead_letter.reason}: {dead_letter.detail}\n"
    )


def _table(dead_letters: Sequence[DeadStatus]) -> Table:
    table = Table(
        "refused", "source", "repository", "commit", "context", "state", "reason", "the forge's answer"
    )
    for dead_letter in dead_letters:
        table.add_row(
            dead_letter.refused_at,
            escape(dead_letter.source_name),
            escape(dead_letter.repository),
            dead_letter.commit_sha[:_SHA_DIGITS],
            escape(dead_letter.context),
            escape(dead_letter.state),
            escape(dead_letter.reason),
            escape(dead_letter.detail),
        )
    return table
