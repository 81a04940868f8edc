"""`solstice cache`: list, show and drop what jobs have saved for later ones."""

from typing import Annotated, Final

import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS
from solstice_common.errors import ConfigurationError
from solstice_common.settings import ClientSettings

app: Final = typer.Typer(
    help="What jobs saved for later ones. Commands: list, show, drop.",
    context_settings=CONTEXT_SETTINGS,
    no_args_is_help=True,
)

Repository = Annotated[
    str | None,
    typer.Option("--repository", "-r", help="Only of this one.", autocompletion=completers.repositories),
]
Name = Annotated[str | None, typer.Option("--name", help="Only of the cache with this name in its workflow.")]
Scope = Annotated[
    str | None,
    typer.Option(
        "--scope", help="Only of these runs: 'default branch', 'branch fix', 'change 7, untrusted'."
    ),
]
Untrusted = Annotated[
    bool | None,
    typer.Option(
        "--untrusted/--trusted", help="Only what untrusted runs saved, or only what trusted ones did."
    ),
]


@app.command("list")
@with_settings(ClientSettings)
def list_(
    settings: ClientSettings,
    *,
    repository: Repository = None,
    name: Name = None,
    scope: Scope = None,
    untrusted: Untrusted = None,
    as_json: AsJson = False,
) -> None:
    """List caches, the last used first. In a pipe: tab-separated, full values, no heading."""
    filters = _filters(repository, name, scope, untrusted=untrusted)
    documents = answered(settings, lambda api: api.caches(**filters))
    if as_json:
        print_json({"caches": documents})
    else:
        display.print_caches(documents, now=display.now_utc())


@app.command()
@with_settings(ClientSettings)
def show(
    settings: ClientSettings,
    *,
    which: Annotated[str, typer.Argument(metavar="CACHE", help="Its id.", autocompletion=completers.caches)],
    as_json: AsJson = False,
) -> None:
    """Show all that is known of a cache."""
    found = answered(settings, lambda api: _named(api, which))
    if as_json:
        print_json(found)
    else:
        for field, value in found.items():
            shown = ", ".join(value) if isinstance(value, list) else value
            typer.echo(f"{field.replace('_', ' ')}: {shown}")


@app.command()
@with_settings(ClientSettings)
def drop(
    settings: ClientSettings,
    *,
    which: Annotated[
        list[str] | None, typer.Argument(metavar="[CACHE]...", help="Ids.", autocompletion=completers.caches)
    ] = None,
    repository: Repository = None,
    name: Name = None,
    scope: Scope = None,
    untrusted: Untrusted = None,
    everything: Annotated[bool, typer.Option("--all", help="All caches that there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove caches: those with these ids, or all that the options choose.

    The next job that looks for one finds none, and saves it again.
    """
    filters = _filters(repository, name, scope, untrusted=untrusted)
    if bool(which) + bool(filters) + everything != 1:
        raise ConfigurationError("say which: ids, or options that choose caches, or --all")

    async def dropped(api: OrchestratorClient) -> list[Document]:
        found = (
            [await _named(api, each) for each in dict.fromkeys(which)]
            if which
            else await api.caches(**filters)
        )
        return [await api.drop_cache(each["cache_id"]) for each in found]

    documents = answered(settings, dropped)
    if as_json:
        print_json({"dropped": documents})
    else:
        for each in documents:
            typer.echo(f"dropped {each['cache_id']}: {each['key']} of {each['repository']}, {each['scope']}")
        if not documents:
            typer.echo("No cache fits.")


async def _named(api: OrchestratorClient, which: str) -> Document:
    """Return the only cache whose id begins so; raises ConfigurationError."""
    found = [each for each in await api.caches() if each["cache_id"].startswith(which)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} caches have ids that begin so" if found else "'solstice cache list' shows all"
    raise ConfigurationError(f"there is no cache {which!r}: {problem}")


def _filters(
    repository: str | None, name: str | None, scope: str | None, *, untrusted: bool | None
) -> dict[str, str]:
    trusted = None if untrusted is None else "0" if untrusted else "1"
    given = {"repository": repository, "name": name, "scope": scope, "trusted": trusted}
    return {option: value for option, value in given.items() if value is not None}
