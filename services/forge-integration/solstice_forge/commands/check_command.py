"""The command line of `check`."""

import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from solstice_common.cli.options import read_text
from solstice_common.cli.output import json_option, print_json, print_pairs, print_rows
from solstice_common.cli.program import Exit
from solstice_common.cli.tables import TableLayout, print_table
from solstice_common.errors import ConfigurationError
from solstice_common.values.times import parse_timestamp
from solstice_forge.config import configured_sources
from solstice_forge.decisions.dry_run import check, described, read_headers, source_named
from solstice_forge.decisions.sources import WebhookSource
from solstice_forge.settings import SecretSettings

LAYOUT: Final = TableLayout(
    folded=frozenset({"webhooks", "url"}), dropped_first=("rules", "credentials", "secrets", "url")
)


def check_command(
    settings: SecretSettings,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The body, byte for byte as it was sent. Without it, the sources are listed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    *,
    source: Annotated[
        str | None, typer.Option(help="Name of the source, as in its URL: /webhooks/SOURCE.")
    ] = None,
    headers: Annotated[
        Path | None,
        typer.Option(help="The headers: a JSON object, or lines 'Name: value'.", exists=True, dir_okay=False),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Check the signature.")] = True,
    at: Annotated[
        str | None,
        typer.Option(help="When it arrived (RFC 3339, UTC): signatures with a time are checked against it."),
    ] = None,
    as_json: Annotated[bool, json_option(prints="One JSON object instead of a table.")] = False,
) -> None:
    """Decide about a recorded webhook. Nothing is stored or published.

    Without one, list the sources.

    Exits 0 when it would be taken (also when it requests nothing), 1 when it would be refused, 2 when the sources are
    misconfigured.
    """
    sources = configured_sources(settings, os.environ)
    if file is None:
        _show_sources(sources, as_json=as_json)
        return
    if source is None or headers is None:
        raise ConfigurationError("a recorded webhook is checked with --source and --headers beside its body")
    result = check(
        source_named(source, sources, verify=verify),
        read_headers(read_text("--headers", headers)),
        file.read_bytes(),
        now=_moment(at),
        verify=verify,
    )
    if as_json:
        print_json(result)
        sys.stdout.flush()
    else:
        print_pairs(_pairs(result))
    if result["decision"] == "refused":
        raise typer.Exit(Exit.FAILED)


def _show_sources(sources: Mapping[str, WebhookSource], *, as_json: bool) -> None:
    shown = [described(source) for source in sources.values()]
    if as_json:
        print_json(shown)
        sys.stdout.flush()
    elif not shown:
        typer.echo("No source has a secret, so every webhook is answered with 404.", err=True)
    elif not sys.stdout.isatty():
        print_rows(list(one.values()) for one in shown)
    else:
        cells = [["-" if value is None else escape(str(value)) for value in one.values()] for one in shown]
        print_table(Console(), [*shown[0]], cells, LAYOUT)


def _moment(at: str | None) -> float:
    if at is None:
        return time.time()
    try:
        return parse_timestamp(at).replace(tzinfo=UTC).timestamp()
    except ValueError:
        example = datetime(2026, 1, 31, 12, tzinfo=UTC).isoformat().replace("+00:00", "Z")
        raise ConfigurationError(f"--at {at!r}: must be a time in UTC, like {example}") from None


def _pairs(result: dict[str, Any]) -> list[tuple[str, object]]:
    request = result["request"] or {}
    return [
        *((name, _word(value)) for name, value in result.items() if name != "request"),
        *((f"request.{name}", _word(value)) for name, value in request.items()),
    ]


def _word(value: Any) -> str:
    words = {None: "not checked", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
