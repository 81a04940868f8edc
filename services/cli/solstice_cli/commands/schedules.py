"""`solstice schedules`: show and change what is built regularly."""

from typing import Annotated, Any, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.local_repository import as_url
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.cli.subcommands import stands_alone
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.messages.schedules import Missed, Overlap
from solstice_common.settings import ClientSettings
from solstice_common.values.repo_urls import full_name_of

app: Final = typer.Typer(
    help="Builds by cron expressions. Commands: list, show, next, add, edit, pause, resume, fire, remove.",
    context_settings=CONTEXT_SETTINGS,
)

Which = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="Its name, or its id.", autocompletion=completers.schedules)
]
RepoUrl = Annotated[
    str, typer.Option(help="Repository to build: a URL, git@host:path, or a folder of this machine.")
]
Branch = Annotated[
    str, typer.Option(help="Each tick builds this branch's newest commit; of another ref, its full name.")
]
Cron = Annotated[
    str, typer.Option(help="Five fields, minute to day of week, like '30 2 * * MON-FRI'; or @daily.")
]
Zone = Annotated[str, typer.Option("--timezone", help="IANA name: Europe/Berlin.")]
FullName = Annotated[str | None, typer.Option(help="The repository's name at its forge: OWNER/NAME.")]
MissedTicks = Annotated[
    Missed,
    typer.Option(help="Ticks missed by downtime: once builds one run for all of them, skip builds none."),
]
Overlapping = Annotated[
    Overlap, typer.Option(help="While the last run has not ended: queue one more, or skip the tick.")
]
WorkflowPath = Annotated[str | None, typer.Option(help="Workflow file in the repository.")]
WorkflowJob = Annotated[str | None, typer.Option(help="Run only this job of the workflow.")]
RunsOn = Annotated[str | None, typer.Option(help="Label for jobs that name none.")]
Class = Annotated[Priority | None, typer.Option(help="Priority class.")]
PAGE: Final = 200


@app.callback(invoke_without_command=True)
@with_settings(ClientSettings)
def schedules(settings: ClientSettings, *, context: typer.Context, as_json: AsJson = False) -> None:
    """Show and change what is built regularly; without a command, list it."""
    if stands_alone(context):
        _list(settings, as_json=as_json)


@app.command("list")
@with_settings(ClientSettings)
def list_(
    settings: ClientSettings,
    *,
    repository: Annotated[
        str | None, typer.Option("--repository", "-r", help="Only of this one: OWNER/NAME or its URL.")
    ] = None,
    branch: Annotated[str | None, typer.Option("--branch", "-b", help="Only of this branch.")] = None,
    as_json: AsJson = False,
) -> None:
    """List schedules by age. In a pipe: tab-separated, full values, no heading."""
    _list(settings, repository=repository, branch=branch, as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def show(settings: ClientSettings, *, schedule: Which, as_json: AsJson = False) -> None:
    """Show one schedule and its newest ticks."""
    found = answered(settings, lambda api: api.schedule(schedule))
    if as_json:
        print_json(found)
        return
    display.print_facts(
        [
            ("schedule", found["schedule_id"]),
            ("name", found["name"]),
            ("repository", found["repo_full_name"]),
            ("url", found["repo_url"]),
            ("branch", found["branch"]),
            ("cron", found["cron"]),
            ("timezone", found["timezone"]),
            ("next", "paused" if found["paused"] else found["next_at"]),
            ("missed", found["missed"]),
            ("overlap", found["overlap"]),
            ("workflow", found["workflow_path"]),
            ("job", found["workflow_job_id"]),
            ("runs on", found["runs_on"]),
            ("priority", found["priority"]),
            ("added", found["created_at"]),
            ("by", found["created_by"]),
        ]
    )
    typer.echo()
    display.print_ticks(found["ticks"], now=display.now_utc())


@app.command("next")
@with_settings(ClientSettings)
def next_(
    settings: ClientSettings,
    *,
    schedule: Which,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="So many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print when a schedule is due next. Times are in its zone and in UTC.

    Also while it is paused.
    """
    found = answered(settings, lambda api: api.next_ticks(schedule, count=count))
    if as_json:
        print_json(found)
        return
    for tick in found["ticks"]:
        typer.echo(f"{tick['local']}\t{tick['at']}")


@app.command()
@with_settings(ClientSettings)
def add(
    settings: ClientSettings,
    *,
    name: Annotated[str, typer.Argument(help="Its name.")],
    repo_url: RepoUrl,
    branch: Branch,
    cron: Cron,
    zone: Zone = "UTC",
    repo_full_name: FullName = None,
    missed: MissedTicks = Missed.ONCE,
    overlap: Overlapping = Overlap.QUEUE,
    workflow_path: WorkflowPath = None,
    workflow_job_id: WorkflowJob = None,
    runs_on: RunsOn = None,
    priority: Class = None,
    as_json: AsJson = False,
) -> None:
    """Build a branch regularly. The first tick is the next one after now."""
    url = as_url(repo_url)
    new_schedule = {
        "name": name,
        "repo_url": url,
        "branch": branch,
        "cron": cron,
        "timezone": zone,
        "repo_full_name": repo_full_name or full_name_of(url),
        "missed": missed.value,
        "overlap": overlap.value,
        "workflow_path": workflow_path,
        "workflow_job_id": workflow_job_id,
        "runs_on": runs_on,
        "priority": priority and priority.value,
    }
    added = answered(settings, lambda api: api.add_schedule(new_schedule))
    _say(added, f"schedule {name} added", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def edit(
    settings: ClientSettings,
    *,
    schedule: Which,
    name: Annotated[str | None, typer.Option(help="Its name.")] = None,
    repo_url: Annotated[str | None, typer.Option(help="Repository to build.")] = None,
    branch: Annotated[str | None, typer.Option(help="Its branch, or another ref by its full name.")] = None,
    cron: Annotated[str | None, typer.Option(help="Its expression.")] = None,
    zone: Annotated[str | None, typer.Option("--timezone", help="Its zone.")] = None,
    repo_full_name: FullName = None,
    missed: Annotated[Missed | None, typer.Option(help="Ticks missed by downtime.")] = None,
    overlap: Annotated[Overlap | None, typer.Option(help="While the last run has not ended.")] = None,
    workflow_path: WorkflowPath = None,
    workflow_job_id: WorkflowJob = None,
    runs_on: RunsOn = None,
    priority: Annotated[str | None, typer.Option(help="Priority class.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule. Only the given options change; '' removes an optional one.

    With a new time its next tick is the first from now.
    """
    url = repo_url and as_url(repo_url)
    if url and repo_full_name is None:
        repo_full_name = full_name_of(url)
    must = {
        "name": name,
        "repo_url": url,
        "branch": branch,
        "cron": cron,
        "timezone": zone,
        "missed": missed and missed.value,
        "overlap": overlap and overlap.value,
    }
    may = {
        "repo_full_name": repo_full_name,
        "workflow_path": workflow_path,
        "workflow_job_id": workflow_job_id,
        "runs_on": runs_on,
        "priority": priority,
    }
    changes: dict[str, Any] = {field: value for field, value in must.items() if value is not None}
    changes |= {field: value or None for field, value in may.items() if value is not None}
    if not changes:
        raise ConfigurationError("name what is to be otherwise: solstice schedules edit --help")
    changed = answered(settings, lambda api: api.edit_schedule(schedule, changes))
    _say(changed, f"schedule {changed['name']} changed", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def pause(settings: ClientSettings, *, schedule: Which, as_json: AsJson = False) -> None:
    """Pause a schedule. Ticks meanwhile do not count as missed."""
    found = answered(settings, lambda api: api.steer_schedule(schedule, "pause"))
    _say(found, f"schedule {found['name']}", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def resume(settings: ClientSettings, *, schedule: Which, as_json: AsJson = False) -> None:
    """Resume a schedule. The first tick is the next one after now."""
    found = answered(settings, lambda api: api.steer_schedule(schedule, "resume"))
    _say(found, f"schedule {found['name']} resumed", as_json=as_json)


@app.command()
@with_settings(ClientSettings)
def fire(settings: ClientSettings, *, schedule: Which, as_json: AsJson = False) -> None:
    """Build a schedule's branch now. 'show' lists the outcome."""
    found = answered(settings, lambda api: api.steer_schedule(schedule, "fire"))
    if as_json:
        print_json(found)
    else:
        typer.echo(f"schedule {found['name']} fires now")
        typer.echo(f"  solstice schedules show {found['name']}", err=True)


@app.command()
@with_settings(ClientSettings)
def remove(settings: ClientSettings, *, schedule: Which, as_json: AsJson = False) -> None:
    """Remove a schedule. Its ticks go, its runs stay."""
    found = answered(settings, lambda api: api.steer_schedule(schedule, "remove"))
    if as_json:
        print_json(found)
    else:
        typer.echo(f"schedule {found['name']} removed")


def _list(
    settings: ClientSettings, *, repository: str | None = None, branch: str | None = None, as_json: bool
) -> None:
    async def every(api: OrchestratorClient) -> Document:
        documents: list[Document] = []
        after: str | None = None
        while True:
            page = await api.schedules(limit=PAGE, after=after, repository=repository, branch=branch)
            documents += page["schedules"]
            if (after := page["next"]) is None:
                return {"schedules": documents}

    documents = answered(settings, every)
    if as_json:
        print_json(documents)
    else:
        display.print_schedules(documents["schedules"], now=display.now_utc())


def _say(document: Document, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(f"{what}: {'paused' if document['paused'] else 'next tick ' + document['next_at']}")
