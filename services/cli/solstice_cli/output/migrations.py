"""Prints the plan, the progress and the result of a migration of queues."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import typer

from solstice_common.broker.rabbitmq.migration.migration_plan import QueueMigration, Step
from solstice_common.broker.rabbitmq.migration.queue_migration import MigrationPlan, MigrationResult
from solstice_common.cli.output import print_json
from solstice_common.values.quantities import quantity

EVERY_SECONDS: Final = 0.5


class MigrationProgress:
    """Prints each step on standard error before it is done; on a terminal also progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._shows_progress = not quiet and sys.stderr.isatty()
        self._shown_at = 0.0
        self._line_is_open = False

    def step(self, step: Step) -> None:
        if not self._quiet:
            self._close_line()
            typer.echo(step.sentence, err=True)

    def moved(self, step: Step, count: int) -> None:
        self._progress(f"  moved {count}", f" (now into {step.into})")

    def waiting(self, step: Step, count: int | None) -> None:
        if count is None:
            self._progress("  waiting: a count")
        else:
            self._progress(f"  waiting: {count} held", f" by consumers of {step.queue.name}")

    def _progress(self, text: str, where: str = "") -> None:
        """Show progress in one line, with `where` if it fits.

        A line that wraps could not be written over.
        """
        if self._shows_progress and time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self._shown_at, self._line_is_open = time.monotonic(), True
            line = text + where
            if len(line) >= shutil.get_terminal_size().columns:
                line = text
            typer.echo(f"\r\x1b[K{line}", nl=False, err=True)

    def _close_line(self) -> None:
        if self._line_is_open:
            self._line_is_open = False
            typer.echo(err=True)


def print_nothing(transport: str, where: str, *, as_json: bool) -> None:
    """Say that there is nothing to migrate on other brokers than RabbitMQ."""
    sentence = (
        f"nothing to migrate: queues of {transport} have no types; leave AMQP_QUEUE_TYPE as it was declared"
    )
    if as_json:
        print_json({"broker": where, "migrated": [], "detail": sentence})
    else:
        typer.echo(sentence)


def plan_document(plans: Sequence[tuple[QueueMigration, MigrationPlan]]) -> list[dict[str, Any]]:
    """Return every plan, as JSON."""
    return [
        {
            "from": migration.source,
            "queue": migration.target.name,
            "arguments": dict(migration.target.arguments),
            "steps": [step.sentence for step in plan.steps],
            "refused": [
                {"object": each.object, "difference": each.difference, "remedy": each.remedy}
                for each in plan.refusals
            ],
        }
        for migration, plan in plans
    ]


def print_plans(plans: Sequence[tuple[QueueMigration, MigrationPlan]], where: str) -> None:
    """Print the plan for each queue, and why a queue is refused."""
    for migration, plan in plans:
        for reason in plan.refusals:
            typer.echo(f"refused: {reason.object} {reason.difference}\n  -> {reason.remedy}", err=True)
        if plan.steps:
            typer.echo(f"{migration.source} on {where}:")
            for number, step in enumerate(plan.steps, start=1):
                typer.echo(f"  {number}. {step.sentence}")
    if not any(plan.steps or plan.refusals for _, plan in plans):
        typer.echo(f"nothing to migrate on {where}: {quantity(len(plans), 'queue')} as they must be")


def done_document(done: Sequence[tuple[QueueMigration, MigrationResult]]) -> list[dict[str, Any]]:
    """Return the results, as JSON."""
    return [
        {
            "from": migration.source,
            "queue": migration.target.name,
            "arguments": dict(migration.target.arguments),
            "steps": [step.sentence for step in each.steps],
            "moved": each.moved,
            "consumers_left": each.consumers_left,
        }
        for migration, each in done
    ]


def print_done(done: Sequence[tuple[QueueMigration, MigrationResult]], settings: Sequence[str]) -> None:
    """Print what was done to each queue, and what remains to be done."""
    for migration, each in done:
        if each.consumers_left:
            typer.echo(
                f"{migration.source}: moved {quantity(each.moved, 'message')}; {quantity(each.consumers_left, 'consumer')} "
                f"still read it: restart the services with the name {migration.target.name}, then run this again"
            )
        else:
            typer.echo(f"{migration.target.name}: migrated, moved {quantity(each.moved, 'message')}")
    if any(not each.consumers_left for _, each in done):
        typer.echo(
            f"now restart the services one at a time with {' '.join(settings)}: with another value they stop"
        )
        typer.echo(
            "at their next connection, for the queue differs from what they declare; nothing is lost then"
        )
