"""The command line of `reconcile`: compares sources with their forges now."""

import asyncio
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
import typer

from solstice_common.cli.options import age_given, with_settings
from solstice_common.cli.output import AsJson, note_when_slow, print_json
from solstice_common.cli.program import Exit
from solstice_common.cli.terminal import HarmlessText
from solstice_common.errors import ConfigurationError
from solstice_forge.config import configured_sources
from solstice_forge.inbox import open_inbox
from solstice_forge.metrics import Metrics
from solstice_forge.reconcile.report import ReconcileProblem, ReconcileReport, sentence
from solstice_forge.reconcile.rounds import NOT_NOW, Reconciler
from solstice_forge.remote.http import open_remotes
from solstice_forge.remote.protocol import ForgeAccess
from solstice_forge.remote.source_access import access_of, timeouts_of
from solstice_forge.settings import ReconcileSettings

_REPOSITORY: Final = re.compile(r"[^/\s]+(/[^/\s]+)+")


@with_settings(ReconcileSettings)
def reconcile_command(
    settings: ReconcileSettings,
    *,
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", help="Only this source, instead of all with a url and a token."),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository",
            "-r",
            help="Only this repository: OWNER/NAME. A GitHub App's deliveries are all read.",
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(metavar="AGE", help="How far back to look in GitHub's deliveries: 3d, 12h, 90m."),
    ] = "3d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make up for missed webhooks. Compares sources with their forges.

    GitHub and GitLab are asked to send again what they failed to deliver. On Gitea and Forgejo the heads of branches and
    pull requests are compared with those known here, and built if their webhooks were missed.
    FORGE_RECONCILE_MINUTES does the same by itself. Exits 1 when something could not be compared.
    """
    seconds = age_given("--since", since)
    if not seconds:
        raise ConfigurationError(f"--since: {since!r} is no age: nothing is that new")
    if repository is not None and not _REPOSITORY.fullmatch(repository):
        raise ConfigurationError(f"--repository: {repository!r} is not written OWNER/NAME")
    with note_when_slow("the forges"):
        reports = asyncio.run(
            _compared(settings, source=source, repository=repository, since_seconds=seconds, dry_run=dry_run)
        )
    if as_json:
        print_json(msgspec.to_builtins(reports))
    else:
        for report in reports:
            _print(report)
    if any(report.troubles for report in reports):
        raise typer.Exit(Exit.FAILED)


async def _compared(
    settings: ReconcileSettings,
    *,
    source: str | None,
    repository: str | None,
    since_seconds: float,
    dry_run: bool,
) -> Sequence[ReconcileReport]:
    sources = configured_sources(settings, os.environ)
    accesses = {name: access for name, each in sources.items() if (access := access_of(each)) is not None}
    chosen = _chosen(accesses, source)
    if repository is not None and len(chosen) > 1:
        raise ConfigurationError(f"--repository: of which source? Give --source, one of {', '.join(chosen)}")
    async with (
        open_inbox(settings.forge_inbox_url) as inbox,
        open_remotes(
            [accesses[name] for name in chosen], timeouts=timeouts_of(settings.forge_call_seconds)
        ) as remotes,
    ):
        reconciler = Reconciler(
            inbox=inbox,
            sources=sources,
            remotes=remotes,
            metrics=Metrics(),
            rng=random.Random(),  # noqa: S311  jitter, not a secret
            report_progress=_progress(),
        )
        reports = []
        for name in chosen:
            report = await reconciler.compare(
                name, repository=repository, since_seconds=since_seconds, dry_run=dry_run
            )
            reports.append(report or _not_now(name, dry_run=dry_run))
        return reports


def _chosen(accesses: Mapping[str, ForgeAccess], source: str | None) -> Sequence[str]:
    chosen = sorted(accesses) if source is None else [source] if source in accesses else []
    if chosen:
        return chosen
    which = "no source" if source is None else f"the source {source!r}"
    verb = "has" if source is None else "is not known here, or lacks"
    raise ConfigurationError(
        f"{which} {verb} what its forge can be asked with: give it url and token (or app) in the file FORGE_CONFIG; "
        "'forge-integration check' shows the sources"
    )


def _not_now(name: str, *, dry_run: bool) -> ReconcileReport:
    return ReconcileReport(
        source=name, dry_run=dry_run, repositories=0, troubles=(ReconcileProblem(place=name, detail=NOT_NOW),)
    )


def _progress() -> Callable[[str], None]:
    """Show progress on standard error, if it is a terminal."""

    def report_progress(words: str) -> None:
        typer.secho(_clean(words), err=True, dim=True)

    return report_progress


def _print(report: ReconcileReport) -> None:
    typer.echo(f"{report.source}: {sentence(report)}")
    for sent in report.sent:
        typer.echo(
            _clean(
                f"  again  {sent.place}  {sent.event}  {sent.delivery_id}  ({sent.failure}; time {sent.times})"
            )
        )
    for made in report.made:
        request = f"  request {', '.join(made.request_ids)}" if made.request_ids else ""
        what = f"{made.repository}  {made.ref}  {made.commit_sha}"
        typer.echo(_clean(f"  {made.decision}  {what}  ({made.reason}){request}"))
    for delivery_id in report.given_up:
        typer.echo(_clean(f"  given up  {delivery_id}"))
    for trouble in report.troubles:
        typer.secho(_clean(f"  {trouble.place}: {trouble.detail}"), err=True, fg=typer.colors.RED)


def _clean(text: str) -> str:
    """Return one line without control characters: names are untrusted."""
    indent = " " * (len(text) - len(text.lstrip()))
    return indent + HarmlessText().feed(text).strip()
