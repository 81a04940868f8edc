"""Prints a command's result, and the reason why a command waits."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from solstice_common.cli.terminal import without_controls

JSON_FLAG: Final = "--json"
SLOW_SECONDS: Final = 2.0


def json_option(*, prints: str = "Print JSON.") -> Any:
    """Declare `--json`; `prints` is its help."""
    return typer.Option(JSON_FLAG, help=prints)


AsJson = Annotated[bool, json_option()]


@contextmanager
def note_when_slow(what: str) -> Iterator[Callable[[], None]]:
    """Print on a terminal what a command waits for after two seconds.

    Yields a function that ends the wait early. Nothing is written in a pipe, nor with --json.
    """
    if JSON_FLAG in sys.argv or not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield lambda: None
        return
    timer = threading.Timer(SLOW_SECONDS, lambda: typer.secho(f"waiting for {what} ...", err=True, dim=True))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def print_json(document: object) -> None:
    """Print one JSON document, indented."""
    import orjson  # noqa: PLC0415  what prints no JSON does not pay for it

    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def print_rows(rows: Iterable[Sequence[object]]) -> None:
    """Print a list for a pipe: whole values between tabs, without a heading."""
    for row in rows:
        typer.echo("\t".join("" if value is None else one_line(str(value)) for value in row))


def one_line(text: str) -> str:
    """Return the text as one line without control sequences; it may be untrusted."""
    return " ".join(without_controls(text).split())


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values: aligned on a terminal, tab-separated in a pipe."""
    if sys.stdout.isatty():
        print_facts(pairs)
    else:
        print_rows(pairs)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line, without empty values.

    A value may be a `rich.text.Text`.
    """
    from rich.console import Console  # noqa: PLC0415  as for JSON
    from rich.text import Text  # noqa: PLC0415

    console = Console(soft_wrap=True, highlight=False)
    width = max(len(name) for name, _ in facts) + 2
    for name, value in facts:
        if value is not None and value != "":
            console.print(
                Text(name.ljust(width), style="bold"),
                value if isinstance(value, Text) else without_controls(str(value)),
                sep="",
                markup=False,
            )
