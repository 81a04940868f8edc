"""`solstice workflow`: check a workflow file, and make one of another system's."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from solstice_common.cli.output import AsJson, print_json
from solstice_common.cli.program import CONTEXT_SETTINGS, Exit
from solstice_common.errors import ConfigurationError, InvalidWorkflow
from solstice_common.values.quantities import quantity
from solstice_orchestrator.commands.workflow_schema import workflow_schema
from solstice_orchestrator.workflow.importing import github_workflow, gitlab_ci, woodpecker
from solstice_orchestrator.workflow.importing.foreign_yaml import UnreadableFile, YamlValue, read_yaml
from solstice_orchestrator.workflow.importing.translation import Translation
from solstice_orchestrator.workflow.job_plan import WORKFLOW_PATH
from solstice_orchestrator.workflow.reader import MAX_FILE_BYTES, parse_workflow

app: Final = typer.Typer(
    help="Check a workflow file, or make one of another system's: check, import, schema.",
    no_args_is_help=True,
    context_settings=CONTEXT_SETTINGS,
)
SYSTEMS: Final[Mapping[str, Callable[[YamlValue], Translation]]] = {
    "github": github_workflow.translate,
    "gitlab": gitlab_ci.translate,
    "woodpecker": woodpecker.translate,
}


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The workflow file.")] = Path(WORKFLOW_PATH),
    *,
    as_json: AsJson = False,
) -> None:
    """Say with line and column what an orchestrator would refuse.

    Exit 1 when it would.
    """
    try:
        workflow = parse_workflow(_content(file), default_runs_on="linux")
    except InvalidWorkflow as error:
        if as_json:
            print_json(
                {"file": str(file), "line": error.line, "column": error.column, "problem": error.problem}
            )
        else:
            typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(Exit.FAILED) from None
    names = [job.name for job in workflow.jobs]
    if as_json:
        print_json({"file": str(file), "jobs": names})
    else:
        typer.echo(f"{file}: {quantity(len(names), 'job')}: {', '.join(names)}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a workflow file's tree, for editors."""
    typer.echo(json.dumps(workflow_schema(), indent=2))


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help=".github/workflows/ci.yml, .gitlab-ci.yml or .woodpecker.yml.")
    ],
    *,
    system: Annotated[
        str | None,
        typer.Option("--from", help="github, gitlab or woodpecker.", show_default="by path and content"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default="stdout"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a workflow file, and list what has no counterpart, with its lines.

    A step that was not understood fails in the new file, and a condition never holds.
    """
    try:
        value = read_yaml(_content(file))
    except UnreadableFile as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from None
    made = SYSTEMS[_system(system, file, value)](value)
    problem = _problem(made.text)
    if output is not None:
        try:
            output.write_text(made.text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot write {output}: {error.strerror}") from None
    findings = sorted(set(made.findings))
    if as_json:
        print_json(
            {
                "workflow": made.text,
                "findings": [{"line": each.line, "sentence": each.sentence} for each in findings],
                "problem": problem,
            }
        )
    else:
        if output is None:
            typer.echo(made.text, nl=False)
        for each in findings:
            typer.echo(f"{file}: line {each.line}: {each.sentence}", err=True)
        if problem:
            typer.echo(f"the new file is not valid yet: {problem}", err=True)
    if problem:
        raise typer.Exit(Exit.FAILED)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None


def _system(given: str | None, file: Path, value: YamlValue) -> str:
    if given is not None:
        if given not in SYSTEMS:
            raise ConfigurationError(f"--from {given!r}: there are {', '.join(SYSTEMS)}")
        return given
    if "jobs" in value.fields:
        return "github"
    if "steps" in value.fields or "pipeline" in value.fields:
        return "woodpecker"
    if file.name.endswith(("gitlab-ci.yml", "gitlab-ci.yaml")) or "stages" in value.fields:
        return "gitlab"
    raise ConfigurationError(f"{file} may be of any system: say which by --from ({', '.join(SYSTEMS)})")


def _problem(text: str) -> str:
    """Return what our reader refuses in the new file; empty: nothing."""
    try:
        parse_workflow(text.encode(), default_runs_on="linux")
    except InvalidWorkflow as error:
        return str(error)
    return ""
