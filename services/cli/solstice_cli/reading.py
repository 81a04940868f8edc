"""`solstice runs`, `jobs`, `show`: what there is, and how it stands."""

import asyncio
from datetime import datetime
from typing import Annotated, Any

import typer

from solstice_cli import display
from solstice_cli.identifiers import find
from solstice_common.api_client import Document, OrchestratorClient
from solstice_common.commandline import with_settings
from solstice_common.settings import ClientSettings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, as the API gave it.")]


@with_settings(ClientSettings)
def runs(
    settings: ClientSettings,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All there are.")] = False,
    repository: Annotated[
        str | None, typer.Option("--repository", "-r", help="Only of this repository: OWNER/NAME or its URL.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", "-s", help="Only in this state.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first. In a pipe: tab-separated, whole values, no heading."""

    async def ask() -> tuple[list[Document], bool]:
        async with OrchestratorClient.of(settings) as api:
            found: list[Document] = []
            after: str | None = None
            while everything or len(found) < limit:
                page = await api.runs(
                    limit=100 if everything else min(100, limit - len(found)),
                    after=after,
                    repository=repository,
                    state=state,
                )
                found += page["runs"]
                after = page.get("next")
                if after is None:
                    break
            return found, after is not None

    found, more = asyncio.run(ask())
    if as_json:
        display.print_json({"runs": found})
    else:
        display.print_runs(found, now=display.now_utc(), more=more)


@with_settings(ClientSettings)
def jobs(
    settings: ClientSettings,
    *,
    run: Annotated[str | None, typer.Argument(help="Only of this run (id, or its beginning or end).")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="At most so many.")] = 50,
    state: Annotated[str | None, typer.Option("--state", "-s", help="Only in this state.")] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs: of one run in workflow order, else newest first."""

    async def ask() -> list[Document]:
        async with OrchestratorClient.of(settings) as api:
            run_id = (await find(api, run, ("run",)))[1]["run_id"] if run else None
            return await api.jobs(run_id=run_id, state=state, limit=limit)

    found = asyncio.run(ask())
    if as_json:
        display.print_json({"jobs": found})
    else:
        display.print_jobs(found, now=display.now_utc())


@with_settings(ClientSettings)
def show(
    settings: ClientSettings,
    *,
    which: Annotated[str, typer.Argument(metavar="RUN|JOB", help="An id, or its beginning or end.")],
    as_json: AsJson = False,
) -> None:
    """Show one run with its jobs, or one job with its attempts."""

    async def ask() -> tuple[str, Document]:
        async with OrchestratorClient.of(settings) as api:
            return await find(api, which)

    kind, document = asyncio.run(ask())
    if as_json:
        display.print_json(document)
    elif kind == "run":
        _show_run(document, settings.solstice_url, display.now_utc())
    else:
        _show_job(document, settings.solstice_url)


def _show_run(run: Document, url: str, now: datetime) -> None:
    display.print_facts(
        [
            ("run", run["run_id"]),
            ("state", run["state"]),
            ("detail", run.get("detail")),
            ("repository", run.get("repo_full_name") or run["repo_url"]),
            ("commit", run["commit_sha"]),
            ("ref", run.get("ref")),
            ("change", f"#{run['change_number']}" if run.get("change_number") else None),
            ("asked by", _asked_by(run)),
            ("request", run["request_id"]),
            ("re-run of", run.get("rerun_of")),
            *_times(run),
            ("page", f"{url}/runs/{run['run_id']}"),
        ]
    )
    typer.echo()
    display.print_jobs(run.get("jobs", []), now=now, nothing="No jobs yet: the workflow is being read.")


def _show_job(job: Document, url: str) -> None:
    display.print_facts(
        [
            ("job", job["job_id"]),
            ("name", job["name"]),
            ("state", job["state"]),
            ("reason", job["reason"]),
            ("detail", job.get("detail")),
            ("exit code", job.get("exit_code")),
            ("step", job.get("step")),
            ("run", job["run_id"]),
            ("runs on", job["runs_on"]),
            ("needs", ", ".join(job.get("needs", []))),
            ("priority", job["priority"]),
            *_times(job),
            ("retry at", job.get("retry_at")),
            ("page", f"{url}/jobs/{job['job_id']}"),
        ]
    )
    for attempt in job.get("attempts", []):
        detail = f": {attempt['detail']}" if attempt.get("detail") else ""
        typer.echo(
            f"attempt {attempt['number']}  {attempt['state']} ({attempt['reason']}) on {attempt['worker_id']}{detail}"
        )


def _asked_by(run: Document) -> str:
    who = f" by {run['sender']}" if run.get("sender") else ""
    return f"{run['source']} {run.get('event') or ''}".rstrip() + who


def _times(document: Document) -> list[tuple[str, Any]]:
    return [(name, document.get(f"{name}_at")) for name in ("created", "started", "finished")]
