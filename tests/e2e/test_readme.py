"""What the README tells first is right, and its table names every command there is."""

import re
from collections.abc import Iterator

import typer

from solstice_cli.demo.steps import WORKFLOW
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.pages import PROGRAMS, ROOT, shell_lines, text_of


def table_rows() -> list[str]:
    """The commands of the README's table, and those named in its descriptions as full commands."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text_of("README.md"), re.MULTILINE)
    named = [command for command, _ in rows]
    for _, text in rows:
        named += [quoted for quoted in re.findall(r"`([^`]+)`", text) if quoted.split()[0] in PROGRAMS]
    return named


def test_table_names_every_command_and_no_other() -> None:
    def commands(app: typer.Typer, prefix: str) -> Iterator[str]:
        for command in app.registered_commands:
            if not command.hidden:
                name = command.name or (command.callback.__name__ if command.callback else "")
                yield f"{prefix} {name}"
        for group in app.registered_groups:
            assert group.typer_instance is not None
            callback = group.typer_instance.registered_callback
            if callback is not None and callback.invoke_without_command is True:
                yield f"{prefix} {group.name}"
            yield from commands(group.typer_instance, f"{prefix} {group.name}")

    existing = {name for program, app in PROGRAMS.items() for name in commands(app, program)}
    assert set(table_rows()) == existing


def test_first_two_commands_come_first() -> None:
    assert list(shell_lines("README.md"))[:2] == ["./just demo", "./just test"]


def test_our_own_workflow_is_one() -> None:
    own = (ROOT / WORKFLOW).read_bytes()
    assert [job.name for job in parse_workflow(own, default_runs_on="linux").jobs] == [
        "lint",
        "pins",
        "package",
    ]
