"""`deliveries list | show | replay`: why a push was built or not.

The commands also work while the service runs.
"""

import asyncio
import getpass
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from solstice_common.cli import running_up
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, note_when_slow, one_line, print_json, print_rows
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.cli.tables import TableLayout, print_table
from solstice_common.errors import ConfigurationError
from solstice_common.settings import without_password
from solstice_common.values.quantities import quantity
from solstice_common.values.times import age, age_seconds, format_seconds, parse_timestamp
from solstice_forge.api.api_models import fields_of
from solstice_forge.commands.delivery_numbers import newest_numbers
from solstice_forge.config import configured_sources
from solstice_forge.decisions.replay import DeliveryNotReplayable, replay
from solstice_forge.decisions.sources import WebhookSource, unverified_source
from solstice_forge.decisions.verdict_words import decision_style, fate, run_address
from solstice_forge.inbox import InboxStore, open_inbox
from solstice_forge.inbox.log import DeliveryEntry, DeliveryFilter, RecordedDelivery
from solstice_forge.inbox.protocol import Decision, KeepResult
from solstice_forge.inbox.reconcile_state import ResendRecord
from solstice_forge.settings import DeliveriesSettings

T = TypeVar("T")

RELATED: Final = 20
PAGE: Final = 200
LONGEST_NUMBER: Final = 16
COLUMNS: Final = ("NUMBER", "AGE", "SOURCE", "EVENT", "REPOSITORY", "DECISION", "REASON", "NOW")
LAYOUT: Final = TableLayout(
    folded=frozenset({"SOURCE", "EVENT", "REPOSITORY", "REASON", "NOW"}),
    dropped_first=("EVENT", "SOURCE", "AGE", "REASON", "NOW", "REPOSITORY"),
)

app: Final = typer.Typer(
    name="deliveries",
    help="Deliveries: list, show, replay.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)

Which = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Its number in the list, or the id that the forge gave it.",
        autocompletion=newest_numbers,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDetails:
    """A delivery with its copies, replays and resends."""

    recorded: RecordedDelivery
    copies: Sequence[DeliveryEntry]
    replays: Sequence[DeliveryEntry]
    resends: ResendRecord | None
    """How often the forge was asked to send it again, if it was."""


@app.command("list")
@with_settings(DeliveriesSettings)
def list_(
    settings: DeliveriesSettings,
    *,
    source: Annotated[str | None, typer.Option("--source", "-s", help="Only of this source.")] = None,
    repository: Annotated[
        str | None, typer.Option("--repository", "-r", help="Only of this repository: OWNER/NAME.")
    ] = None,
    decision: Annotated[
        Decision | None, typer.Option("--decision", "-d", help="Only those with this decision.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only those with this reason.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only those received since: 30m, 12h, 3d, or a time (RFC 3339, UTC)."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most entries to list.")] = 20,
    before: Annotated[
        int | None, typer.Option("--before", min=1, help="Only those with a lower number: the next page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List deliveries, newest first. In a pipe: tab-separated, full values, no heading."""
    now = time.time()
    filters = DeliveryFilter(
        source=source,
        repository=repository,
        decision=decision,
        reason=reason,
        since=None if since is None else moment(since, now),
    )
    found, following = _with_inbox(settings, lambda inbox: _list(inbox, filters, limit, before))
    if as_json:
        print_json({"deliveries": [fields_of(entry) for entry in found], "next": following})
    else:
        _print_list(found, following, now, has_filters=filters != DeliveryFilter() or before is not None)


@app.command()
@with_settings(DeliveriesSettings)
def show(
    settings: DeliveriesSettings,
    *,
    which: Which,
    body: Annotated[bool, typer.Option("--body", help="Print its body, and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one delivery and its decision."""
    details = _with_inbox(settings, lambda inbox: _show(inbox, which))
    if body:
        typer.echo(details.recorded.body, nl=False)
    elif as_json:
        print_json(_whole(details))
    else:
        _print_details(details, settings)


@app.command("replay")
@with_settings(DeliveriesSettings)
def replay_(settings: DeliveriesSettings, *, which: Which, as_json: AsJson = False) -> None:
    """Build a delivery once more. The current rules decide.

    This is a new run, recorded as yours.

    Exits 0 when it requests a run, 1 when by the rules it requests nothing, or when it cannot be replayed.
    """
    result = _with_inbox(settings, lambda inbox: _replay(inbox, which, settings))
    if isinstance(result, DeliveryNotReplayable):
        typer.secho(f"not replayed: {result.detail}", err=True, fg=typer.colors.RED)
        raise typer.Exit(Exit.FAILED)
    if as_json:
        print_json(
            {
                "delivery_id": result.delivery_id,
                "decision": result.decision.value,
                "reason": result.reason,
                "request_ids": list(result.request_ids),
            }
        )
    elif result.decision is Decision.ACCEPTED:
        typer.echo(f"replayed as {result.delivery_id}: request {', '.join(result.request_ids)}")
    else:
        typer.echo(f"replayed as {result.delivery_id}: {result.decision.value} ({result.reason})")
    if result.decision is not Decision.ACCEPTED:
        raise typer.Exit(Exit.FAILED)


def moment(text: str, now: float) -> float:
    """`30m`, `12h`, `3d` ago, or a time, in seconds since the epoch.

    ConfigurationError for anything else.
    """
    with suppress(ValueError):
        return now - age_seconds(text)
    with suppress(ValueError):
        return parse_timestamp(text).timestamp()
    raise ConfigurationError(
        f"--since: {text!r} is neither an age (30m, 12h, 3d) nor a time like 2026-01-31T12:00:00Z"
    )


def _with_inbox(settings: DeliveriesSettings, work: Callable[[InboxStore], Coroutine[Any, Any, T]]) -> T:
    async def opened() -> T:
        async with open_inbox(settings.forge_inbox_url) as inbox:
            return await work(inbox)

    with note_when_slow(f"the inbox at {without_password(settings.forge_inbox_url)}"):
        return asyncio.run(opened())


async def _list(
    inbox: InboxStore, filters: DeliveryFilter, limit: int, before: int | None
) -> tuple[list[DeliveryEntry], int | None]:
    listed: list[DeliveryEntry] = []
    while True:
        page = await inbox.entries(filters, limit=min(PAGE, limit - len(listed)), before=before)
        listed += page.entries
        before = page.next
        if before is None or len(listed) >= limit:
            return listed, before


async def _find(inbox: InboxStore, which: str) -> RecordedDelivery:
    """Find a delivery by number or by the forge's id.

    Of several with one id it is the first, which the others repeat.
    """
    numbers = [int(which)] if which.isdecimal() and len(which) <= LONGEST_NUMBER else []
    for number in (*numbers, *await inbox.numbers_of(which)):
        if entry := await inbox.recorded(number):
            return entry
    raise ConfigurationError(
        f"there is no delivery {which!r}: it never came, was refused (the service's log says so), or was removed; "
        "'forge-integration deliveries list' shows those there are"
    )


async def _show(inbox: InboxStore, which: str) -> DeliveryDetails:
    recorded = await _find(inbox, which)
    number, name, delivery_id = (
        recorded.entry.row_id,
        recorded.entry.source_name,
        recorded.entry.delivery_id,
    )
    return DeliveryDetails(
        recorded=recorded,
        copies=await inbox.copies_of(number, limit=RELATED),
        replays=await inbox.replays_of(number, limit=RELATED),
        resends=(await inbox.reconcile_state.resends(name, [delivery_id])).get(delivery_id),
    )


async def _replay(
    inbox: InboxStore, which: str, settings: DeliveriesSettings
) -> KeepResult | DeliveryNotReplayable:
    recorded = await _find(inbox, which)
    if recorded.entry.repeats is not None:
        # A copy has no body: replay its original.
        recorded = await inbox.recorded(recorded.entry.repeats) or recorded
    name = recorded.entry.source_name
    source = _source(settings, name)
    if source is None:
        return DeliveryNotReplayable(
            detail=f"its source {name!r} is not configured here: set FORGE_CONFIG, or its secret, as for the service"
        )
    replayed = replay(recorded, source, now=time.time(), token=secrets.token_hex(6), person=_user_name())
    return replayed if isinstance(replayed, DeliveryNotReplayable) else await inbox.keep(replayed)


def _source(settings: DeliveriesSettings, name: str) -> WebhookSource | None:
    """Return the source as configured here, else as the running `solstice up` has it."""
    up = running_up.read()
    if up is None or up.inbox != running_up.shareable(settings.forge_inbox_url):
        return configured_sources(settings, os.environ).get(name)
    if not settings.forge_config:
        settings = settings.model_copy(update={"forge_config": up.forge_config})
    found = configured_sources(settings, os.environ).get(name)
    # It generates missing secrets, and a replay verifies nothing.
    return found if found or settings.forge_config else unverified_source(name)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        return f"user {os.getuid()}"


def _whole(details: DeliveryDetails) -> dict[str, Any]:
    recorded = details.recorded
    return {
        **fields_of(recorded.entry),
        "headers": dict(recorded.headers),
        "body_bytes": len(recorded.body),
        "request": None if recorded.request is None else orjson.loads(recorded.request),
        "copies": [fields_of(entry) for entry in details.copies],
        "replays": [fields_of(entry) for entry in details.replays],
        "asked_again": None
        if details.resends is None
        else {"times": details.resends.times, "asked_at": format_seconds(details.resends.requested_at)},
    }


def _print_list(
    entries: Sequence[DeliveryEntry], following: int | None, now: float, *, has_filters: bool
) -> None:
    console = Console()
    if not entries:
        none = "No delivery matches." if has_filters else "No deliveries yet."
        typer.echo(
            f"{none} One that never came, or was refused for its signature, is not here.",
            err=not console.is_terminal,
        )
        return
    if not console.is_terminal:
        print_rows(map(_row, entries))
        return
    print_table(console, COLUMNS, [_cells(entry, now) for entry in entries], LAYOUT)
    if following is not None:
        console.print(f"There are older ones: --before {following}", style="dim", markup=False)


def _row(entry: DeliveryEntry) -> Sequence[object]:
    document = fields_of(entry)
    names = ("number", "received_at", "source", "delivery_id", "event", "repository")
    named = (document[name] for name in names)
    return (*named, entry.decision.value, entry.reason, ",".join(entry.request_ids), fate(entry))


def _cells(entry: DeliveryEntry, now: float) -> Sequence[str]:
    style = decision_style(entry)
    return (
        str(entry.row_id),
        age(now - entry.received_at),
        escape(one_line(entry.source_name)),
        escape(one_line(entry.event_name)),
        escape(one_line(entry.repo_full_name or "")),
        f"[{style}]{entry.decision.value}[/{style}]",
        escape(one_line(entry.reason)),
        escape(one_line(fate(entry))),
    )


def _print_details(details: DeliveryDetails, settings: DeliveriesSettings) -> None:
    entry, recorded = details.recorded.entry, details.recorded
    document = fields_of(entry)
    request = {} if recorded.request is None else orjson.loads(recorded.request)
    facts = [
        ("delivery", entry.row_id),
        ("id", entry.delivery_id),
        ("source", entry.source_name),
        ("event", entry.event_name),
        ("received", document["received_at"]),
        ("repository", entry.repo_full_name),
        ("decision", f"{entry.decision.value} ({entry.reason})"),
        ("detail", entry.detail),
        ("asked again", _times(details.resends)),
        ("repeats", entry.repeats and f"delivery {entry.repeats}"),
        ("ref", request.get("ref")),
        ("commit", request.get("commit_sha")),
        ("request", ", ".join(entry.request_ids)),
        ("now", fate(entry)),
        ("run", run_address(settings.public_url, entry)),
        ("body", f"{len(recorded.body)} bytes (--body prints it)" if recorded.body else "not stored"),
        *(("copy", f"delivery {each.row_id}, {each.reason}") for each in details.copies),
        *(("replayed", f"delivery {each.row_id}, {each.decision.value}") for each in details.replays),
    ]
    console = Console(soft_wrap=True, highlight=False)
    for name, value in facts:
        if value not in {None, ""}:
            console.print(f"[bold]{name.ljust(12)}[/bold]{escape(one_line(str(value)))}")


def _times(resends: ResendRecord | None) -> str:
    if resends is None:
        return ""
    return f"{quantity(resends.times, 'time')}, last {format_seconds(resends.requested_at)}: the forge had failed"
