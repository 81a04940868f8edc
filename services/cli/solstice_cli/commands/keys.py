"""`solstice keys`: make, list and revoke the keys that sign requests.

The public keys stand, with what each may sign, in the file that orchestrators read (VERIFY_KEYS).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from solstice_cli.output import display
from solstice_common.cli.api_client import Document
from solstice_common.cli.options import load_settings, with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError
from solstice_common.messages import Source
from solstice_common.settings import VerifySettings, state_directory
from solstice_common.signing.key_file import change_public, read_public, write_private
from solstice_common.signing.keys import KeyScope, Right, VerifyKey, new_key
from solstice_common.values.globs import EVERYTHING, meaningful
from solstice_common.values.times import format_timestamp

app = typer.Typer(
    help="Signing keys: create, list, revoke.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)


def _public_file(settings: VerifySettings) -> Path:
    if settings.verify_keys:
        return Path(settings.verify_keys).expanduser()
    return state_directory() / "verify-keys.json"


def _keys(settings: VerifySettings) -> Sequence[VerifyKey]:
    path = _public_file(settings)
    return list(read_public(path).values()) if path.exists() else []


def _known_names(incomplete: str) -> list[str]:
    """For the shell's completion."""
    try:
        keys = _keys(load_settings(VerifySettings))
    except ConfigurationError:
        return []
    return [key.name for key in keys if key.name.startswith(incomplete)]


@app.command()
@with_settings(VerifySettings)
def create(
    settings: VerifySettings,
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What to call it: who will sign with it, since when.")
    ],
    source: Annotated[
        list[Source] | None,
        typer.Option(help="Source of the requests it may sign; once for each.", show_default="all"),
    ] = None,
    repository: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Repositories it may sign for, as in SECRETS_CONFIG: forge.example/river/*; once for each.",
            show_default="** (all)",
        ),
    ] = None,
    right: Annotated[
        list[Right] | None,
        typer.Option(
            help="What its requests may say; once for each. None includes another.", show_default="nothing"
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the private key is written.",
            show_default="keys/NAME.json in SOLSTICE_HOME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a pair of keys. The private key gets a file, VERIFY_KEYS the public one.

    Running orchestrators know it at once.
    """
    scope = KeyScope(
        sources=frozenset(source or Source),
        repositories=tuple(map(_pattern, repository or [EVERYTHING])),
        rights=frozenset(right or ()),
    )
    try:
        key, private = new_key(name, scope, now=format_timestamp(datetime.now(UTC)))
    except ValueError as error:
        raise ConfigurationError(f"the name {name!r}: {error}") from None
    path, public = to or state_directory() / "keys" / f"{name}.json", _public_file(settings)

    def with_it(keys: Sequence[VerifyKey]) -> Sequence[VerifyKey]:
        if any(other.name == name for other in keys):
            raise ConfigurationError(
                f"there is a key {name!r} already in {public}: take another name; one that was revoked should not come again"
            )
        # First, so that no public key is without its private one.
        write_private(path, private)
        written.append(path)
        return [*keys, key]

    written: list[Path] = []
    try:
        change_public(public, with_it)
    except ConfigurationError:
        # It has no public key, and would block the next try.
        for each in written:
            each.unlink(missing_ok=True)
        raise
    if as_json:
        print_json({**_document(key), "private": str(path), "public": str(public)})
        return
    typer.echo(path)
    typer.echo(
        f"The public key is in {public}: orchestrators ask for it with VERIFY_KEYS={public}. Publishers sign with "
        f"SIGNING_KEYS={path}, which no other user may read.",
        err=True,
    )
    if Right.TRUSTED not in scope.rights:
        typer.echo(
            "It may sign strangers' code alone: requests for trusted code need --right trusted.", err=True
        )


@app.command("list")
@with_settings(VerifySettings)
def list_(settings: VerifySettings, *, as_json: AsJson = False) -> None:
    """List the public keys. In a pipe: tab-separated, full values, no heading."""
    documents = [_document(key) for key in _keys(settings)]
    if as_json:
        print_json({"keys": documents})
    else:
        display.print_keys(documents, now=display.now_utc())


@app.command()
@with_settings(VerifySettings)
def revoke(
    settings: VerifySettings,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", autocompletion=_known_names)],
    as_json: AsJson = False,
) -> None:
    """Take a public key out of VERIFY_KEYS.

    Running orchestrators refuse what it signed from then on, also what waits in a queue.
    """
    public = _public_file(settings)
    left: list[VerifyKey] = []

    def without_it(keys: Sequence[VerifyKey]) -> Sequence[VerifyKey]:
        left.extend(key for key in keys if key.name != name)
        if len(left) == len(keys):
            known = ", ".join(key.name for key in keys) or "none"
            raise ConfigurationError(f"there is no key {name!r} in {public}: known are {known}")
        return left

    change_public(public, without_it)
    if as_json:
        print_json({"revoked": name})
    else:
        typer.echo(f"{name} is revoked")
    if not left:
        typer.echo(
            f"That was the last key: orchestrators with VERIFY_KEYS={public} refuse every request until there is another.",
            err=True,
        )


def _pattern(text: str) -> str:
    try:
        return meaningful(text)
    except ValueError as error:
        raise ConfigurationError(f"--repository: {error}") from None


def _document(key: VerifyKey) -> Document:
    return {
        "name": key.name,
        "sources": sorted(key.scope.sources),
        "repositories": list(key.scope.repositories),
        "rights": sorted(key.scope.rights),
        "created_at": key.created_at,
    }
