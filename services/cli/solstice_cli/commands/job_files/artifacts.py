"""`solstice artifacts`: list and download what jobs handed out."""

import asyncio
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from solstice_cli import completers
from solstice_cli.api_calls import answered, answered_at_length
from solstice_cli.output import display
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError, ServiceRefused, ServiceUnavailable
from solstice_common.settings import ClientSettings

app: Final = typer.Typer(
    help="What jobs handed out. Commands: list, get.", context_settings=CONTEXT_SETTINGS, no_args_is_help=True
)
STANDARD_OUTPUT: Final = Path("-")
_WRONG: Final = "what came is not the artifact {}: its SHA-256 is another. Try again"
TRIES: Final = 5
"""How often a download goes on without a byte more before it is given up."""

Which = Annotated[
    str,
    typer.Argument(
        metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.runs_and_jobs
    ),
]


@app.command("list")
@with_settings(ClientSettings)
def list_(settings: ClientSettings, *, which: Which, as_json: AsJson = False) -> None:
    """List the artifacts of a run or a job.

    In a pipe: tab-separated, full values, no heading.
    """
    documents = answered(settings, lambda api: _artifacts(api, which))
    if as_json:
        print_json({"artifacts": documents})
    else:
        display.print_artifacts(documents, now=display.now_utc())


@app.command()
@with_settings(ClientSettings)
def get(
    settings: ClientSettings,
    *,
    which: Which,
    name: Annotated[str, typer.Argument(help="The artifact's name.", autocompletion=completers.artifacts)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; - is the standard output.",
            show_default="NAME.tar",
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download an artifact as a tar, and check its digest.

    Goes on where an earlier download ended.
    """
    if output == STANDARD_OUTPUT:
        if as_json:
            raise ConfigurationError(
                "--json and --output - cannot go together: both write to the standard output"
            )
        return _pass_on(settings, answered(settings, lambda api: _named(api, which, name)))
    target = output or Path(f"{name}.tar")
    if target.exists() and not force:
        raise ConfigurationError(
            f"{target} is there already: name another file with --output, or add --force"
        )

    artifact = answered(settings, lambda api: _named(api, which, name))
    _download(settings, artifact, target)
    if as_json:
        print_json({**artifact, "file": str(target)})
    else:
        typer.echo(
            f"{target}: {artifact['files']} files, {artifact['size']} bytes, sha256:{artifact['digest']}"
        )
    return None


async def _artifacts(api: OrchestratorClient, which: str) -> list[Document]:
    kind, document = await find(api, which)
    found = await api.artifacts(document["run_id"])
    return [each for each in found if kind == "run" or each["job_id"] == document["job_id"]]


async def _named(api: OrchestratorClient, which: str, name: str) -> Document:
    """Return the only artifact of that name; raises ConfigurationError."""
    artifacts = await _artifacts(api, which)
    fitting = [each for each in artifacts if each["name"] == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        jobs = ", ".join(f"{each['job']} ({each['job_id']})" for each in fitting)
        raise ConfigurationError(f"several jobs have an artifact {name!r}; give the id of one: {jobs}")
    known = ", ".join(dict.fromkeys(each["name"] for each in artifacts)) or "none"
    raise ConfigurationError(f"there is no artifact {name!r}, or its time is over; there are: {known}")


def _download(settings: ClientSettings, artifact: Document, target: Path) -> None:
    """Write the archive beside the target, and give it its name once it is whole.

    Raises ServiceUnavailable when it breaks off again and again, and leaves what came for the next time.
    """
    part = target.with_name(f"{target.name}.{artifact['digest'][:16]}.part")
    with part.open("ab+") as file, _progress() as bars:
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        bar = bars.add_task(artifact["name"], total=artifact["size"], completed=file.tell())

        def take(piece: bytes) -> None:
            file.write(piece)
            digest.update(piece)
            bars.update(bar, completed=file.tell())

        answered_at_length(settings, lambda api, answers: _rest(api, artifact, file.tell, take, answers))
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != artifact["digest"]:
        part.unlink()
        raise ServiceRefused(
            0,
            "wrong_digest",
            _WRONG.format(artifact["name"]),
        )
    part.replace(target)


def _pass_on(settings: ClientSettings, artifact: Document) -> None:
    """Write the archive to the standard output.

    What reads it has it before its digest is known: it must look at the exit code.
    """
    digest, size = hashlib.sha256(), 0

    def take(piece: bytes) -> None:
        nonlocal size
        sys.stdout.buffer.write(piece)
        digest.update(piece)
        size += len(piece)

    answered_at_length(settings, lambda api, answers: _rest(api, artifact, lambda: size, take, answers))
    sys.stdout.buffer.flush()
    if digest.hexdigest() != artifact["digest"]:
        raise ServiceRefused(0, "wrong_digest", _WRONG.format(artifact["name"]))


async def _rest(
    api: OrchestratorClient,
    artifact: Document,
    size: Callable[[], int],
    take: Callable[[bytes], None],
    answers: Callable[[], None],
) -> None:
    """Take the bytes after the first `size`, through lost connections."""
    tries = 0
    while (first := size()) < artifact["size"]:
        try:
            async for piece in api.artifact(
                artifact["job_id"], artifact["name"], artifact["digest"], first=first
            ):
                answers()
                take(piece)
        except ServiceUnavailable:
            tries = 1 if size() > first else tries + 1
            if tries == TRIES:
                raise
            await asyncio.sleep(tries)


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
