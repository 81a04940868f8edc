"""`solstice cancel`, `approve`, `rerun`, `priority`: steer a run."""

from typing import Annotated

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import Exit
from solstice_common.messages import Priority
from solstice_common.messages.states import JobState, RunState
from solstice_common.settings import ClientSettings
from solstice_common.values.quantities import quantity


@with_settings(ClientSettings)
def cancel(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.unfinished
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """End a run or a job.

    Waiting jobs end at once; the processes of running jobs are stopped.
    """

    async def request(api: OrchestratorClient) -> tuple[str, Document, Document]:
        kind, before = await find(api, which)
        if kind == "run":
            return kind, before, await api.cancel_run(before["run_id"])
        return kind, before, await api.cancel_job(before["job_id"])

    kind, before, now = answered(settings, request)
    if as_json:
        print_json(now)
    elif before.get("finished_at"):
        typer.echo(f"{kind} {now[f'{kind}_id']} had ended already: {now['state']}")
    elif now.get("finished_at"):
        typer.echo(f"{kind} {now[f'{kind}_id']} {now['state']}")
    else:
        typer.echo(f"{kind} {now[f'{kind}_id']} is being stopped")


@with_settings(ClientSettings)
def approve(
    settings: ClientSettings,
    *,
    run: Annotated[
        str, typer.Argument(help="An id, or its beginning or end.", autocompletion=completers.runs)
    ],
    as_json: AsJson = False,
) -> None:
    """Let the jobs of a stranger's change start.

    Look at the code first.
    """

    async def request(api: OrchestratorClient) -> tuple[int, Document]:
        _, before = await find(api, run, ("run",))
        jobs = (await api.run(before["run_id"]))["jobs"]
        return sum(job["state"] == JobState.APPROVAL for job in jobs), await api.approve_run(before["run_id"])

    count, now = answered(settings, request)
    if as_json:
        print_json(now)
    elif count:
        typer.echo(
            f"run {now['run_id']} approved: {quantity(count, 'job')} of {now['commit_sha'][:10]} may run"
        )
    elif now["state"] in {RunState.DELAYED, RunState.PLANNING}:
        when = (
            f"once it has started, at {now['not_before']}"
            if now["state"] == RunState.DELAYED
            else "in a moment"
        )
        typer.echo(
            f"run {now['run_id']} has no jobs yet: its workflow is still to be read; say it again {when}"
        )
        raise typer.Exit(Exit.FAILED)
    else:
        typer.echo(f"nothing of run {now['run_id']} waits for approval: {now['state']}")


@with_settings(ClientSettings)
def rerun(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.runs_and_jobs
        ),
    ],
    failed: Annotated[
        bool, typer.Option("--failed", help="Only the jobs that did not succeed, and those that need them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a run once more. It becomes a new run.

    For a job: that job, and those that need it.
    """

    async def request(api: OrchestratorClient) -> tuple[str | None, Document]:
        kind, before = await find(api, which)
        if kind == "job" and not failed:
            return str(before["name"]), await api.rerun_job(before["job_id"])
        return None, await api.rerun(before["run_id"], failed=failed)

    job, new = answered(settings, request)
    if as_json:
        print_json(new)
    else:
        what = f"job {job} of " if job else "what failed of " if failed else ""
        typer.echo(f"run {new['run_id']} builds {what}{new['commit_sha'][:10]} again")
        typer.echo(f"  solstice logs -f {new['run_id']}", err=True)


@with_settings(ClientSettings)
def priority(
    settings: ClientSettings,
    *,
    job: Annotated[
        str, typer.Argument(help="An id, or its beginning or end.", autocompletion=completers.jobs)
    ],
    to: Annotated[Priority, typer.Argument(metavar="CLASS", help="critical, high, default or low.")],
    as_json: AsJson = False,
) -> None:
    """Change a job's priority. The job must not have ended.

    The job becomes the newest of its new class.
    """

    async def request(api: OrchestratorClient) -> Document:
        _, before = await find(api, job, ("job",))
        return await api.prioritise(before["job_id"], to)

    now = answered(settings, request)
    if as_json:
        print_json(now)
    else:
        typer.echo(f"job {now['job_id']} has priority {now['priority']}")
        if now["state"] == JobState.RUNNING:
            typer.echo("it runs already: this counts if it has to wait again", err=True)
