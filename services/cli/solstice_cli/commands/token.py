"""`solstice token`: make, list and revoke the tokens of the HTTP APIs.

They stand in the file that the services read.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from solstice_cli.output import display
from solstice_common.cli.api_client import Document
from solstice_common.cli.options import load_settings, with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError
from solstice_common.http.token_file import change, read
from solstice_common.http.tokens import RANDOM_BYTES, Token, TokenScope, lifetime_seconds, mint
from solstice_common.settings import TokenSettings
from solstice_common.values.times import format_seconds

app = typer.Typer(
    help="Access tokens: create, list, revoke.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)


def _known_names(incomplete: str) -> list[str]:
    """For the shell's completion."""
    try:
        tokens = read(load_settings(TokenSettings).solstice_tokens)
    except ConfigurationError:
        return []
    return [token.name for token in tokens if token.name.startswith(incomplete)]


@app.command()
@with_settings(TokenSettings)
def create(
    settings: TokenSettings,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: who or what will use it.")],
    scope: Annotated[
        list[TokenScope],
        typer.Option(help="What the token allows; may be repeated. No scope includes another."),
    ],
    expires: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="How long it is valid: 30m, 12h, 90d, 8w.", show_default="forever"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it. Only its hash is stored.

    Running services know it at once.
    """
    try:
        lifetime = None if expires is None else lifetime_seconds(expires)
    except ValueError as error:
        raise ConfigurationError(f"--expires {expires!r}: {error}") from None
    try:
        token, text = mint(
            name,
            scope,
            now=time.time(),
            lifetime_seconds=lifetime,
            random_bytes=secrets.token_bytes(RANDOM_BYTES),
        )
    except ValueError as error:
        raise ConfigurationError(f"the name {name!r}: {error}") from None

    def with_it(tokens: Sequence[Token]) -> Sequence[Token]:
        if any(other.name == name for other in tokens):
            raise ConfigurationError(
                f"there is a token {name!r} already: take another name, or 'solstice token revoke {name}' first"
            )
        return [*tokens, token]

    change(settings.solstice_tokens, with_it)
    if as_json:
        print_json({**_document(token), "token": text})
        return
    typer.echo(text)
    until = f"until {format_seconds(token.expires_at)}" if token.expires_at else "until it is revoked"
    typer.echo(
        f"{name} may {', '.join(sorted(token.scopes))} {until}. Keep it now: it is not shown again.", err=True
    )


@app.command("list")
@with_settings(TokenSettings)
def list_(settings: TokenSettings, *, as_json: AsJson = False) -> None:
    """List the tokens. In a pipe: tab-separated, full values, no heading."""
    tokens, now = read(settings.solstice_tokens), time.time()
    if as_json:
        documents = [{**_document(token), "expired": token.has_expired(now)} for token in tokens]
        print_json({"tokens": documents})
    else:
        display.print_tokens([_document(token) for token in tokens], now=display.now_utc())


@app.command()
@with_settings(TokenSettings)
def revoke(
    settings: TokenSettings,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", autocompletion=_known_names)],
    as_json: AsJson = False,
) -> None:
    """Take a token out of the file.

    Running services refuse it from their next request on.
    """

    def without_it(tokens: Sequence[Token]) -> Sequence[Token]:
        remaining = [token for token in tokens if token.name != name]
        if len(remaining) == len(tokens):
            known = ", ".join(token.name for token in tokens) or "none"
            raise ConfigurationError(
                f"there is no token {name!r} in {settings.solstice_tokens}: known are {known}"
            )
        return remaining

    change(settings.solstice_tokens, without_it)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"{name} is revoked")
    if not read(settings.solstice_tokens):
        typer.echo(
            "That was the last token: services now refuse all, this machine too, until 'solstice token create' makes "
            f"one. To be answered here without tokens again, remove {settings.solstice_tokens} and restart the services.",
            err=True,
        )


def _document(token: Token) -> Document:
    return {
        "name": token.name,
        "scopes": sorted(token.scopes),
        "created_at": format_seconds(token.created_at),
        "expires_at": None if token.expires_at is None else format_seconds(token.expires_at),
    }
