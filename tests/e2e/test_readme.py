"""The README's first commands work, and its table names every command."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from solstice_cli.demo import __main__ as demo
from solstice_cli.demo.stop_actions import WORKFLOW
from solstice_cli.demo.stops import WIDTH
from solstice_common.cli.lazy import loaded
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.docs_pages import PROGRAMS, ROOT, blocks, shell_lines, text_of


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


def test_the_sample_has_the_lines_that_the_demo_prints() -> None:
    """The names of the stops in order, each as wide as `Stops` prints it."""
    code = ast.parse(Path(demo.__file__).read_text("utf-8"))
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    names = [
        str(ast.literal_eval(call.args[0]))
        for call in sorted(calls, key=lambda call: call.lineno)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "stop"
    ]
    (sample,) = (text for text in blocks("README.md", "text") if "✓" in text)
    lines = [line for line in sample.splitlines() if "✓" in line]
    assert [re.sub(r"[ \d]{3}\.\d s$", "", line) for line in lines] == [
        f"{number:2} ✓ {name:<{WIDTH}} " for number, name in enumerate(names, 1)
    ]


def test_our_own_workflow_is_one() -> None:
    own = (ROOT / WORKFLOW).read_bytes()
    assert [job.name for job in parse_workflow(own, default_runs_on="linux").jobs] == [
        "lint",
        "pins",
        "package",
    ]
