"""`solstice scale`: how much work there is for each label, and how many slots it takes."""

from typing import Annotated

import typer

from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.settings import ClientSettings


@with_settings(ClientSettings)
def scale(
    settings: ClientSettings,
    *,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Only this label, known or not.")] = None,
    target_seconds: Annotated[
        int | None,
        typer.Option("--target", "-t", min=1, help="Seconds in which it is to be done.", show_default="300"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how much work there is for each label, and how many slots it takes: what an autoscaler asks."""
    found = answered(settings, lambda api: api.scale(label=label, target_seconds=target_seconds))
    if as_json:
        print_json(found)
    else:
        display.print_scale(found["labels"], now=display.now_utc())
