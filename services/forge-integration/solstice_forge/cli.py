"""`forge-integration`: the command of this service."""

from typing import Final

import typer

from solstice_common.cli import options, program
from solstice_common.cli.completion.command_line import InstallCompletion, ShowCompletion
from solstice_common.runtime.hidden_secrets import hide_secrets
from solstice_common.runtime.process import run_until_signalled
from solstice_common.storage.private_files import check_state_directory
from solstice_common.telemetry.logs import configure_logs
from solstice_forge.commands import deliveries_command
from solstice_forge.commands.check_command import check_command
from solstice_forge.commands.enqueue import EnqueueSettings
from solstice_forge.commands.enqueue_command import enqueue_command
from solstice_forge.commands.purge_command import purge_command
from solstice_forge.commands.reconcile_command import reconcile_command
from solstice_forge.commands.rules_command import rules_commands
from solstice_forge.commands.statuses_command import statuses_commands
from solstice_forge.settings import ForgeSettings, SecretSettings

app: Final = typer.Typer(
    name="forge-integration",
    help="Takes the webhooks of GitHub, Forgejo, Gitea and GitLab, and publishes the jobs they ask for.",
    no_args_is_help=True,
    context_settings=program.CONTEXT_SETTINGS,
    add_completion=False,
    cls=program.Commands,
)


@app.callback()
def _group(
    *, _install_completion: InstallCompletion = False, _show_completion: ShowCompletion = False
) -> None:
    """Keep `serve` a word of its own, however many commands there are."""


@app.command()
@options.with_settings(ForgeSettings, serves=True)
def serve(settings: ForgeSettings) -> None:
    """Take webhooks, and publish requests. Runs until SIGTERM or SIGINT; the address is /webhooks/SOURCE.

    FORGE_CONFIG names the file of sources. Without it a source exists once its secret is set: GITHUB_WEBHOOK_SECRET,
    FORGEJO_WEBHOOK_SECRET, GITEA_WEBHOOK_SECRET, GITLAB_WEBHOOK_SECRET or GITLAB_SIGNING_TOKEN.
    """
    from solstice_forge import service  # noqa: PLC0415  the environment is open until main is called

    configure_logs(settings.log_format, settings.log_level)
    environ = hide_secrets(settings)
    check_state_directory()
    run_until_signalled(lambda stop: service.serve(settings, stop=stop, environ=environ))


app.command("check")(options.with_settings(SecretSettings)(check_command))
app.add_typer(rules_commands(), name="rules")
app.add_typer(statuses_commands(), name="statuses")
app.add_typer(deliveries_command.app, name="deliveries")
app.command("purge")(purge_command)
app.command("reconcile")(reconcile_command)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document. /openapi.json serves the same."""
    from solstice_forge.api.openapi import render  # noqa: PLC0415  other commands do not pay for it

    typer.echo(render().decode(), nl=False)


app.command("enqueue")(enqueue_command(EnqueueSettings))


def main() -> None:
    """The console script."""
    program.run(app)
