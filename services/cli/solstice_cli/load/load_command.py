"""`solstice load`: how much a running system bears, and whether it loses or repeats anything."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from solstice_cli.commands.enqueue import LocalEnqueueSettings
from solstice_cli.commands.webhook import WebhookSecret, webhook_secret, webhook_target
from solstice_cli.load.load_output import LoadBars, load_bars, print_report
from solstice_cli.load.load_plan import DEFAULT_MIX, JobKind, LoadPlan, parse_mix, parse_priorities
from solstice_cli.load.load_report import LoadReport, Sent, judged
from solstice_cli.load.load_repository import commits_of, make_load_repository
from solstice_cli.load.load_runs import LoadRuns
from solstice_cli.load.load_sending import LoadSender, QueuePublisher, Target, WebhookPoster, send_all
from solstice_common.cli.api_client import OrchestratorClient
from solstice_common.cli.local_repository import as_url
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import json_option, print_json
from solstice_common.cli.program import Exit
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.values.repo_urls import full_name_of

MAX_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """A load, and how it is sent."""

    plan: LoadPlan
    target: Target
    sender: Callable[[], AbstractAsyncContextManager[LoadSender]]
    timeout_seconds: float


@dataclass(slots=True)
class _Course:
    """How far a load has come."""

    sent: list[Sent] = field(default_factory=list)
    all_sent: bool = False

    def accepted(self) -> int | None:
        """How many were accepted; None while some are still to be sent."""
        return sum(each.refusal is None for each in self.sent) if self.all_sent else None


@with_settings(LocalEnqueueSettings)
def load(
    settings: LocalEnqueueSettings,
    *,
    requests: Annotated[
        int, typer.Option("--requests", "-n", min=1, max=MAX_REQUESTS, help="How many.")
    ] = 100,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Requests per second.", show_default="all at once"),
    ] = None,
    burst: Annotated[int, typer.Option(min=1, help="How many come at the same moment, at that rate.")] = 1,
    mix: Annotated[
        str, typer.Option(metavar="SHARES", help=f"What the jobs do: {', '.join(JobKind)}.")
    ] = DEFAULT_MIX,
    repositories: Annotated[int, typer.Option(min=1, max=100, help="Over how many repositories.")] = 3,
    priorities: Annotated[
        str, typer.Option(metavar="SHARES", help="Priority classes: critical=1,default=9. By the queue only.")
    ] = "",
    by: Annotated[str, typer.Option(help="How they come: queue or webhook.")] = "queue",
    source: Annotated[Source, typer.Option(help="The forge that webhooks imitate.")] = Source.FORGEJO,
    webhook_url: Annotated[
        str | None,
        typer.Option(help="Address of forge-integration.", show_default="that of the running 'solstice up'"),
    ] = None,
    secret: WebhookSecret = None,
    repo_url: Annotated[
        str | None,
        typer.Option(
            help="A repository with the branches of --write-repository.",
            show_default="a new one in a temporary folder",
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Container image of the jobs, in a repository that is made here.")
    ] = None,
    runs_on: Annotated[str | None, typer.Option(help="Label of the jobs. By the queue only.")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds after which it is judged anyway.")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same mix.")] = None,
    write_repository: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Make the repository of a load there, and end."),
    ] = None,
    as_json: Annotated[bool, json_option(prints="Print the report as JSON.")] = False,
) -> None:
    """Send a mix of requests to a running system, and report what became of them.

    Exit 0 when each was accepted and ended once, as its kind has to, else 1. Nothing is cancelled when it is
    interrupted.
    """
    if write_repository is not None:
        make_load_repository(write_repository, image=image)
        typer.echo(f"made {write_repository}: push all its branches to where the system can fetch them")
        return
    plan = LoadPlan(
        requests=requests,
        mix=parse_mix(mix),
        priorities=parse_priorities(priorities),
        repositories=repositories,
        rate=rate,
        burst=burst,
        seed=random.SystemRandom().randrange(2**32) if seed is None else seed,
    )
    if not plan.mix:
        raise ConfigurationError(f"--mix is empty: name kinds with their shares, as in {DEFAULT_MIX}")
    if by not in {"queue", "webhook"}:
        raise ConfigurationError(f"--by {by!r}: choose queue or webhook")
    if by == "webhook" and (priorities or runs_on):
        raise ConfigurationError(
            "--priorities and --runs-on: a webhook says neither, rules of the system do; leave them out, or use --by queue"
        )
    if burst > 1 and rate is None:
        raise ConfigurationError("--burst needs --rate: without a rate, all come at the same moment")
    with tempfile.TemporaryDirectory(prefix="solstice-load-") as scratch:
        target = _target(Path(scratch), repo_url, image, plan, runs_on)

        def sender() -> AbstractAsyncContextManager[LoadSender]:
            if by == "queue":
                return QueuePublisher.open(settings, target)
            url = webhook_target(webhook_url, source)
            return WebhookPoster.open(url, source, webhook_secret(source, secret), target)

        ordered = _Load(plan=plan, target=target, sender=sender, timeout_seconds=timeout)
        course = _Course()
        with load_bars(requests, as_json=as_json) as progress:
            report = asyncio.run(_carried_out(ordered, settings, course, progress))
    if as_json:
        print_json({"load_id": target.load_id, "seed": plan.seed, "good": report.good, **asdict(report)})
    else:
        print_report(report)
    raise typer.Exit(Exit.OK if report.good else Exit.FAILED)


def _target(
    scratch: Path, repo_url: str | None, image: str | None, plan: LoadPlan, runs_on: str | None
) -> Target:
    load_id = f"{random.SystemRandom().randrange(16**8):08x}"
    if repo_url is None:
        make_load_repository(scratch / "load.git", image=image)
    elif image is not None:
        raise ConfigurationError(
            "--image is for a repository that is made here: use it with --write-repository"
        )
    url = as_url(str(scratch / "load.git") if repo_url is None else repo_url)
    own_name = full_name_of(url) if repo_url is not None else None
    names = [f"load/{load_id}-{number + 1}" for number in range(plan.repositories)]
    if plan.repositories == 1 and own_name:
        # Its statuses then reach a repository that exists.
        names = [own_name]
    return Target(load_id=load_id, repo_url=url, repositories=names, commits=commits_of(url), runs_on=runs_on)


async def _carried_out(
    load: _Load, settings: LocalEnqueueSettings, course: _Course, progress: LoadBars
) -> LoadReport:
    """Send everything, wait for the ends, and judge."""
    async with OrchestratorClient.of(settings) as api:
        # Nothing is sent as long as no API can say what became of it.
        await api.runs(limit=1)
        watch = LoadRuns(api, load.target)

        def answered(batch: Sequence[Sent]) -> None:
            course.sent.extend(batch)
            watch.answered(batch)
            progress.sent(len(course.sent))

        async def send(sender: LoadSender) -> None:
            await send_all(sender, load.plan.drawn(), answered)
            course.all_sent = True

        async with load.sender() as sender:
            try:
                async with asyncio.timeout(load.timeout_seconds), asyncio.TaskGroup() as group:
                    group.create_task(send(sender))
                    group.create_task(watch.until_ended(course.accepted, progress.ended))
            except TimeoutError:
                # What is known by now is judged.
                await watch.read()
        return judged(course.sent, await watch.seen(), requests=load.plan.requests)
