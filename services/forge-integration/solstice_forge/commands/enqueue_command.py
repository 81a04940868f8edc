"""The command line of `enqueue`, for `forge-integration` and, with another default broker, for `solstice`."""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from solstice_common.broker import Published, PublishStatus
from solstice_common.cli import running_up
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.following import RunWait, follow_run, once_per_reason
from solstice_common.cli.local_repository import Commit, check_ref, commit_of, remote_url
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import json_option, note_when_slow, print_json
from solstice_common.cli.program import Exit
from solstice_common.errors import ConfigurationError, ServiceUnavailable
from solstice_common.messages import JobRequestV1, Priority
from solstice_common.messages.states import FINAL, JobState, RunState
from solstice_common.settings import sqlite_path, state_directory, without_password
from solstice_common.values.quantities import quantity
from solstice_forge.commands.enqueue import EnqueueInput, EnqueueSettings, advice, job_request, publish

ADMISSION_POLL_SECONDS = 0.2
LOST_ORCHESTRATOR_SECONDS = 60.0
"""How long we wait for an orchestrator that has answered before."""


PUBLISH_EXIT = {
    PublishStatus.CONFIRMED: Exit.OK,
    PublishStatus.UNROUTABLE: Exit.FAILED,
    PublishStatus.REJECTED: Exit.FAILED,
    PublishStatus.UNKNOWN: Exit.UNAVAILABLE,
}


def enqueue_command(settings_model: type[EnqueueSettings]) -> Callable[..., None]:
    """Return the command, with the defaults of `settings_model`."""

    @with_settings(settings_model)
    def enqueue(
        settings: EnqueueSettings,
        *,
        repo_url: Annotated[
            str | None,
            typer.Option(
                help="Repository to build: a URL, git@host:path, or a folder of this machine.",
                show_default="the repository of this folder, or its remote for a broker elsewhere",
            ),
        ] = None,
        commit_sha: Annotated[
            str | None,
            typer.Option(help="Commit to build; a full id, unless it is in the folder.", show_default="HEAD"),
        ] = None,
        runs_on: Annotated[str | None, typer.Option(help="Label for jobs that name none.")] = None,
        workflow_path: Annotated[str | None, typer.Option(help="Workflow file in the repository.")] = None,
        workflow_job_id: Annotated[
            str | None, typer.Option(help="Run only this job of the workflow.")
        ] = None,
        inputs: Annotated[
            list[str] | None,
            typer.Option(
                "--input", metavar="NAME=VALUE", help="A manual input of the workflow; may be repeated."
            ),
        ] = None,
        ref: Annotated[str | None, typer.Option(help="Branch or tag, to show beside the run.")] = None,
        priority: Annotated[Priority | None, typer.Option(help="Priority class.")] = None,
        idempotency_key: Annotated[
            str | None,
            typer.Option(help="Your own name for this request: requests with the same name are one run."),
        ] = None,
        not_before: Annotated[
            str | None,
            typer.Option(metavar="TIME", help="Earliest start, RFC 3339: 2026-01-31T22:00:00+01:00."),
        ] = None,
        delay: Annotated[
            str | None,
            typer.Option(metavar="DURATION", help="Earliest start from now: 90, 30s, 15m, 2h, 1d."),
        ] = None,
        wait: Annotated[bool, typer.Option("--wait", help="Wait, and exit with the run's result.")] = False,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Wait, and show its logs meanwhile.")
        ] = False,
        timeout: Annotated[
            float | None, typer.Option(min=0.0, help="Seconds to wait at most.", show_default="no limit")
        ] = None,
        as_json: Annotated[bool, json_option(prints="Print one JSON object at the end.")] = False,
    ) -> None:
        """Ask for a commit to be built.

        With --wait, exit 0 when it succeeded and 1 when it did not.
        """
        repo_url, commit_sha, ref = _commit(repo_url, commit_sha, ref, here=_is_here(settings))
        request_input = EnqueueInput(
            repo_url=repo_url,
            commit_sha=commit_sha,
            runs_on=runs_on,
            workflow_path=workflow_path,
            workflow_job_id=workflow_job_id,
            inputs=inputs or (),
            ref=ref,
            priority=priority.value if priority else None,
            idempotency_key=idempotency_key,
            not_before=not_before,
            delay=delay,
        )
        request = job_request(request_input, now=datetime.now(UTC), new_id=uuid.uuid4())
        with note_when_slow(f"the broker at {without_password(settings.amqp_url)}"):
            published = asyncio.run(publish(request, settings))
        if not published.confirmed or not (wait or follow):
            _report(request, published, settings, as_json=as_json)
        watch = _Watch(request, follow=follow, logs_to_stderr=as_json)
        if not as_json:
            watch.say(f"confirmed: request {request.request_id} is with the broker")
        run = _wait(watch, settings, timeout)
        _print_result(request, published, run, as_json=as_json)
        raise typer.Exit(Exit.OK if run["state"] == RunState.SUCCEEDED else Exit.FAILED)

    return enqueue


def _is_here(settings: EnqueueSettings) -> bool:
    """Whether orchestrators of this broker can read this machine's folders.

    The broker is embedded, or that of `solstice up`.
    """
    up = running_up.read()
    return settings.amqp_url.startswith("sqlite:") or (up is not None and up.broker == settings.amqp_url)


def _commit(
    repo_url: str | None, commit_sha: str | None, ref: str | None, *, here: bool
) -> tuple[str, str, str | None]:
    """Return the repository, the commit and its ref.

    They are completed from the folder where it is one of this machine.
    """
    for flag, value in (("--repo-url", repo_url), ("--commit-sha", commit_sha)):
        # An empty variable in a script must not build what happens to be here.
        if value == "":
            raise ConfigurationError(f"{flag} must not be empty")
    if repo_url is not None and ":" in repo_url and not Path(repo_url).is_dir():
        if commit_sha is None:
            raise ConfigurationError("--commit-sha is needed when --repo-url is not a folder of this machine")
        return repo_url, commit_sha, ref
    commit = commit_of(Path(repo_url or "."), commit_sha)
    url = remote_url(commit) if repo_url is None and not here else None
    if ref is not None:
        check_ref(commit, ref)
    if commit.dirty:
        typer.secho(f"warning: {_not_built(commit)}: they are not built", err=True, fg=typer.colors.YELLOW)
    return url or str(commit.folder), commit.sha, ref or commit.ref


def _not_built(commit: Commit) -> str:
    changes = "there are changes that are not committed"
    if not commit.untracked:
        return changes
    return f"{changes}, and {quantity(commit.untracked, 'file')} that git does not track"


def _report(
    request: JobRequestV1, published: Published, settings: EnqueueSettings, *, as_json: bool
) -> NoReturn:
    """Say how the publish ended, and exit with it."""
    words = advice(published, request, settings)
    if as_json:
        print_json(_outcome(request, published))
    elif published.confirmed:
        typer.echo(f"confirmed: request {request.request_id} is with the broker")
        _hint_when_nothing_runs(settings)
    if not published.confirmed:
        typer.secho(f"error: {words}", err=True, fg=typer.colors.RED)
    raise typer.Exit(Exit.USAGE if published.lacks_right else PUBLISH_EXIT[published.status])


def _hint_when_nothing_runs(settings: EnqueueSettings) -> None:
    """Say what will build the request while no `solstice up` runs for this broker."""
    is_local = settings.amqp_url.startswith("sqlite:")
    if is_local and sqlite_path(settings.amqp_url).parent == state_directory() and running_up.read() is None:
        file = sqlite_path(settings.amqp_url)
        typer.echo(f"stored in {file}: no 'solstice up' is ready there; start one to build it", err=True)


class _Watch:
    """The progress that the person sees, and the known state of the run."""

    def __init__(self, request: JobRequestV1, *, follow: bool, logs_to_stderr: bool) -> None:
        self.request = request
        self.run: Document | None = None
        self._follow = follow
        self._out = sys.stderr if logs_to_stderr else sys.stdout
        self._status: Status | None = None
        self._console = Console(stderr=True)

    def say(self, text: str) -> None:
        """Print a line of our own, beside the progress."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    async def to_the_end(self, settings: EnqueueSettings) -> Document:
        """Wait until the run has ended; return it with its jobs."""
        with self._console.status("waiting for an orchestrator to take the request ...") as self._status:
            async with OrchestratorClient.of(settings) as api:
                run = await self._admission(api)
                self.run = run
                self.say(f"run {run['run_id']}")
                if run["state"] == RunState.DELAYED:
                    self.say(f"it starts at {run['not_before']}, which is waited for")
                if self._follow:
                    self._status.stop()
                return await follow_run(
                    api,
                    run["run_id"],
                    self._write if self._follow else None,
                    changed=self._changed,
                    waits=once_per_reason(self.say) if self._follow else self._waits,
                    terminal=self._out.isatty(),
                )

    async def _admission(self, api: OrchestratorClient) -> Document:
        """Wait for the run of the request.

        An orchestrator that has answered before may be unavailable for a while.
        """
        seen_at: float | None = None
        while True:
            try:
                run = await api.run_of_request(self.request.request_id)
            except ServiceUnavailable:
                if seen_at is None or time.monotonic() - seen_at > LOST_ORCHESTRATOR_SECONDS:
                    raise
            else:
                if run is not None:
                    return run
                seen_at = time.monotonic()
            await asyncio.sleep(ADMISSION_POLL_SECONDS)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _changed(self, run: Document) -> None:
        self.run = run
        self._show(_progress(run))

    def _waits(self, wait: RunWait) -> None:
        self._show(f"{_progress(self.run)}; {wait}" if self.run else str(wait))

    def _show(self, text: str) -> None:
        """Show progress on a terminal, where no logs are shown."""
        if self._status and not self._follow:
            self._status.update(escape(text))


def _progress(run: Document) -> str:
    if run["state"] == RunState.DELAYED:
        return f"delayed: starts at {run['not_before']}"
    jobs = run.get("jobs", [])
    ended = sum(job["state"] in FINAL for job in jobs)
    running = ", ".join(job["name"] for job in jobs if job["state"] == JobState.RUNNING)
    now = f", running: {running}" if running else ""
    return f"{run['state']}: {ended} of {len(jobs)} jobs ended{now}"


def _wait(watch: _Watch, settings: EnqueueSettings, timeout_seconds: float | None) -> Document:
    async def bounded() -> Document:
        async with asyncio.timeout(timeout_seconds):
            return await watch.to_the_end(settings)

    try:
        return asyncio.run(bounded())
    except TimeoutError:
        typer.secho(
            f"error: not ended after {timeout_seconds:g} s. {_where(watch)}", err=True, fg=typer.colors.RED
        )
        raise typer.Exit(Exit.UNAVAILABLE) from None
    except KeyboardInterrupt:
        watch.say(f"\nstopped waiting; nothing was cancelled. {_where(watch)}")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _where(watch: _Watch) -> str:
    if watch.run is None:
        return f"No orchestrator has taken the request {watch.request.request_id} yet: is one running on this broker?"
    run_id = watch.run["run_id"]
    return f"It goes on: 'solstice show {run_id}' shows it, 'solstice cancel {run_id}' ends it."


def _print_result(request: JobRequestV1, published: Published, run: Document, *, as_json: bool) -> None:
    if as_json:
        print_json({**_outcome(request, published), "run": run})
        return
    for job in run.get("jobs", []):
        code = f" (exit code {job['exit_code']})" if job.get("exit_code") else ""
        detail = f": {job['detail']}" if job.get("detail") else ""
        typer.echo(f"{job['name']}: {job['state']}{code}{detail}", err=True)
    detail = f": {run['detail']}" if run.get("detail") else ""
    typer.echo(f"run {run['run_id']} {run['state']}{detail}")


def _outcome(request: JobRequestV1, published: Published) -> Document:
    return {
        "request_id": request.request_id,
        "idempotency_key": request.idempotency_key,
        "published": published.status.value,
        "detail": published.detail,
    }
