"""Prints the results of `solstice simulate`."""

from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from solstice_common.cli.output import print_facts
from solstice_common.values.times import duration
from solstice_orchestrator.simulation.comparison import ExtraSlotEffect
from solstice_orchestrator.simulation.report import SimulationReport, WaitStatistics

_WAITS: Final = ("mean", "p50", "p90", "p99", "max")


def print_report(report: SimulationReport, changes: list[ExtraSlotEffect]) -> None:
    """Tables for a terminal.

    In a pipe, lines of tab-separated whole values, each beginning with its kind.
    """
    fair = report.fairness
    _print_table(
        "waits",
        "Seconds that jobs waited for a slot",
        ("label", "priority", "jobs", *_WAITS),
        [
            (each.label, each.priority or "all", each.waits.jobs, *_values(each.waits))
            for each in report.waits
        ],
    )
    _print_table(
        "labels",
        "What became of the slots",
        ("label", "slots", "jobs", "utilisation", "longest line"),
        [
            (use.label, use.slots, use.jobs, f"{100 * use.utilisation:.1f} %", use.longest_line)
            for use in report.labels
        ],
    )
    _print_table(
        "one more",
        "With one slot more of a label: what its jobs would wait",
        ("label", "slots", *(f"{name}, {when}" for name in ("mean", "p99") for when in ("now", "then"))),
        [
            (
                change.label,
                change.slots,
                _seconds(change.before.mean),
                _seconds(change.after.mean),
                _seconds(change.before.p99),
                _seconds(change.after.p99),
            )
            for change in changes
        ],
    )
    facts = [
        ("jobs", report.jobs),
        ("superseded", report.superseded or None),
        ("never started", report.never_started or None),
        ("time", duration(report.span_seconds)),
    ]
    if fair is not None:
        facts += [
            (
                "fairness",
                f"{fair.jain:.3f}: Jain's index of the mean speeds of {fair.repositories} repositories",
            ),
            ("speed", f"{fair.mean_speed:.2f} on average, {fair.slowest_speed:.2f} of {fair.slowest}"),
        ]
    print_facts(facts)


def _values(waits: WaitStatistics) -> tuple[str, ...]:
    return tuple(_seconds(getattr(waits, name)) for name in _WAITS)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}"


def _print_table(name: str, title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    console = Console()
    if not console.is_terminal:
        for row in rows:
            typer.echo("\t".join((name, *map(str, row))))
        return
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in {"label", "priority"} else "right")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table, "")
