"""`solstice`: the one command over everything. A subcommand is imported when it is called."""

from typing import Annotated, Final

import typer

from solstice_common import __version__
from solstice_common.cli.lazy import Deferred, lazily
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, run

RUN: Final = "Run it"
LOOK: Final = "Look and steer"
SET_UP: Final = "Set up and try"


def _deferred(panel: str, name: str, place: str, sentence: str) -> Deferred:
    return Deferred(name=name, help=sentence, panel=panel, place=place)


COMMANDS: Final = (
    _deferred(
        RUN,
        "up",
        "solstice_cli.up:up",
        "Start everything on this machine and stay up: webhooks, orchestrator, page. Ctrl-C ends it in order.",
    ),
    _deferred(
        RUN,
        "enqueue",
        "solstice_cli.commands.enqueue:enqueue",
        "Ask for a commit to be built; with --wait, exit 0 when it succeeded and 1 when it did not.",
    ),
    _deferred(
        LOOK,
        "runs",
        "solstice_cli.commands.reading:runs",
        "List runs, newest first. In a pipe: tab-separated, whole values, no heading.",
    ),
    _deferred(
        LOOK,
        "jobs",
        "solstice_cli.commands.reading:jobs",
        "List jobs: of one run in workflow order, else newest first.",
    ),
    _deferred(
        LOOK,
        "show",
        "solstice_cli.commands.reading:show",
        "Show one run with its jobs, or one job with its attempts.",
    ),
    _deferred(
        LOOK, "attempts", "solstice_cli.commands.reading:attempts", "List every try at a job, oldest first."
    ),
    _deferred(
        LOOK,
        "why",
        "solstice_cli.commands.why:why",
        "Say why a job waits, how many go before it, and when it may start; of a run for each job that waits.",
    ),
    _deferred(
        LOOK,
        "scale",
        "solstice_cli.commands.scale:scale",
        "Say how much work there is for each label, and how many slots it takes: what an autoscaler asks.",
    ),
    _deferred(
        LOOK,
        "logs",
        "solstice_cli.commands.logs:logs",
        "Print logs. A run's logs carry the job's name before each line.",
    ),
    _deferred(
        LOOK,
        "cancel",
        "solstice_cli.commands.steering:cancel",
        "End a run or a job: at once if it waits, by stopping its processes if it runs.",
    ),
    _deferred(
        LOOK,
        "approve",
        "solstice_cli.commands.steering:approve",
        "Let the jobs of a run that wait for approval go on: code of somebody who may not push. Look at it before.",
    ),
    _deferred(
        LOOK,
        "rerun",
        "solstice_cli.commands.steering:rerun",
        "Build the commit of a run once more, as a new run; of a job: that job, and those that need it.",
    ),
    _deferred(
        LOOK,
        "priority",
        "solstice_cli.commands.steering:priority",
        "Put a job that has not ended into another priority class, where it is the newest.",
    ),
    _deferred(
        LOOK,
        "workers",
        "solstice_cli.commands.workers:app",
        "Who runs jobs: list, show, pause, resume, drain, quarantine.",
    ),
    _deferred(
        LOOK,
        "schedules",
        "solstice_cli.commands.schedules:app",
        "What is built regularly: list, show, next, add, edit, pause, resume, fire, remove.",
    ),
    _deferred(
        SET_UP,
        "store",
        "solstice_orchestrator.store_command:app",
        "The database of runs and jobs: bring it up to date, check it, move it.",
    ),
    _deferred(
        SET_UP,
        "purge",
        "solstice_orchestrator.store_command:purge",
        "Remove old finished runs from the store, with their jobs and logs.",
    ),
    _deferred(
        SET_UP,
        "simulate",
        "solstice_orchestrator.simulate_command:app",
        "Try slots, caps and rates on a trace of jobs, in virtual time.",
    ),
    _deferred(
        SET_UP,
        "token",
        "solstice_cli.commands.token:app",
        "Tokens for the HTTP APIs and the pages: create, list, revoke.",
    ),
    _deferred(
        SET_UP, "topology", "solstice_cli.commands.topology:app", "The exchanges and queues on the broker."
    ),
    _deferred(SET_UP, "schema", "solstice_cli.commands.schema:app", "The JSON schemas of the messages."),
    _deferred(SET_UP, "webhook", "solstice_cli.commands.webhook:app", "Try webhooks without a forge."),
)
"""The sentences are those of the commands themselves; a test compares them."""

app = typer.Typer(
    name="solstice",
    help="Solstice CI: a push becomes a message, a job, a log and a result.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
    cls=lazily(COMMANDS),
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


@app.command(rich_help_panel=SET_UP)
def version(*, as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        typer.echo(f"solstice {__version__}")


def main() -> None:
    """The console script."""
    run(app)
