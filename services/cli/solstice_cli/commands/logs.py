"""`solstice logs`: print the log of a job, or of every job of a run.

With -f, it follows the log.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Final

import orjson
import typer
from rich.console import Console

from solstice_cli import completers
from solstice_cli.api_calls import answered_at_length
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.following import FROM_THE_FIRST, LogWriter, follow_job, follow_run, once_per_reason
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import json_option, note_when_slow
from solstice_common.cli.program import Exit
from solstice_common.errors import ConfigurationError
from solstice_common.messages.states import JobState
from solstice_common.settings import ClientSettings

PAGE: Final = 1000
LABEL_COLOURS: Final = (36, 35, 33, 34, 32, 31)


@with_settings(ClientSettings)
def logs(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN", help="An id, or its beginning or end.", autocompletion=completers.runs_and_jobs
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until it has ended; exit 1 if it did not succeed.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="This attempt of the job.", show_default="the newest")
    ] = None,
    service: Annotated[
        str | None, typer.Option(help="Print what this service of the job wrote.", show_default=False)
    ] = None,
    as_json: Annotated[bool, json_option(prints="Print one JSON object per chunk.")] = False,
) -> None:
    """Print logs. A run's logs carry the job's name before each line.

    The output of a job is indented by two spaces; lines that begin with $ or ! come from Solstice CI.
    """

    async def work(api: OrchestratorClient, answers: Callable[[], None]) -> Exit:
        kind, document = await find(api, which)
        answers()
        if kind == "run" and attempt is not None:
            raise ConfigurationError("--attempt is for a job; a run's logs are those of its newest attempts")
        if kind == "run" and service is not None:
            raise ConfigurationError("--service is for a job; a run's logs are those of its jobs")
        if follow and not as_json:
            return await _follow(api, kind, document, attempt, service)
        for job in [document] if kind == "job" else document["jobs"]:
            several = kind == "run" and len(document["jobs"]) > 1
            await _print_log(
                api,
                job,
                attempt,
                service,
                label=_label(job["name"]) if several else "",
                as_json=as_json,
                follow=follow,
            )
        return Exit.OK

    try:
        code = answered_at_length(settings, work)
    except KeyboardInterrupt:
        code = None
    if code is not Exit.OK:
        raise typer.Exit(Exit.INTERRUPTED if code is None else code)


async def _follow(
    api: OrchestratorClient, kind: str, document: Document, attempt: int | None, service: str | None
) -> Exit:
    terminal = sys.stdout.isatty()
    name = f"run {document['run_id']}" if kind == "run" else str(document["name"])
    with note_when_slow(f"output of {name}, which is {document['state']}") as prints:

        def write(text: str) -> None:
            prints()
            _write(text)

        if kind == "run":
            waits = once_per_reason(_say)
            end = await follow_run(
                api, document["run_id"], write, waits=waits, label=_label, terminal=terminal
            )
        else:
            job_id = document["job_id"]
            end = await follow_job(api, job_id, write, attempt=attempt, service=service, terminal=terminal)
            if service is not None:
                # Of a job that runs, each name may be one of a service; now it is known which were.
                await api.log(job_id, attempt=attempt, limit=1, service=service)
    typer.echo(f"{name} {end['state']}", err=True)
    return Exit.OK if end["state"] == JobState.SUCCEEDED else Exit.FAILED


async def _print_log(
    api: OrchestratorClient,
    job: Document,
    attempt: int | None,
    service: str | None = None,
    *,
    label: str,
    as_json: bool,
    follow: bool,
) -> None:
    """Print the log so far, page by page.

    As JSON and with `follow`, print event by event to the end.
    """
    if follow:
        start_after = FROM_THE_FIRST if attempt is None else None
        async for event in api.log_events(job["job_id"], attempt=attempt, after=start_after, service=service):
            _write_json({"event": event.name, "job_id": job["job_id"], **event.data})
        return
    log, after = LogWriter(_write, label, terminal=sys.stdout.isatty(), whole_lines=True), 0
    while True:
        page = await api.log(job["job_id"], attempt=attempt, after=after, limit=PAGE, service=service)
        gaps = {gap["last"] + 1: gap for gap in page["missing"]}
        for chunk in page["chunks"]:
            gap = gaps.get(chunk["sequence"])
            if gap and as_json:
                _write_json({"event": "gap", "job_id": job["job_id"], "attempt": page["attempt"], **gap})
            elif gap:
                log.gap(gap)
            if as_json:
                _write_json({"event": "chunk", "job_id": job["job_id"], "attempt": page["attempt"], **chunk})
            else:
                log.chunk(chunk)
        if not page["chunks"]:
            break
        after = page["chunks"][-1]["sequence"]
    log.finish()


def _label(name: str) -> str:
    """The job's name before a line, in a colour of its own on a terminal."""
    if not Console().is_terminal or Console().no_color:
        return f"{name} | "
    return f"\x1b[{LABEL_COLOURS[sum(name.encode()) % len(LABEL_COLOURS)]}m{name} |\x1b[0m "


def _say(text: str) -> None:
    typer.secho(text, err=True, dim=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_json(document: Document) -> None:
    _write(orjson.dumps(document).decode() + "\n")
