"""`solstice watermarks`: how far the pushes of each ref are handled."""

from typing import Annotated

import typer

from solstice_cli.api_calls import answered
from solstice_cli.commands.reading import Everything, Limit, OfBranch, OfRepository, pages
from solstice_cli.output import display
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson, print_json
from solstice_common.settings import ClientSettings


@with_settings(ClientSettings)
def watermarks(
    settings: ClientSettings,
    *,
    limit: Limit = 50,
    everything: Everything = False,
    repository: OfRepository = None,
    branch: OfBranch = None,
    behind: Annotated[
        bool, typer.Option("--behind", help="Only refs with a push behind the watermark.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far the pushes of each branch are handled."""

    async def request(api: OrchestratorClient) -> tuple[list[Document], bool]:
        return await pages(
            lambda limit, after: api.watermarks(
                limit=limit, after=after, repository=repository, branch=branch, behind=behind
            ),
            "watermarks",
            None if everything else limit,
        )

    documents, more = answered(settings, request)
    if as_json:
        print_json({"watermarks": documents})
    else:
        display.print_watermarks(documents, now=display.now_utc(), more=more, behind=behind)
