"""`solstice`: the one command over everything. A subcommand is imported when it is called."""

from typing import Annotated, Final

import typer

from solstice_common import __version__
from solstice_common.cli.completion.command_line import InstallCompletion, ShowCompletion
from solstice_common.cli.lazy import Deferred, lazily
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, run

RUN: Final = "Run it"
INSPECT: Final = "Look and steer"
SET_UP: Final = "Set up and try"


def _deferred(panel: str, name: str, target: str, sentence: str) -> Deferred:
    return Deferred(name=name, help=sentence, panel=panel, target=target)


COMMANDS: Final = (
    _deferred(
        RUN,
        "up",
        "solstice_cli.up:up",
        "Run both services on this machine.",
    ),
    _deferred(
        RUN,
        "enqueue",
        "solstice_cli.commands.enqueue:enqueue",
        "Ask for a commit to be built.",
    ),
    _deferred(
        INSPECT,
        "runs",
        "solstice_cli.commands.reading:runs",
        "List runs, newest first. In a pipe: tab-separated, full values, no heading.",
    ),
    _deferred(
        INSPECT,
        "jobs",
        "solstice_cli.commands.reading:jobs",
        "List jobs. Those of a run in workflow order, else newest first.",
    ),
    _deferred(
        INSPECT,
        "show",
        "solstice_cli.commands.reading:show",
        "Show a run with its jobs, or a job.",
    ),
    _deferred(
        INSPECT,
        "attempts",
        "solstice_cli.commands.reading:attempts",
        "List every try at a job, oldest first.",
    ),
    _deferred(
        INSPECT,
        "why",
        "solstice_cli.commands.outcomes.why:why",
        "Say why a job waits, and when it may start.",
    ),
    _deferred(
        INSPECT,
        "scale",
        "solstice_cli.commands.scale:scale",
        "Show the work and the slots of each label.",
    ),
    _deferred(
        INSPECT,
        "watermarks",
        "solstice_cli.commands.watermarks:watermarks",
        "Show how far the pushes of each branch are handled.",
    ),
    _deferred(
        INSPECT,
        "logs",
        "solstice_cli.commands.logs:logs",
        "Print logs. A run's logs carry the job's name before each line.",
    ),
    _deferred(
        INSPECT,
        "tests",
        "solstice_cli.commands.outcomes.reports:show_tests",
        "Show the tests of a run or job: counts, and those that failed.",
    ),
    _deferred(
        INSPECT,
        "explain",
        "solstice_cli.commands.outcomes.explain:explain",
        "Explain how a run or job ended, and what to do.",
    ),
    _deferred(
        INSPECT,
        "artifacts",
        "solstice_cli.commands.job_files.artifacts:app",
        "What jobs handed out. Commands: list, get.",
    ),
    _deferred(
        INSPECT,
        "cache",
        "solstice_cli.commands.job_files.caches:app",
        "What jobs saved for later ones. Commands: list, show, drop.",
    ),
    _deferred(
        INSPECT,
        "cancel",
        "solstice_cli.commands.steering:cancel",
        "End a run or a job.",
    ),
    _deferred(
        INSPECT,
        "approve",
        "solstice_cli.commands.steering:approve",
        "Let the jobs of a stranger's change start.",
    ),
    _deferred(
        INSPECT,
        "rerun",
        "solstice_cli.commands.steering:rerun",
        "Build a run once more. It becomes a new run.",
    ),
    _deferred(
        INSPECT,
        "priority",
        "solstice_cli.commands.steering:priority",
        "Change a job's priority. The job must not have ended.",
    ),
    _deferred(
        INSPECT,
        "dlq",
        "solstice_cli.commands.dead_letters.dlq:app",
        "Dead letters: list, show, replay, drop, purge, export, import.",
    ),
    _deferred(
        INSPECT,
        "workers",
        "solstice_cli.commands.workers:app",
        "Show and steer workers. Commands: list, show, pause, resume, drain, quarantine.",
    ),
    _deferred(
        INSPECT,
        "schedules",
        "solstice_cli.commands.schedules:app",
        "Builds by cron expressions. Commands: list, show, next, add, edit, pause, resume, fire, remove.",
    ),
    _deferred(
        SET_UP,
        "store",
        "solstice_orchestrator.commands.store_command:app",
        "The database: migrate, check, move.",
    ),
    _deferred(
        SET_UP,
        "purge",
        "solstice_orchestrator.commands.store_command:purge",
        "Remove old runs with their jobs and logs.",
    ),
    _deferred(
        SET_UP,
        "backup",
        "solstice_cli.backup.backup_command:backup",
        "Copy the databases of both services into one file, while they work.",
    ),
    _deferred(
        SET_UP,
        "restore",
        "solstice_cli.backup.backup_command:restore",
        "Put the databases of a backup where there are none yet. Stop the services first.",
    ),
    _deferred(
        SET_UP,
        "simulate",
        "solstice_orchestrator.commands.simulate_command:app",
        "Simulate how long jobs would wait.",
    ),
    _deferred(
        SET_UP,
        "load",
        "solstice_cli.load.load_command:load",
        "Send a mix of requests to a running system, and report what became of them.",
    ),
    _deferred(
        SET_UP,
        "doctor",
        "solstice_cli.doctor.doctor_command:doctor",
        "Check a set-up, and say what to fix. Changes nothing.",
    ),
    _deferred(
        SET_UP,
        "token",
        "solstice_cli.commands.token:app",
        "Access tokens: create, list, revoke.",
    ),
    _deferred(
        SET_UP,
        "keys",
        "solstice_cli.commands.keys:app",
        "Signing keys: create, list, revoke.",
    ),
    _deferred(
        SET_UP,
        "topology",
        "solstice_cli.commands.topology:app",
        "Exchanges and queues: show, declare, check, migrate; the users for them.",
    ),
    _deferred(
        SET_UP,
        "workflow",
        "solstice_orchestrator.commands.workflow_command:app",
        "Check a workflow file, or make one of another system's: check, import, schema.",
    ),
    _deferred(SET_UP, "schema", "solstice_cli.commands.schema:app", "JSON schemas of messages: show, write."),
    _deferred(SET_UP, "webhook", "solstice_cli.commands.webhook:app", "Try webhooks without a forge."),
)
"""The sentences equal the commands' own; a test compares them."""

app = typer.Typer(
    name="solstice",
    help="Solstice CI: a push becomes a message, a job, a log and a result.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
    add_completion=False,
    cls=lazily(COMMANDS),
)


def _print_version(requested: bool) -> None:  # noqa: FBT001  typer calls it with the flag's value
    if requested:
        typer.echo(f"solstice {__version__}")
        raise typer.Exit


@app.callback()
def _solstice(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
    _install_completion: InstallCompletion = False,
    _show_completion: ShowCompletion = False,
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
