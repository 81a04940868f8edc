"""What the README tells first is right, and its table names every command there is."""

import re
from collections.abc import Iterator
from typing import Any

from solstice_cli.demo.steps import WORKFLOW
from solstice_common.cli.lazy import loaded
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.docs_pages import PROGRAMS, ROOT, shell_lines, text_of


def table_rows() -> list[str]:
    """The commands of the README's table, and those named in its descriptions as full commands."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text_of("README.md"), re.MULTILINE)
    named = [command for command, _ in rows]
    for _, text in rows:
        named += [quoted for quoted in re.findall(r"`([^`]+)`", text) if quoted.split()[0] in PROGRAMS]
    return named


def test_table_names_every_command_and_no_other() -> None:
    def commands(group: Any, prefix: str) -> Iterator[str]:
        for name, command in group.commands.items():
            within = getattr(command, "commands", None)
            if not command.hidden and (within is None or command.invoke_without_command):
                yield f"{prefix} {name}"
            if within is not None:
                yield from commands(command, f"{prefix} {name}")

    existing = {name for program, app in PROGRAMS.items() for name in commands(loaded(app), program)}
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
