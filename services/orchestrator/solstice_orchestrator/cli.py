"""`orchestrator`: the command of this service."""

import asyncio
from typing import Final

import typer

from solstice_common.cli import options, program
from solstice_common.cli.completion.command_line import InstallCompletion, ShowCompletion
from solstice_common.runtime.hidden_secrets import hide_secrets
from solstice_common.runtime.process import run_until_signalled
from solstice_common.storage.private_files import check_state_directory
from solstice_common.telemetry.logs import configure_logs
from solstice_orchestrator.settings import OrchestratorSettings

app: Final = typer.Typer(
    name="orchestrator",
    help="Takes job requests from the broker, runs their jobs, stores their logs and publishes their statuses.",
    no_args_is_help=True,
    context_settings=program.CONTEXT_SETTINGS,
    add_completion=False,
    cls=program.Commands,
)


@app.callback()
def _group(
    *, _install_completion: InstallCompletion = False, _show_completion: ShowCompletion = False
) -> None:
    """Keep `run` a word of its own, however many commands there are."""


@app.command()
@options.with_settings(OrchestratorSettings, serves=True)
def run(settings: OrchestratorSettings) -> None:
    """Run jobs until SIGTERM or SIGINT. CAPACITY_MAP has the labels.

    Then it takes nothing new, and running jobs have DRAIN_SECONDS to finish; a second signal cuts that short. Unfinished
    jobs are handed back, and run elsewhere or at the next start.
    """
    from solstice_orchestrator import daemon  # noqa: PLC0415  the environment is open until main is called

    configure_logs(settings.log_format, settings.log_level)
    environ = hide_secrets(settings)
    check_state_directory()
    hurry = asyncio.Event()
    run_until_signalled(lambda stop: daemon.run(settings, stop, hurry=hurry, environ=environ), hurry=hurry)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document. /openapi.json serves the same."""
    from solstice_orchestrator.web.api.openapi import render  # noqa: PLC0415  other commands do not pay for it

    typer.echo(render().decode(), nl=False)


def main() -> None:
    """The console script."""
    program.run(app)
