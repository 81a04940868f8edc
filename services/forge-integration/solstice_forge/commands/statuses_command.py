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

from solstice_common.broker import open_broker
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import said_when_slow
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.settings import BrokerSettings, without_password
from solstice_common.topology import STATUSES, QueueType, Topology
from solstice_forge.statuses.dead_statuses import PREFETCH, DeadStatus, Replayed, dead_statuses, replay

_SHA_DIGITS: Final = 10
TABLE_COLUMNS: Final = 100
"""On narrower terminals each dead letter has lines of its own."""
Limit = Annotated[int, typer.Option(min=1, max=PREFETCH, help="At most so many, the oldest first.")]


def statuses_commands() -> typer.Typer:
    """`statuses dead` and `statuses replay`."""
    commands = typer.Typer(
        name="statuses",
        help="Statuses that a forge does not take: the dead letters of solstice.statuses.v1.",
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
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array instead of a table.")] = False,
) -> None:
    """Show them with the forge's answer; they stay where they are."""

    async def look() -> Sequence[DeadStatus]:
        async with open_broker(settings.amqp_url, name="statuses dead") as broker:
            return await dead_statuses(broker, _topology(settings), limit)

    with _said(settings):
        dead_letters = asyncio.run(look())
    if as_json:
        sys.stdout.buffer.write(
            orjson.dumps(msgspec.to_builtins(dead_letters), option=orjson.OPT_APPEND_NEWLINE)
        )
    elif dead_letters and (console := Console()).width < TABLE_COLUMNS:
        for dead_letter in dead_letters:
            console.print(_block(dead_letter), markup=False, highlight=False)
    elif dead_letters:
        console.print(_table(dead_letters))
    else:
        typer.echo("no dead letters: every forge took what it was told")


def replay_command(
    settings: BrokerSettings,
    *,
    limit: Limit = PREFETCH,
    reason: Annotated[
        str | None, typer.Option(help="Only those with this reason, such as not_found.")
    ] = None,
) -> None:
    """Send them once more, after what was wrong was mended; each is told if it is still its context's newest.

    Exits 1 when the broker did not take all of them.
    """

    async def send() -> Replayed:
        async with open_broker(settings.amqp_url, name="statuses replay") as broker:
            return await replay(broker, _topology(settings), limit, reason=reason)

    with _said(settings):
        done = asyncio.run(send())
    typer.echo(f"sent {done.sent} again" + (f"; the broker did not take {done.left}" if done.left else ""))
    if done.left:
        raise typer.Exit(1)


def _said(settings: BrokerSettings) -> AbstractContextManager[object]:
    return said_when_slow(f"the broker at {without_password(settings.amqp_url)}")


def _topology(settings: BrokerSettings) -> Topology:
    return STATUSES.topology(QueueType(settings.amqp_queue_type))


def _block(dead_letter: DeadStatus) -> str:
    """A dead letter in lines of its own, for terminals on which a table would cut it to pieces."""
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
