"""`solstice scale`: the work for each label, and the slots it takes."""

from typing import Annotated

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display, worker_tables
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.settings import ClientSettings


@with_settings(ClientSettings)
def scale(
    settings: ClientSettings,
    *,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", "-l", help="Only this label, even if it is unknown.", autocompletion=completers.labels
        ),
    ] = None,
    target_seconds: Annotated[
        int | None,
        typer.Option(
            "--target", "-t", min=1, help="Seconds in which the work is to be done.", show_default="300"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the work and the slots of each label.

    An autoscaler asks the same over HTTP.
    """
    found = answered(settings, lambda api: api.scale(label=label, target_seconds=target_seconds))
    if as_json:
        print_json(found)
    else:
        worker_tables.print_scale(found["labels"], now=display.now_utc())
