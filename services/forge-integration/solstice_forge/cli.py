"""`forge-integration`: the command of this service."""

from typing import Final

import typer
from solstice_common import commandline

from solstice_forge.enqueue import EnqueueSettings
from solstice_forge.enqueue_command import enqueue_command

app: Final = typer.Typer(
    name="forge-integration",
    help="Takes the webhooks of GitHub, Forgejo, Gitea and GitLab, and publishes the jobs they ask for.",
    no_args_is_help=True,
    context_settings=commandline.CONTEXT_SETTINGS,
)


@app.callback()
def _group() -> None:
    """Keep `serve` a word of its own, however many commands there are."""


app.command("enqueue")(enqueue_command(EnqueueSettings))


def main() -> None:
    """The console script."""
    commandline.run(app)
