"""The candidates for the next word of a command line."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from solstice_common.cli.completion.candidates import Completion, candidates


class Colour(StrEnum):
    RED = "red"
    ROSE = "rose"
    BLUE = "blue"


app = typer.Typer(add_completion=False)
group = typer.Typer(help="Group of commands. More of it.")
app.add_typer(group, name="group")


@app.callback()
def _root(*, loud: bool = False) -> None: ...


@app.command()
def paint(
    *,
    what: Annotated[
        str, typer.Argument(autocompletion=lambda: [("wall", "Of stone.\nOr not."), ("window", "")])
    ],
    rest: Annotated[list[Colour] | None, typer.Argument()] = None,
    colour: Annotated[Colour, typer.Option("--colour", "-c", help="The colour. Any.")] = Colour.RED,
    also: Annotated[list[Colour] | None, typer.Option("--also")] = None,
    wet: Annotated[bool, typer.Option("--wet/--dry")] = False,
    text: Annotated[str, typer.Option("--text")] = "",
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE")] = None,
    secret: Annotated[str, typer.Option("--secret", hidden=True)] = "",
) -> None:
    """Paint it. Well."""


@app.command(hidden=True)
def spy() -> None: ...


@group.command()
def inner(count: int) -> None:
    """Count them."""


def offered(line: str) -> list[str] | None:
    *words, typed = line.split(" ")
    found = candidates(get_command(app), "tool", words, typed)
    return None if found is None else [each.value for each in found]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("", ["paint", "group"]),
        ("pa", ["paint"]),
        ("--loud ", ["paint", "group"]),
        ("--l", ["--loud"]),
        ("nonsense ", []),
        ("group ", ["inner"]),
        ("group inner ", []),
        ("group inner -", ["--help"]),
        ("paint ", ["wall", "window"]),
        ("paint wi", ["window"]),
        ("paint wall ", ["red", "rose", "blue"]),
        ("paint wall red ro", ["rose"]),
        ("paint --colour ", ["red", "rose", "blue"]),
        ("paint -c r", ["red", "rose"]),
        ("paint --colour=r", ["--colour=red", "--colour=rose"]),
        ("paint --colour red --c", []),
        ("paint --also red --al", ["--also"]),
        ("paint --wet wi", ["window"]),
        ("paint --", ["--colour", "--also", "--wet", "--dry", "--text", "--file", "--help"]),
        ("paint --text ", []),
        ("paint --file ", None),
        ("paint --file=x", None),
        ("paint -- --c", []),
        ("paint --nonsense wi", ["window"]),
    ],
)
def test_what_may_stand_next(line: str, values: list[str] | None) -> None:
    assert offered(line) == values


def test_a_meaning_is_the_first_sentence_in_one_line() -> None:
    root = get_command(app)
    assert candidates(root, "tool", [], "") == [
        Completion("paint", "Paint it"),
        Completion("group", "Group of commands"),
    ]
    assert candidates(root, "tool", ["paint"], "wa") == [Completion("wall", "Of stone")]
    assert candidates(root, "tool", ["paint"], "--co") == [Completion("--colour", "The colour")]
