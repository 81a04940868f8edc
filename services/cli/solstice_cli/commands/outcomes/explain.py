"""`solstice explain`: what became of a run or job, and what to do."""

from typing import Annotated

import orjson
import typer

from solstice_cli import completers
from solstice_cli.api_calls import answered
from solstice_cli.output import display
from solstice_cli.output.identifiers import find
from solstice_common.cli.api_client import Document, OrchestratorClient
from solstice_common.cli.options import with_settings
from solstice_common.cli.output import AsJson
from solstice_common.settings import ClientSettings
from solstice_common.values.visible_text import visible, visible_line


@with_settings(ClientSettings)
def explain(
    settings: ClientSettings,
    *,
    which: Annotated[
        str,
        typer.Argument(
            metavar="RUN|JOB", help="An id, or its beginning or end.", autocompletion=completers.runs_and_jobs
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Explain how a run or job ended, and what to do.

    It shows the failing step, its last lines and the failed tests. With --json: at most 4 KB, with what the job wrote in a
    field of its own, `untrusted`.
    """

    async def request(api: OrchestratorClient) -> Document:
        kind, document = await find(api, which)
        return await api.ask(f"{kind}s/{document[f'{kind}_id']}/explain")

    found = answered(settings, request)
    if as_json:
        # Not indented: its size is limited.
        typer.echo(orjson.dumps(found).decode())
    else:
        _print(found)


def _print(found: Document) -> None:
    words = found["untrusted"]
    counts = found.get("tests")
    display.print_facts(
        [
            ("run", found["run_id"]),
            ("job", found.get("job_id")),
            ("name", found.get("job")),
            ("state", found["state"]),
            ("reason", found.get("reason")),
            ("step", visible_line(words["step"]) if words["step"] else None),
            ("exit code", found.get("exit_code")),
            ("waits", found["why"]["detail"] if found.get("why") else None),
            ("tests", ", ".join(f"{number} {word}" for word, number in counts.items()) if counts else None),
            ("do", found["what_to_do"]),
        ]
    )
    for other in found.get("other_jobs", ()):
        typer.echo(f"also {other['state']}: {other['job']} ({other['job_id']})")
    parts = [words["detail"]]
    for test in words["failed_tests"]:
        place = (
            f" ({test['file']}{'' if test['line'] is None else ':' + str(test['line'])})"
            if test["file"]
            else ""
        )
        parts.append(f"{test['name']}{place}\n{test['message']}")
    parts.append("\n".join(words["log"]))
    for part in filter(None, parts):
        typer.echo()
        typer.echo("\n".join(f"| {line}" for line in visible(part).splitlines()))
