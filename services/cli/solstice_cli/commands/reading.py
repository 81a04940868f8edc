"""`solstice runs`, `jobs`, `show`, `attempts`: list and show runs, jobs and attempts."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, Filters, OrchestratorClient
from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_common.settings import ClientSettings, without_password
from solstice_common.values.times import duration

PAGE: Final = 100


Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="The most entries to list.")]
Everything = Annotated[bool, typer.Option("--all", "-a", help="List all entries.")]
OfRepository = Annotated[
    str | None,
    typer.Option(
        "--repository",
        "-r",
        help="Only of this repository: OWNER/NAME or its URL.",
        autocompletion=completers.repositories,
    ),
]
OfBranch = Annotated[
    str | None,
    typer.Option(
        "--branch",
        "-b",
        help="Only of this branch; of a tag: refs/tags/NAME.",
        autocompletion=completers.branches,
    ),
]
RunInState = Annotated[RunState | None, typer.Option("--state", "-s", help="Only in this state.")]
JobInState = Annotated[JobState | None, typer.Option("--state", "-s", help="Only in this state.")]
OnLabel = Annotated[
    str | None,
    typer.Option("--label", "-l", help="Only with jobs of this label.", autocompletion=completers.labels),
]
OfPriority = Annotated[
    Priority | None, typer.Option("--priority", "-p", help="Only with jobs of this class.")
]


@with_settings(ClientSettings)
def runs(
    settings: ClientSettings,
    *,
    limit: Limit = 20,
    everything: Everything = False,
    repository: OfRepository = None,
    branch: OfBranch = None,
    state: RunInState = None,
    label: OnLabel = None,
    priority: OfPriority = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count runs by final state instead; with -r, -b and --since.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="With --count: only those requested within 30m, 12h or 7d.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first. In a pipe: tab-separated, full values, no heading."""
    if count:
        if state or label or priority:
            raise ConfigurationError("--count goes with --repository, --branch and --since alone")
        return _count(settings, repository, branch, since, as_json=as_json)
    if since is not None:
        raise ConfigurationError("--since goes with --count: it says which runs to count")
    filters = Filters(repository=repository, branch=branch, state=state, label=label, priority=priority)

    async def request(api: OrchestratorClient) -> tuple[list[Document], bool]:
        return await pages(
            lambda limit, after: api.runs(limit=limit, after=after, **filters),
            "runs",
            None if everything else limit,
        )

    documents, more = answered(settings, request)
    if as_json:
        print_json({"runs": documents})
    else:
        display.print_runs(documents, now=display.now_utc(), more=more)
    return None


def _count(
    settings: ClientSettings, repository: str | None, branch: str | None, since: str | None, *, as_json: bool
) -> None:
    seconds = None if since is None else int(age_given("--since", since))
    found = answered(
        settings,
        lambda api: api.ask("run-counts", since_seconds=seconds, repository=repository, branch=branch),
    )
    if as_json:
        print_json(found)
        return
    for state, number in (*found["counts"].items(), ("unfinished", found["unfinished"])):
        typer.echo(f"{number}\t{state}")


@with_settings(ClientSettings)
def jobs(
    settings: ClientSettings,
    *,
    run: Annotated[
        str | None,
        typer.Argument(
            help="Only of this run (id, or its beginning or end).", autocompletion=completers.runs
        ),
    ] = None,
    limit: Limit = 50,
    everything: Everything = False,
    repository: OfRepository = None,
    branch: OfBranch = None,
    state: JobInState = None,
    label: OnLabel = None,
    priority: OfPriority = None,
    as_json: AsJson = False,
) -> None:
    """List jobs. Those of a run in workflow order, else newest first."""
    filters = Filters(repository=repository, branch=branch, state=state, label=label, priority=priority)

    async def request(api: OrchestratorClient) -> tuple[list[Document], bool]:
        run_id = (await find(api, run, ("run",)))[1]["run_id"] if run else None
        return await pages(
            lambda limit, after: api.jobs(run_id=run_id, limit=limit, after=after, **filters),
            "jobs",
            None if everything else limit,
        )

    documents, more = answered(settings, request)
    if as_json:
        print_json({"jobs": documents})
    else:
        display.print_jobs(documents, now=display.now_utc(), more=more)


async def pages(
    fetch: Callable[[int, str | None], Awaitable[Document]], what: str, limit: int | None
) -> tuple[list[Document], bool]:
    """Return the first `limit` (None: all) of a list, and whether there are more."""
    documents: list[Document] = []
    after: str | None = None
    while limit is None or len(documents) < limit:
        page = await fetch(PAGE if limit is None else min(PAGE, limit - len(documents)), after)
        documents += page[what]
        after = page.get("next")
        if after is None:
            break
    return documents, after is not None


@with_settings(ClientSettings)
def attempts(
    settings: ClientSettings,
    *,
    job: Annotated[
        str, typer.Argument(help="An id, or its beginning or end.", autocompletion=completers.jobs)
    ],
    as_json: AsJson = False,
) -> None:
    """List every try at a job, oldest first."""

    async def request(api: OrchestratorClient) -> tuple[Document, list[Document]]:
        _, found = await find(api, job, ("job",))
        return found, await api.attempts(found["job_id"])

    of_job, documents = answered(settings, request)
    if as_json:
        print_json({"attempts": documents})
    else:
        display.print_attempts(documents, now=display.now_utc(), state=of_job["state"])


@with_settings(ClientSettings)
def show(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.runs_and_jobs
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a run with its jobs, or a job."""
    kind, document = answered(settings, lambda api: find(api, which))
    if as_json:
        print_json(document)
    elif kind == "run":
        _show_run(document, without_password(settings.solstice_url), display.now_utc())
    else:
        _show_job(document, without_password(settings.solstice_url))


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
            ("asked by", _requested_by(run)),
            ("request", run["request_id"]),
            ("re-run of", run.get("rerun_of")),
            ("not before", run.get("not_before")),
            *_times(run),
            ("page", f"{url}/runs/{run['run_id']}"),
        ]
    )
    typer.echo()
    display.print_jobs(run.get("jobs", []), now=now, nothing=_without_jobs(run["state"]))


def _without_jobs(state: str) -> str:
    """Return why a run in that state has no jobs."""
    if state in FINAL:
        return "No jobs: the run ended before it had any."
    return (
        "No jobs yet: it starts later."
        if state == RunState.DELAYED
        else "No jobs yet: the workflow is being read."
    )


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
            *(
                (
                    f"artifact {each['name']}",
                    f"{each['size']} bytes, {each['files']} files, sha256:{each['digest']}",
                )
                for each in job.get("artifacts", [])
            ),
            *((f"output {name}", text) for name, text in job.get("outputs", {}).items()),
        ]
    )
    for attempt in job.get("attempts", []):
        image = f" in {attempt['image']}" if attempt.get("image") else ""
        if attempt.get("provisioning_seconds") is not None:
            image += f", prepared in {duration(attempt['provisioning_seconds'])}"
        detail = f": {attempt['detail']}" if attempt.get("detail") else ""
        typer.echo(
            f"attempt {attempt['number']}  {attempt['state']} ({attempt['reason']}) on {attempt['worker_id']}{image}{detail}"
        )


def _requested_by(run: Document) -> str:
    who = f" by {run['sender']}" if run.get("sender") else ""
    # A request by a person or a program has the source and the event `manual`.
    return " ".join(dict.fromkeys((run["source"], run.get("event") or run["source"]))) + who


def _times(document: Document) -> list[tuple[str, Any]]:
    return [(name, document.get(f"{name}_at")) for name in ("created", "started", "finished")]
