"""`solstice dlq`: list, replay, remove and export dead letters."""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from solstice_cli import completers
from solstice_cli.commands.dead_letters.dead_letter_reading import (
    answered_by,
    found_dead_letters,
    name_unknown,
)
from solstice_cli.commands.dead_letters.dlq_options import (
    ChosenDeadLetters,
    DeadLetterSettings,
    DryRun,
    OneQueue,
    Queues,
    Yes,
    choose,
    with_choice,
)
from solstice_cli.commands.dead_letters.replay_command import replay
from solstice_cli.output import dead_letters as shown
from solstice_cli.output.dead_letter_lines import STANDARD_STREAM, lines_to_export, lines_to_import
from solstice_cli.output.dead_letter_progress import HandledDeadLetters, interruptible, progress
from solstice_common.broker import DeadLetter, DeadLetterQueues
from solstice_common.broker.dead_letters.counting import DeadLetterCounter
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import drop as drop_from
from solstice_common.broker.dead_letters.dead_letter_operations import existing, put_back
from solstice_common.broker.dead_letters.dead_letter_operations import purge as purge_of
from solstice_common.broker.dead_letters.dead_letter_routes import chosen_routes, import_queue
from solstice_common.broker.dead_letters.selection import Selection
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.errors import ConfigurationError
from solstice_common.runtime.replaced_file import written_whole
from solstice_common.values.quantities import quantity

app: Final = typer.Typer(
    help="Dead letters: list, show, replay, drop, purge, export, import.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)


@app.command("list")
@with_settings(DeadLetterSettings)
@with_choice()
def list_(
    settings: DeadLetterSettings,
    chosen: ChosenDeadLetters,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many, the longest dead first.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters and count them; changes nothing. In a pipe: tab-separated, whole values."""
    now = datetime.now(UTC)
    counting = DeadLetterCounter(now)
    found = found_dead_letters(
        settings, chosen, DeadLetterFacts.brief, as_json=as_json, most=limit, on_selected=counting.add
    )[:limit]  # each of several queues has so many
    counted = counting.read()
    if as_json:
        print_json({"dead_letters": [each.document() for each in found], "counts": counted.document()})
    else:
        shown.print_dead_letters(found, counted, now=now)


@app.command()
@with_settings(DeadLetterSettings)
def show(
    settings: DeadLetterSettings,
    *,
    dead_letter: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Its id, or the beginning of it.", autocompletion=completers.dead_letters
        ),
    ],
    queue: Queues = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter whole: reason, history, headers and body; changes nothing."""
    one: list[DeadLetterFacts] = []

    def keep(finding: DeadLetterFacts) -> DeadLetterFacts:
        # Thousands may begin alike, and only one is shown.
        facts = finding.brief() if one else finding
        one[:] = [facts]
        return facts

    found = found_dead_letters(settings, choose(ids=[dead_letter], queue=queue), keep, as_json=as_json)
    if len(found) != 1:
        raise ConfigurationError(shown.not_one(dead_letter, found))
    if as_json:
        print_json(found[0].whole_document())
    else:
        shown.print_dead_letter(found[0])


app.command()(replay)


@app.command()
@with_settings(DeadLetterSettings)
@with_choice(by_id=True)
def drop(
    settings: DeadLetterSettings,
    chosen: ChosenDeadLetters,
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove chosen dead letters for good; 'export' keeps them in a file first."""
    if chosen.selection.takes_all:
        raise ConfigurationError(
            "drop: say which: ids, --reason, --repository, --priority, --since or --where; 'purge' removes all"
        )
    found = found_dead_letters(settings, chosen, DeadLetterFacts.brief, as_json=as_json)
    name_unknown(chosen, found)
    if dry_run or not found:
        shown.print_dropped([each.id for each in found] if dry_run else [], dry_run=dry_run, as_json=as_json)
        return
    shown.confirm(f"Remove {quantity(len(found), 'dead letter')} for good?", yes=yes)
    # Those that were shown, and no later ones that match, too.
    those = Selection(ids=tuple(each.id for each in found))
    queues_of_them = {each.dead_letter.queue for each in found}

    tally = HandledDeadLetters("removed", len(found))

    async def remove(queues: DeadLetterQueues) -> list[str]:
        removed: list[str] = []
        for name in sorted(queues_of_them):
            with progress(f"removed from {name}", as_json=as_json) as say:
                removed += await drop_from(queues.queue(name), those, on_progress=tally.of_queue(say))
        return removed

    with interruptible(tally.print):
        dropped = answered_by(settings, remove)
    shown.print_dropped(dropped, dry_run=False, as_json=as_json)


@app.command()
@with_settings(DeadLetterSettings)
def purge(
    settings: DeadLetterSettings, *, queue: Queues = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Remove every dead letter of the named queues for good.

    Exits 1 when another reader holds some, which stay.
    """
    if not queue:
        raise ConfigurationError("purge: name the queue: --queue requests, cancels or statuses")
    routes = chosen_routes(settings, queue)

    async def numbers_of(queues: DeadLetterQueues) -> dict[str, int]:
        names = [each.dlq for each in await existing(queues, routes)]
        return {name: await queues.queue(name).count() or 0 for name in names}

    names = answered_by(settings, numbers_of)
    shown.confirm(f"Remove every dead letter of {', '.join(names)} for good?", yes=yes)

    in_use: list[str] = []

    def note_held(name: str, number: int | None) -> None:
        in_use.append(name)
        shown.say_held(name, number)

    tally = HandledDeadLetters("removed", sum(names.values()))

    async def empty(queues: DeadLetterQueues) -> dict[str, int]:
        purged: dict[str, int] = {}
        for name in names:
            with progress(f"removed from {name}", as_json=as_json) as say:
                removing = purge_of(queues.queue(name), on_held=note_held, on_progress=tally.of_queue(say))
                purged[name] = await removing
        return purged

    with interruptible(tally.print):
        purged = answered_by(settings, empty)
    if as_json:
        print_json({"purged": purged})
    else:
        for name, count in purged.items():
            typer.echo(f"removed {quantity(count, 'dead letter')} from {name}")
    if in_use:
        raise typer.Exit(Exit.FAILED)


@app.command()
@with_settings(DeadLetterSettings)
@with_choice()
def export(
    settings: DeadLetterSettings,
    chosen: ChosenDeadLetters,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="It is overwritten; without it: standard output.")
    ] = STANDARD_STREAM,
    as_json: AsJson = False,
) -> None:
    """Write dead letters to a file, one line of JSON each; all stay."""
    with lines_to_export() as lines:
        line_spans = found_dead_letters(settings, chosen, lines.add, whole=True, as_json=as_json)
        if file == STANDARD_STREAM:
            lines.copy(line_spans, sys.stdout.buffer)
            return
        # For its owner alone, as the queue is: it names private repositories and people.
        with written_whole(file) as written:
            lines.copy(line_spans, written)
    shown.print_exported(file, len(line_spans), as_json=as_json)


@app.command("import")
@with_settings(DeadLetterSettings)
def import_(
    settings: DeadLetterSettings,
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As 'export' writes it; - is standard input.")],
    queue: OneQueue = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put exported dead letters back; those that are there already are not added again."""
    into = import_queue(settings, queue) if queue else None
    with lines_to_import(file) as lines:

        def queue_for(named: str) -> str:
            return into or import_queue(settings, named)

        def of(name: str) -> Iterator[DeadLetter]:
            return (each for into_queue, each in lines.read(queue_for) if into_queue == name)

        # All are read once before any is added: nothing is added of a file with a wrong line.
        numbers = Counter(into_queue for into_queue, _ in lines.read(queue_for))
        if dry_run:
            read = {name: {"read": number} for name, number in numbers.items()}
            shown.print_imported(read, as_json=as_json)
            return

        tally = HandledDeadLetters("worked on", sum(numbers.values()))

        async def add(queues: DeadLetterQueues) -> dict[str, dict[str, Any]]:
            done: dict[str, dict[str, Any]] = {}
            for name in numbers:
                with progress(f"added to {name}", as_json=as_json) as say:
                    added = await put_back(queues.queue(name), of(name), on_progress=tally.of_queue(say))
                done[name] = {"added": added.added, "present": added.present, "failed": list(added.failed)}
            return done

        with interruptible(tally.print):
            done = answered_by(settings, add)
    shown.print_imported(done, as_json=as_json)
    if any(each["failed"] for each in done.values()):
        raise typer.Exit(Exit.FAILED)
