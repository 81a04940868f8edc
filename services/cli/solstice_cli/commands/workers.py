"""`solstice workers`: list workers and their states, and steer one."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display, worker_tables
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.cli.subcommands import stands_alone
from solstice_common.errors import ConfigurationError, ServiceRefused
from solstice_common.settings import ClientSettings

app: Final = typer.Typer(
    help="Show and steer workers. Commands: list, show, pause, resume, drain, quarantine.",
    context_settings=CONTEXT_SETTINGS,
)

Which = Annotated[
    str,
    typer.Argument(
        metavar="WORKER",
        help="Its name, or its id or the beginning of it.",
        autocompletion=completers.workers,
    ),
]
NOT_FOUND: Final = 404


@app.callback(invoke_without_command=True)
@with_settings(ClientSettings)
def workers(settings: ClientSettings, *, context: typer.Context, as_json: AsJson = False) -> None:
    """Who runs jobs: list (also without a word), show, pause, resume, drain, quarantine."""
    if stands_alone(context):
        _list(settings, as_json=as_json)


@app.command("list")
@with_settings(ClientSettings)
def list_(settings: ClientSettings, *, as_json: AsJson = False) -> None:
    """List workers by name. In a pipe: tab-separated, full values, no heading."""
    _list(settings, as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def show(settings: ClientSettings, *, worker: Which, as_json: AsJson = False) -> None:
    """Show one worker and the jobs that it runs."""

    async def request(api: OrchestratorClient) -> Document:
        return pick(await api.workers(), worker, api.url)

    document = answered(settings, request)
    if as_json:
        print_json(document)
        return
    display.print_facts(
        [
            ("worker", document["worker_id"]),
            ("name", document["name"]),
            ("host", document["host"]),
            ("state", worker_tables.worker_state(document)),
            ("until", document["quarantined_until"]),
            ("failures", document["failures_in_a_row"] or None),
            ("slots", worker_tables.slots(document)),
            ("at once", document["limit"]),
            ("pressure", worker_tables.pressure(document) or None),
            ("why", document.get("refusal") or None),
            ("measured", document.get("condition_at") if document.get("refusal") else None),
            ("version", document["version"]),
            ("started", document["started_at"]),
            ("seen", document["seen_at"]),
        ]
    )
    for job in document["jobs"]:
        typer.echo(f"runs {job['job_id']}  {job['name']} #{job['attempt']} on {job['runs_on']}")


@app.command()
@with_settings(ClientSettings)
def pause(settings: ClientSettings, *, worker: Which, as_json: AsJson = False) -> None:
    """Give a worker no new jobs. Running ones go on, until it is resumed."""
    _steer(settings, worker, "pause", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def resume(settings: ClientSettings, *, worker: Which, as_json: AsJson = False) -> None:
    """Give a worker jobs again."""
    _steer(settings, worker, "resume", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def drain(settings: ClientSettings, *, worker: Which, as_json: AsJson = False) -> None:
    """End a worker after its running jobs. It gets no new ones."""
    _steer(settings, worker, "drain", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def quarantine(
    settings: ClientSettings,
    *,
    worker: Which,
    seconds: Annotated[int, typer.Option("--seconds", "-s", min=1, help="For so long.")] = 3600,
    as_json: AsJson = False,
) -> None:
    """Give a worker no new jobs for a while."""
    _steer(settings, worker, "quarantine", seconds=seconds, as_json=as_json)


def pick(workers: Sequence[Document], typed: str, url: str) -> Document:
    """Return the worker that `typed` names by id, name, or beginning of the id.

    Among several with one name, living workers take precedence. Raises ConfigurationError when it fits
    several, ServiceRefused when it fits none.
    """
    for fits in (
        [worker for worker in workers if worker["worker_id"] == typed],
        [worker for worker in workers if worker["name"] == typed],
        [worker for worker in workers if typed and worker["worker_id"].startswith(typed)],
    ):
        alive = [worker for worker in fits if worker["presence"] == "alive"]
        chosen = alive or fits
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            several = ", ".join(worker["worker_id"] for worker in chosen[:5])
            raise ConfigurationError(
                f"{typed!r} fits {len(chosen)} workers: {several}. Give one of these ids."
            )
    raise ServiceRefused(
        NOT_FOUND, "not_found", f"no worker {typed!r} at {url}: 'solstice workers' lists those there are"
    )


def _list(settings: ClientSettings, *, as_json: bool) -> None:
    found = answered(settings, lambda api: api.workers())
    if as_json:
        print_json({"workers": found})
    else:
        worker_tables.print_workers(found, now=display.now_utc())


def _steer(
    settings: ClientSettings, typed: str, order: str, *, seconds: int | None = None, as_json: bool
) -> None:
    async def request(api: OrchestratorClient) -> Document:
        worker = pick(await api.workers(), typed, api.url)
        return await api.steer_worker(worker["worker_id"], order, seconds=seconds)

    now = answered(settings, request)
    if as_json:
        print_json(now)
        return
    until = f" until {now['quarantined_until']}" if now["state"] == "quarantined" else ""
    typer.echo(f"worker {now['worker_id']} {worker_tables.worker_state(now)}{until}")
