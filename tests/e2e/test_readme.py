"""What the README and its neighbours tell is true: every command they name exists, every link leads somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from solstice_cli.demo_steps import WORKFLOW
from solstice_cli.main import app as solstice
from solstice_forge.cli import app as forge_integration
from solstice_orchestrator.cli import app as orchestrator
from solstice_orchestrator.workflow import parse_workflow
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/development.md")
PROGRAMS: dict[str, typer.Typer] = {
    "solstice": solstice,
    "forge-integration": forge_integration,
    "orchestrator": orchestrator,
}


def shell_lines(page: str) -> Iterator[str]:
    """Every command line of the `sh` blocks, without comments."""
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            text = line.partition("  #")[0].partition(" # ")[0].strip()
            if text:
                yield text


def table_rows() -> list[str]:
    """The commands of the README's table, and those named in its descriptions as full commands."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = [command for command, _ in rows]
    for _, text in rows:
        named += [quoted for quoted in re.findall(r"`([^`]+)`", text) if quoted.split()[0] in PROGRAMS]
    return named


def help_of(program: str, words: list[str]) -> str:
    # Wide, and plain: a flag must not be broken over two lines.
    result = CliRunner().invoke(
        PROGRAMS[program], [*words, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}, prog_name=program
    )
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def subcommand(arguments: list[str]) -> list[str]:
    """The leading words that are neither flags nor values: `topology declare`."""
    words = []
    for argument in arguments:
        if not re.fullmatch(r"[a-z][a-z-]*", argument):
            break
        words.append(argument)
    return words


PROGRAM_LINES = [
    pytest.param(line, id=f"{page}: {line}")
    for page in PAGES
    for line in shell_lines(page)
    if any(word in PROGRAMS for word in shlex.split(line)[:3])
]
JUST_LINES = [
    pytest.param(line, id=f"{page}: {line}")
    for page in PAGES
    for line in shell_lines(page)
    if line.startswith("./just")
]


@pytest.mark.parametrize("line", PROGRAM_LINES)
def test_command_and_its_flags_exist(line: str) -> None:
    words = shlex.split(line)
    settings = [word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
    program, *arguments = words[len(settings) :]
    text = help_of(program, subcommand(arguments))
    assert [setting for setting in settings if setting not in text] == []
    for flag in (argument.partition("=")[0] for argument in arguments if argument.startswith("-")):
        assert flag in text, f"{flag} is no flag of {program} {' '.join(subcommand(arguments))}"


@pytest.mark.parametrize("line", JUST_LINES)
def test_recipe_exists(line: str) -> None:
    recipes = set(re.findall(r"^([a-z]+)(?: \*ARGS)?:", (ROOT / "Justfile").read_text(), re.MULTILINE))
    assert set(line.split()[1:2]) <= recipes


def test_table_names_every_command_and_no_other() -> None:
    def commands(app: typer.Typer, prefix: str) -> Iterator[str]:
        for command in app.registered_commands:
            if not command.hidden:
                name = command.name or (command.callback.__name__ if command.callback else "")
                yield f"{prefix} {name}"
        for group in app.registered_groups:
            assert group.typer_instance is not None
            yield from commands(group.typer_instance, f"{prefix} {group.name}")

    existing = {name for program, app in PROGRAMS.items() for name in commands(app, program)}
    assert set(table_rows()) == existing


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not ((ROOT / page).parent / link).exists()] == []


def test_first_two_commands_come_first() -> None:
    assert list(shell_lines("README.md"))[:2] == ["./just demo", "./just test"]


@pytest.mark.parametrize(
    "example", re.findall(r"```kdl\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
)
def test_workflow_of_the_readme_is_one(example: str) -> None:
    assert parse_workflow(example.encode(), default_runs_on="linux")


def test_our_own_workflow_is_one() -> None:
    own = (ROOT / WORKFLOW).read_bytes()
    assert [job.name for job in parse_workflow(own, default_runs_on="linux")] == ["lint", "pins", "package"]
