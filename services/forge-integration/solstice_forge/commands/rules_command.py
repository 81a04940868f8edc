"""The command line of `rules`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from solstice_common.cli.options import read_text, with_settings
from solstice_common.cli.output import json_option, print_json, print_pairs
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError
from solstice_forge.config import configured_sources
from solstice_forge.decisions.dry_run import explain, explain_delivery, read_headers, source_named
from solstice_forge.decisions.rules import RuleEvent, RuleSubject
from solstice_forge.settings import SecretSettings

CHANGE_REQUESTS = frozenset({RuleEvent.CHANGE_REQUEST, RuleEvent.COMMENT})


def rules_commands() -> typer.Typer:
    """`rules check`."""
    commands = typer.Typer(
        name="rules",
        help="The rules of a source: check.",
        no_args_is_help=True,
        context_settings=CONTEXT_SETTINGS,
    )
    commands.callback()(_group)
    commands.command("check")(with_settings(SecretSettings)(rules_check_command))
    return commands


def _group() -> None:
    """Keep `check` a word of its own."""


def rules_check_command(
    settings: SecretSettings,
    *,
    source: Annotated[str, typer.Option(help="Name of the source, as in its URL: /webhooks/SOURCE.")],
    repository: Annotated[str | None, typer.Option(help="Full name: owner/name.")] = None,
    event: Annotated[
        RuleEvent | None, typer.Option(metavar="EVENT", help=f"What happened: {', '.join(RuleEvent)}.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="The pushed branch, or the target of a change request.")
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option(help="A changed file; may be repeated. Without it, the files are unknown."),
    ] = None,
    fork: Annotated[bool, typer.Option(help="The change request comes, or may come, from a fork.")] = False,
    delivery: Annotated[
        Path | None,
        typer.Option(
            help="A recorded delivery's body, instead of a description.", exists=True, dir_okay=False
        ),
    ] = None,
    headers: Annotated[
        Path | None,
        typer.Option(help="Its headers: a JSON object, or lines 'Name: value'.", exists=True, dir_okay=False),
    ] = None,
    as_json: Annotated[bool, json_option(prints="One JSON object instead of a table.")] = False,
) -> None:
    """Say which rule decides about an event, and how.

    Asks no forge and stores nothing.

    Exits 0, also when no rule builds the event.
    """
    configured = source_named(source, configured_sources(settings, os.environ), verify=False)
    if delivery is not None:
        if headers is None:
            raise ConfigurationError("--delivery is checked with --headers beside it")
        explained = explain_delivery(
            configured, read_headers(read_text("--headers", headers)), delivery.read_bytes()
        )
    elif repository is None or event is None:
        raise ConfigurationError("describe an event by --repository and --event, or name a --delivery")
    else:
        subject = RuleSubject(
            event=event,
            repository=repository,
            branch=branch,
            of_change_request=fork or event in CHANGE_REQUESTS,
            stranger=fork,
        )
        explained = explain(configured, subject, path or ())
    if as_json:
        print_json(explained)
        sys.stdout.flush()
    else:
        print_pairs(_pairs(explained))


def _pairs(explained: dict[str, Any]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in explained.items():
        if name == "rules":
            pairs += [("rule", f"{step['rule']}: {step['says']}") for step in value]
        elif value is not None:
            pairs.append((name, value))
    return pairs
