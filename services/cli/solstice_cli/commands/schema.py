"""`solstice schema`: the JSON schemas of the messages, for services in other languages."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError
from solstice_common.messages.schemas import render_schemas

app = typer.Typer(
    help="JSON schemas of messages: show, write.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)


@app.command()
def show(
    message: Annotated[
        str | None,
        typer.Argument(help="jobrequest.v1, jobcancel.v1 or jobstatus.v1; without it, the names are listed."),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Print a message's schema, or list all."""
    schemas = {name.removesuffix(".json"): content for name, content in render_schemas().items()}
    if message is None:
        if as_json:
            print_json({name: orjson.loads(content) for name, content in schemas.items()})
        else:
            typer.echo("\n".join(sorted(schemas)))
    elif message in schemas:
        typer.echo(schemas[message].decode(), nl=False)
    else:
        raise ConfigurationError(f"there is no message {message!r}: known are {', '.join(sorted(schemas))}")


@app.command()
def write(
    folder: Annotated[Path, typer.Argument(help="The folder; made if it does not exist.")] = Path("schemas"),
    *,
    as_json: AsJson = False,
) -> None:
    """Write all schemas to a folder."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in render_schemas().items():
            (folder / name).write_bytes(content)
            written.append(str(folder / name))
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {folder}: {error.strerror}; name another folder"
        ) from error
    if as_json:
        print_json({"written": written})
    else:
        for path in written:
            typer.echo(f"wrote {path}")
