"""Declares the options by which the commands of `solstice dlq` choose dead letters."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any

import typer
from pydantic import Field, field_validator

from solstice_cli import completers
from solstice_cli.commands.topology import LocalBrokerSettings
from solstice_common.broker.dead_letters.dead_letter_routes import (
    CANCELS_KIND,
    REQUESTS_KIND,
    STATUSES_KIND,
    DeadLetterRoute,
    chosen_routes,
)
from solstice_common.broker.dead_letters.reasons import ADVICE
from solstice_common.broker.dead_letters.selection import LEAST_OF_AN_ID, Selection, condition, died_since
from solstice_common.cli.options import age_given
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Priority
from solstice_common.runtime.hidden_secrets import SecretUrl
from solstice_common.settings import BrokerSettings, http_address

SHORT_NAMES = (REQUESTS_KIND, CANCELS_KIND, STATUSES_KIND)

Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="QUEUE",
        help="requests (or of one class: requests.high), cancels or statuses, or its full name; may be repeated.",
        autocompletion=lambda: [*SHORT_NAMES],
    ),
]
OneQueue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="QUEUE",
        help="Into this queue, instead of the one in the file.",
        autocompletion=lambda: [*SHORT_NAMES],
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


class DeadLetterSettings(LocalBrokerSettings):
    """The broker whose dead letters are managed."""

    management_url: SecretUrl = Field(
        default="",
        description="RabbitMQ's management API, asked how many dead letters another reader holds; empty: http://HOST:15672.",
    )

    @field_validator("management_url")
    @classmethod
    def _fits(cls, url: str) -> str:
        return http_address(url) if url else url


@dataclass(frozen=True, kw_only=True)
class ChosenDeadLetters:
    """The choice of one call's options."""

    queues: Sequence[str] = ()
    """Names as they were typed; none means all queues."""
    selection: Selection

    def routes(self, settings: BrokerSettings) -> Sequence[DeadLetterRoute]:
        """Return the chosen dead-letter queues; ConfigurationError for an unknown queue."""
        return chosen_routes(settings, self.queues)


def choose(
    *,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Their ids, or beginnings of them.",
            autocompletion=completers.dead_letters,
        ),
    ] = None,
    queue: Queues = None,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason",
            help="Only with this reason, such as invalid_field.",
            autocompletion=lambda: sorted(ADVICE),
        ),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository", "-r", help="Only of this repository: OWNER/NAME, a pattern of it, or its URL."
        ),
    ] = None,
    priority: Annotated[Priority | None, typer.Option("--priority", "-p", help="Only of this class.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="Only what died within this time: 90m, 12h, 7d."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="HEADER=VALUE", help="Only with this header; may be repeated."),
    ] = None,
) -> ChosenDeadLetters:
    """Read the options. ConfigurationError for an invalid one.

    This signature is the only declaration of the filters: `with_choice` gives it to commands.
    """
    for each in ids or ():
        if len(each) < LEAST_OF_AN_ID:
            raise ConfigurationError(
                f"{each!r}: give at least {LEAST_OF_AN_ID} characters of an id; 'solstice dlq list' shows them"
            )
    try:
        conditions = dict(map(condition, where or ()))
    except ValueError as error:
        raise ConfigurationError(f"--where: {error}") from None
    age = None if since is None else age_given("--since", since)
    selection = Selection(
        ids=tuple(ids or ()),
        reason=reason,
        repository=repository,
        priority=priority,
        since=None if age is None else died_since(datetime.now(UTC), age),
        where=MappingProxyType(conditions),
    )
    return ChosenDeadLetters(queues=queue or (), selection=selection)


def with_choice(*, by_id: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a Typer command's second parameter, a `ChosenDeadLetters`, by the options for it.

    With `by_id`, the command also takes ids as arguments.
    """
    options = [
        each
        for each in inspect.signature(choose, eval_str=True).parameters.values()
        if by_id or each.name != "ids"
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        settings, _, *own = inspect.signature(command, eval_str=True).parameters.values()

        def call(settings: BrokerSettings, **arguments: Any) -> None:
            chosen = choose(**{each.name: arguments.pop(each.name) for each in options})
            command(settings, chosen, **arguments)

        call.__signature__ = inspect.Signature([settings, *options, *own])  # type: ignore[attr-defined]  # what Typer reads
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate
