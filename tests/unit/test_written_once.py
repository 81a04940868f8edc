"""What the packages share is written once, and the others use it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from solstice_common.messages.states import JobState, RunState
from tests.architecture_tables import PACKAGES

STATES: Final = frozenset({*JobState, *RunState})


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            yield path.relative_to(package.parent).as_posix(), path


MODULES: Final = dict(modules())


def test_the_json_flag_is_declared_once() -> None:
    assert [name for name, path in MODULES.items() if '"--json"' in path.read_text("utf-8")] == [
        "solstice_common/cli/output.py",
        # The demo passes it to `solstice up`.
        "solstice_cli/demo/steps.py",
    ]


def compared_states(tree: ast.AST) -> Iterator[str]:
    """The states of jobs and runs that something called `state` is compared with as literals."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=comparators) if "state" in ast.unparse(left):
                compared: list[ast.AST] = [*comparators]
            case ast.Match(subject=subject, cases=cases) if "state" in ast.unparse(subject):
                compared = [case.pattern for case in cases]
            case _:
                continue
        for each in (part for operand in compared for part in ast.walk(operand)):
            if isinstance(each, ast.Constant) and each.value in STATES:
                yield str(each.value)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_state_of_a_job_or_run_is_compared_as_a_literal(package: str) -> None:
    found = {
        name: states
        for name, path in MODULES.items()
        if path.is_relative_to(PACKAGES[package])
        and (states := list(compared_states(ast.parse(path.read_text("utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("code", "states"),
    [
        ('job["state"] == "running"', ["running"]),
        ('run.state in {"delayed", "planning"}', ["delayed", "planning"]),
        ('match view.state:\n    case "failed" | "errored":\n        pass', ["failed", "errored"]),
        ("state == JobState.RUNNING", []),
        ('job["name"] == "running"', []),
        ('state == "disconnected"', []),
    ],
)
def test_a_literal_state_is_found(code: str, states: list[str]) -> None:
    assert sorted(compared_states(ast.parse(code))) == sorted(states)
