"""Asks the dead-letter queues for the commands of `solstice dlq`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import typer

from solstice_cli.commands.dead_letters.dlq_options import (
    ChosenDeadLetters,
    DeadLetterSettings,
)
from solstice_cli.output import dead_letters as shown
from solstice_cli.output.dead_letter_progress import progress
from solstice_common.broker import DeadLetterQueues, open_dead_letter_queues
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import EVERYTHING, browse, ignore_selected
from solstice_common.cli.output import note_when_slow
from solstice_common.errors import ConfigurationError
from solstice_common.settings import without_password

T = TypeVar("T")

NAME: Final = "solstice dlq"


def found_dead_letters(
    settings: DeadLetterSettings,
    chosen: ChosenDeadLetters,
    keep: Callable[[DeadLetterFacts], T],
    *,
    as_json: bool,
    most: int = EVERYTHING,
    whole: bool = False,
    on_selected: Callable[[DeadLetterFacts], None] = ignore_selected,
) -> list[T]:
    """Return what `keep` returns for the chosen dead letters; see `browse`."""
    names = [each.dlq for each in chosen.routes(settings)]

    async def read(queues: DeadLetterQueues) -> list[T]:
        with progress("read", as_json=as_json) as say:
            return await browse(
                *(queues, names, chosen.selection, keep),
                most=most,
                whole=whole,
                on_selected=on_selected,
                on_held=shown.say_held,
                on_progress=say,
            )

    return answered_by(settings, read)


def name_unknown(chosen: ChosenDeadLetters, found: Sequence[DeadLetterFacts]) -> None:
    """Name the ids that fit no dead letter; ConfigurationError when none of several fits."""
    ids = chosen.selection.ids
    unknown = [each for each in ids if not any(one.id.startswith(each) for one in found)]
    words = [shown.not_one(each, []) for each in unknown]
    if unknown and len(unknown) == len(ids):
        raise ConfigurationError("; ".join(words))
    for each in words:
        typer.echo(each, err=True)


def answered_by(settings: DeadLetterSettings, ask: Callable[[DeadLetterQueues], Awaitable[T]]) -> T:
    """Connect, and return the answer."""

    async def work() -> T:
        async with open_dead_letter_queues(
            settings.amqp_url, name=NAME, management_url=settings.management_url
        ) as queues:
            return await ask(queues)

    with note_when_slow(f"the broker at {without_password(settings.amqp_url)}"):
        return asyncio.run(work())
