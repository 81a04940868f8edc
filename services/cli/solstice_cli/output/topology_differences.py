"""Prints what differs between a broker and what must be there."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import typer

from solstice_common.broker.topology_check import TopologyDifference
from solstice_common.cli.output import print_rows


def check_document(where: str, differences: Sequence[TopologyDifference]) -> Mapping[str, object]:
    """Return the check as JSON shows it."""
    return {"broker": where, "differences": [asdict(each) for each in differences]}


def print_differences(differences: Sequence[TopologyDifference], *, none: str) -> None:
    """Print each with its remedy, in a pipe as a row.

    On a terminal `none` when there is none.
    """
    if not sys.stdout.isatty():
        print_rows((each.object, each.difference, each.remedy) for each in differences)
        return
    for each in differences:
        typer.echo(f"{each.object}\n  {each.difference}\n  -> {each.remedy}")
    if not differences:
        typer.echo(none)


def exit_for(differences: Sequence[TopologyDifference]) -> None:
    """End the command with 1 when something differs."""
    if differences:
        raise typer.Exit(1)
