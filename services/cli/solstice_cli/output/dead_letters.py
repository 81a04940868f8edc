"""Prints dead letters, and the results of replays and imports."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import typer

from solstice_cli.output.display import print_rows
from solstice_common.broker.dead_letters.counting import DeadLetterNumbers
from solstice_common.broker.dead_letters.dead_letter_facts import DeadLetterFacts
from solstice_common.broker.dead_letters.reasons import advice
from solstice_common.broker.dead_letters.replaying import Replayed
from solstice_common.broker.headers import DETAIL_HEADER, HISTORY_HEADER, REASON_HEADER
from solstice_common.cli.output import one_line, print_facts, print_json
from solstice_common.cli.terminal import HarmlessText
from solstice_common.errors import ConfigurationError, DeadLettersInUse
from solstice_common.values.quantities import quantity
from solstice_common.values.times import format_timestamp

SHOWN_DETAIL: Final = 120


def print_dead_letters(
    found: Sequence[DeadLetterFacts], counted: DeadLetterNumbers, *, now: datetime
) -> None:
    """Print one line per dead letter; on a terminal also the counts, of all."""
    print_rows(
        ("ID", "AGE", "QUEUE", "REASON", "REPOSITORY", "PRIORITY", "REQUEST", "DETAIL"),
        [
            (
                each.id,
                "" if each.dead_since is None else format_timestamp(each.dead_since),
                each.dead_letter.queue,
                each.reason,
                each.repository,
                each.priority or "",
                each.request_id,
                each.detail,
            )
            for each in found
        ],
        now=now,
        nothing="No dead letters.",
    )
    if not found or not sys.stdout.isatty():
        return
    typer.echo()
    print_facts(
        [
            (
                "dead letters",
                f"{counted.total}" + (f", {len(found)} shown" if counted.total > len(found) else ""),
            ),
            ("by queue", _numbers(counted.by_queue)),
            ("by reason", _numbers(counted.by_reason)),
            ("by priority", _numbers(counted.by_priority)),
            ("by age", _numbers(counted.by_age)),
        ]
    )


def print_dead_letter(found: DeadLetterFacts) -> None:
    """Print a whole dead letter, safe for a terminal."""
    dead_letter = found.dead_letter
    print_facts(
        [
            ("id", found.id),
            ("queue", dead_letter.queue),
            ("reason", one_line(found.reason)),
            ("detail", one_line(found.detail)),
            ("it means", advice(found.reason).meaning),
            ("to do", advice(found.reason).remedy),
            ("dead since", None if found.dead_since is None else format_timestamp(found.dead_since)),
            ("refused by", one_line(found.refused_by)),
            ("request", one_line(found.request_id)),
            ("run", one_line(found.run_id)),
            ("repository", one_line(found.repository)),
            ("priority", found.priority),
            ("attempt", found.attempt),
            *(("history" if index == 0 else "", one_line(line)) for index, line in enumerate(found.history)),
            *(
                (one_line(name), one_line(str(value)))
                for name, value in sorted(dead_letter.headers.items())
                if name not in {HISTORY_HEADER, REASON_HEADER, DETAIL_HEADER}
            ),
        ]
    )
    typer.echo()
    typer.echo(HarmlessText().feed(dead_letter.body.decode("utf-8", "backslashreplace")))
    if found.omitted_bytes:
        typer.echo(
            f"{found.omitted_bytes} further bytes are not shown: 'solstice dlq export' writes them to a file",
            err=True,
        )


def print_plan(plan: Sequence[tuple[DeadLetterFacts, str]], *, as_json: bool) -> None:
    """Print what a replay would do with each."""
    if as_json:
        print_json(
            {
                "would_replay": [found.document() for found, why in plan if not why],
                "would_keep": {found.id: why for found, why in plan if why},
            }
        )
        return
    for found, why in plan:
        typer.echo(f"{found.id}\t{'keep: ' + one_line(why) if why else 'replay'}\t{one_line(found.reason)}")
    typer.echo(f"would replay {quantity(sum(not why for _, why in plan), 'dead letter')}", err=True)


def print_replays(reports: Sequence[Replayed]) -> None:
    """Print the result of each queue's replay, with its errors."""
    for report in reports:
        typer.echo(
            f"{report.queue}: replayed {len(report.sent)}, kept {len(report.kept)}, failed {len(report.failed)}"
        )
        for dead_letter_id, why in report.kept.items():
            typer.echo(f"  kept {dead_letter_id}: {one_line(why)}")
        for dead_letter_id, why in report.failed.items():
            typer.echo(f"  failed {dead_letter_id}: {one_line(why)}")
        if report.not_read:
            typer.echo(f"  not read: {one_line(report.not_read)}")
        if report.broken_off:
            typer.echo(
                f"  broken off: {one_line(report.broken_off)}. {report.left} are left. Run it again: nothing is lost, and "
                "what is sent twice counts once"
            )
        for each in report.came_back:
            detail = one_line(each.detail)[:SHOWN_DETAIL]
            typer.echo(
                f"  came back dead as {each.id}: {one_line(each.reason)}{': ' + detail if detail else ''}"
            )


def print_imported(done: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print how many were added to each queue, existed already, or failed."""
    if as_json:
        print_json({"queues": done})
        return
    if not done:
        typer.echo("the file holds no dead letters")
    for name, each in done.items():
        if "read" in each:
            typer.echo(f"{name}: would look at {quantity(each['read'], 'dead letter')} of the file")
            continue
        typer.echo(
            f"{name}: added {each['added']}, there already {each['present']}, failed {len(each['failed'])}"
        )
        for why in dict.fromkeys(each["failed"]):
            typer.echo(f"  failed: {one_line(why)}")


def print_dropped(ids: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """Print how many were removed, or would be."""
    if as_json:
        print_json({"would_drop" if dry_run else "dropped": list(ids)})
    else:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {quantity(len(ids), 'dead letter')}")


def say_held(queue: str, number: int | None) -> None:
    """Say on standard error that another reader holds some of a queue."""
    typer.echo(f"note: {DeadLettersInUse.sentence(queue, number)}", err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; ConfigurationError without one."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} This is no terminal, so nothing can be asked: confirm with --yes."
        )
    typer.confirm(question, abort=True)


def not_one(typed: str, found: Sequence[DeadLetterFacts]) -> str:
    """Say that an id names none, or several."""
    several = ", ".join(each.id for each in found[:5])
    return (
        f"{typed!r} fits {len(found)} dead letters: {several}. Give one of these ids."
        if found
        else f"there is no dead letter {typed!r}: 'solstice dlq list' lists those there are"
    )


def print_exported(file: Path, count: int, *, as_json: bool) -> None:
    """Print how many a file has now."""
    if as_json:
        print_json({"file": str(file), "exported": count})
    else:
        typer.echo(f"wrote {quantity(count, 'dead letter')} to {file}")


def _numbers(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{one_line(name)} {count}" for name, count in numbers.items())
