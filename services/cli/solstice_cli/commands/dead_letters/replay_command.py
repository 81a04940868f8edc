"""`solstice dlq replay`: publish dead letters again."""

import uuid
from typing import Annotated, Final

import typer

from solstice_cli.commands.dead_letters.dead_letter_reading import (
    NAME,
    answered_by,
    found_dead_letters,
    name_unknown,
)
from solstice_cli.commands.dead_letters.dlq_options import (
    ChosenDeadLetters,
    DeadLetterSettings,
    DryRun,
    with_choice,
)
from solstice_cli.output import dead_letters as shown
from solstice_cli.output.dead_letter_progress import interruptible, progress
from solstice_common.broker import DeadLetterQueues, open_broker
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.dead_letter_operations import existing
from solstice_common.broker.dead_letters.replay_message import reason_to_stay
from solstice_common.broker.dead_letters.replaying import Replay, Replayed
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import Exit
from solstice_common.errors import ConfigurationError

CONNECT_SECONDS: Final = 10.0

All = Annotated[bool, typer.Option("--all", "-a", help="All there are, where nothing else chooses.")]


@with_settings(DeadLetterSettings)
@with_choice(by_id=True)
def replay(
    settings: DeadLetterSettings,
    chosen: ChosenDeadLetters,
    *,
    everything: All = False,
    rate: Annotated[float | None, typer.Option(min=0.01, help="At most so many a second.")] = None,
    watch: Annotated[
        float, typer.Option(min=0, help="Wait so many seconds, and say what came back dead; 0: do not.")
    ] = 2.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again, each removed once the broker has confirmed it.

    Interrupted at any moment nothing is lost: run it again. A request that was published twice is built once.

    Exits 1 when the broker did not take all of them, or one came back dead.
    """
    if chosen.selection.takes_all and not chosen.queues and not everything:
        raise ConfigurationError(
            "replay: say which: ids, --queue, --reason, --repository, --priority, --since, --where, or --all"
        )
    if dry_run:
        _print_plan(settings, chosen, as_json=as_json)
        return
    if chosen.selection.ids:
        name_unknown(chosen, found_dead_letters(settings, chosen, DeadLetterFacts.brief, as_json=as_json))
    routes = chosen.routes(settings)
    replay_id = uuid.uuid4().hex

    reports: list[Replayed] = []

    async def send(queues: DeadLetterQueues) -> None:
        async with open_broker(settings.amqp_url, name=NAME) as broker:
            await broker.ready(CONNECT_SECONDS)
            for route in await existing(queues, routes):
                with progress(f"replayed from {route.dlq}", as_json=as_json) as say:
                    one = Replay(
                        broker=broker,
                        queues=queues,
                        dlq=route.dlq,
                        route=route.replays,
                        selection=chosen.selection,
                        replay_id=replay_id,
                        by=NAME,
                        rate=rate,
                        on_progress=say,
                    )
                    reports.append(one.report)
                    await one.run(watch_seconds=watch)
                if reports[-1].broken_off:
                    break

    def print_reports() -> None:
        if as_json:
            print_json({"replays": [each.document() for each in reports]})
        else:
            shown.print_replays(reports)

    with interruptible(print_reports):
        answered_by(settings, send)
    print_reports()
    if not all(each.went_well for each in reports):
        raise typer.Exit(Exit.FAILED)


def _print_plan(settings: DeadLetterSettings, chosen: ChosenDeadLetters, *, as_json: bool) -> None:
    found = found_dead_letters(settings, chosen, DeadLetterFacts.brief, as_json=as_json)
    name_unknown(chosen, found)
    shown.print_plan([(each, reason_to_stay(each)) for each in found], as_json=as_json)
