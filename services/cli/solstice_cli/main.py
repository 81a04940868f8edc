"""`solstice`: the one command over everything."""

from typing import Annotated

import typer
from pydantic import Field

from solstice_cli import simulate, up
from solstice_cli.commands import (
    logs,
    reading,
    scale,
    schedules,
    schema,
    steering,
    token,
    topology,
    webhook,
    why,
    workers,
)
from solstice_cli.local import local_broker_url
from solstice_cli.output import display
from solstice_common import __version__
from solstice_common.cli import commandline
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.commands.enqueue_command import enqueue_command
from solstice_orchestrator import store_command

RUN = "Run it"
LOOK = "Look and steer"
SET_UP = "Set up and try"

app = typer.Typer(
    name="solstice",
    help="Solstice CI: a push becomes a message, a job, a log and a result.",
    no_args_is_help=True,
    context_settings=commandline.CONTEXT_SETTINGS,
    cls=commandline.Commands,
)


class LocalEnqueueSettings(EnqueueSettings):
    """As `forge-integration enqueue`, but for the embedded broker of `solstice up` unless told otherwise."""

    amqp_url: str = Field(
        default_factory=local_broker_url,
        description="Broker: amqp:// or amqps:// for RabbitMQ, sqlite:///FILE for the embedded one.",
    )


def _print_version(asked: bool) -> None:  # noqa: FBT001  typer calls it with the flag's value
    if asked:
        typer.echo(f"solstice {__version__}")
        raise typer.Exit


@app.callback()
def _solstice(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Solstice CI: a push becomes a message, a job, a log and a result."""


app.command("up", rich_help_panel=RUN)(up.up)
app.command("enqueue", rich_help_panel=RUN)(enqueue_command(LocalEnqueueSettings))
app.command("runs", rich_help_panel=LOOK)(reading.runs)
app.command("jobs", rich_help_panel=LOOK)(reading.jobs)
app.command("show", rich_help_panel=LOOK)(reading.show)
app.command("attempts", rich_help_panel=LOOK)(reading.attempts)
app.command("why", rich_help_panel=LOOK)(why.why)
app.command("scale", rich_help_panel=LOOK)(scale.scale)
app.command("logs", rich_help_panel=LOOK)(logs.logs)
app.command("cancel", rich_help_panel=LOOK)(steering.cancel)
app.command("approve", rich_help_panel=LOOK)(steering.approve)
app.command("rerun", rich_help_panel=LOOK)(steering.rerun)
app.command("priority", rich_help_panel=LOOK)(steering.priority)
app.add_typer(workers.app, name="workers", rich_help_panel=LOOK)
app.add_typer(schedules.app, name="schedules", rich_help_panel=LOOK)
app.add_typer(store_command.app, name="store", rich_help_panel=SET_UP)
app.command("purge", rich_help_panel=SET_UP)(store_command.purge)
app.add_typer(simulate.app, name="simulate", rich_help_panel=SET_UP)
app.add_typer(token.app, name="token", rich_help_panel=SET_UP)
app.add_typer(topology.app, name="topology", rich_help_panel=SET_UP)
app.add_typer(schema.app, name="schema", rich_help_panel=SET_UP)
app.add_typer(webhook.app, name="webhook", rich_help_panel=SET_UP)


@app.command(rich_help_panel=SET_UP)
def version(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if as_json:
        display.print_json({"version": __version__})
    else:
        typer.echo(f"solstice {__version__}")


def main() -> None:
    """The console script."""
    commandline.run(app)
