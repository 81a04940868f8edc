"""`orchestrator`: the command of this service."""

import asyncio
from typing import Final

import typer

from solstice_common.cli import options, program
from solstice_common.runtime.process import hide_secrets, run_until_signalled
from solstice_common.storage.private_files import check_state_directory
from solstice_common.telemetry.logs import configure_logs
from solstice_orchestrator import daemon
from solstice_orchestrator.settings import OrchestratorSettings

app: Final = typer.Typer(
    name="orchestrator",
    help="Takes job requests from the broker, runs their jobs, keeps their logs and tells what became of them.",
    no_args_is_help=True,
    context_settings=program.CONTEXT_SETTINGS,
    cls=program.Commands,
)


@app.callback()
def _group() -> None:
    """Keep `run` a word of its own, however many commands there are."""


@app.command()
@options.with_settings(OrchestratorSettings, serves=True)
def run(settings: OrchestratorSettings) -> None:
    """Serve the labels of CAPACITY_MAP until SIGTERM or SIGINT.

    Then nothing new is taken, and running jobs have DRAIN_SECONDS to finish; a second signal cuts that short. What did
    not finish is handed back, and runs elsewhere or at the next start.
    """
    configure_logs(settings.log_format, settings.log_level)
    hide_secrets(settings)
    check_state_directory()
    hurry = asyncio.Event()
    run_until_signalled(lambda stop: daemon.run(settings, stop, hurry=hurry), hurry=hurry)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of API v1, as /openapi.json serves it."""
    from solstice_orchestrator.web.api.openapi import render  # noqa: PLC0415  other commands do not pay for it

    typer.echo(render().decode(), nl=False)


def main() -> None:
    """The console script."""
    program.run(app)
