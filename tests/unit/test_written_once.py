"""What the packages share is written once, and the others use it."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from solstice_common.messages.states import JobState, RunState
from solstice_orchestrator.schedules.ticks import TickState
from tests.architecture_tables import PACKAGES

STATES: Final = frozenset(str(state) for states in (JobState, RunState) for state in states)
OTHER_WORDS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(words.split())
    for name, words in {
        # Counts of a replay, of an import, and which jobs a rerun is to repeat.
        "solstice_common/broker/dead_letters/replaying.py": "failed",
        "solstice_cli/commands/dead_letters/dlq.py": "failed",
        "solstice_cli/output/dead_letters.py": "failed",
        "solstice_common/cli/api_client.py": "failed",
        "solstice_orchestrator/web/formats/query_parameters.py": "failed",
        # Fields of the demand for slots.
        "solstice_cli/output/worker_tables.py": "waiting running delayed",
        # Decisions of a dry run, outcomes of calls and requests, the name of a task.
        "solstice_forge/decisions/dry_run.py": "approval",
        "solstice_forge/edge/app.py": "failed",
        "solstice_forge/statuses/source_reporter.py": "failed",
        "solstice_orchestrator/daemon.py": "planning",
        # States that forges show.
        "solstice_forge/remote/github_calls.py": "skipped timed_out cancelled",
        "solstice_forge/remote/gitlab_calls.py": "running failed",
        # How the processes of an attempt end.
        "solstice_orchestrator/processes/supervisor.py": "timed_out failed",
        "solstice_orchestrator/worker/executors/process.py": "timed_out",
        "solstice_orchestrator/worker/executors/verdict.py": "timed_out failed",
        # After what a step runs, and results as GitHub and Woodpecker call them.
        "solstice_orchestrator/workflow/importing/github_conditions.py": "cancelled failed skipped succeeded",
        "solstice_orchestrator/workflow/importing/woodpecker.py": "failed",
        "solstice_orchestrator/domain/jobs.py": "failed",
        "solstice_orchestrator/workflow/conditions/condition_node.py": "failed",
        "solstice_orchestrator/workflow/conditions/expression.py": "failed",
        # Why jobs wait, what becomes of a tick, and which runs a push supersedes.
        "solstice_orchestrator/queue_times/waits.py": "approval backoff",
        "solstice_cli/commands/outcomes/reports.py": "skipped failed errored",
        "solstice_orchestrator/web/formats/explanations.py": "skipped failed errored",
        "solstice_orchestrator/web/formats/report_json.py": "failed",
        "solstice_orchestrator/reports/junit_xml.py": "skipped failed",
        "solstice_orchestrator/reports/reduction.py": "skipped failed errored",
        "solstice_orchestrator/reports/values.py": "skipped failed errored",
        "solstice_orchestrator/schedules/ticks.py": "skipped failed",
        "solstice_orchestrator/superseding/policy.py": "waiting running",
    }.items()
}
"""Words of other vocabularies that are spelled like a state."""
TICK_STATES: Final = frozenset(str(state) for state in TickState)


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            yield path.relative_to(package.parent).as_posix(), path


MODULES: Final = dict(modules())


def test_the_json_flag_is_declared_once() -> None:
    assert [name for name, path in MODULES.items() if '"--json"' in path.read_text("utf-8")] == [
        "solstice_common/cli/output.py",
        # The demo passes it to `solstice up`.
        "solstice_cli/demo/stop_actions.py",
    ]


def test_headers_of_messages_are_named_in_one_module() -> None:
    literals = {
        name: names
        for name, path in MODULES.items()
        if (names := sorted(set(re.findall(r'"(x-solstice-[^" ]*)"', path.read_text("utf-8")))))
    }
    del literals["solstice_common/broker/headers.py"]
    # The argument of a queue.
    assert literals == {
        "solstice_common/broker/rabbitmq/migration/migration_plan.py": ["x-solstice-migrating"]
    }


def test_each_logger_has_the_name_of_its_module() -> None:
    named = r"structlog\.get_logger\((?!__name__\))"
    assert [name for name, path in MODULES.items() if re.search(named, path.read_text("utf-8"))] == []


def literal_states(tree: ast.AST) -> frozenset[str]:
    """The strings of a module that are the name of a state."""
    return frozenset(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in STATES
    )


def test_no_state_of_a_job_or_run_is_a_literal() -> None:
    found = {
        name: states
        for name, path in MODULES.items()
        if (states := literal_states(ast.parse(path.read_text("utf-8"))))
    }
    assert found == {**OTHER_WORDS, "solstice_common/messages/states.py": STATES}


def sql_states(text: str) -> Iterator[frozenset[str]]:
    """The states that each comparison of a `state` column names."""
    for operand in re.findall(r"\bstate (?:=|<>|IN|NOT IN) ('\w+'|\([^)]*\))", text):
        yield frozenset(re.findall(r"'(\w+)'", operand))


@pytest.mark.parametrize("package", PACKAGES)
def test_sql_names_only_states_that_there_are(package: str) -> None:
    """SQL names states as literals: neither database uses a partial index for a parameter."""
    for path in PACKAGES[package].rglob("*"):
        if path.suffix in {".py", ".sql"}:
            assert frozenset[str]().union(*sql_states(path.read_text("utf-8"))) <= STATES | TICK_STATES, path


def test_the_states_of_unfinished_and_final_jobs_are_found_in_sql() -> None:
    found = {
        name: set(sql_states(path.read_text("utf-8"))) for name, path in MODULES.items() if "/store/" in name
    }
    assert len([name for name, states in found.items() if states]) > 20
    assert frozenset({"succeeded", "failed", "timed_out"}) in set[frozenset[str]]().union(*found.values())


def test_each_state_has_its_icon() -> None:
    templates = PACKAGES["orchestrator"] / "web/templates/pieces.html"
    icons = re.findall(r'^  "(\w+)": "M', templates.read_text("utf-8"), re.MULTILINE)
    assert sorted(icons) == sorted(STATES)


@pytest.mark.parametrize(
    ("code", "states"),
    [
        ('job["state"] == "running"', {"running"}),
        ('run.state in {"delayed", "planning"}', {"delayed", "planning"}),
        ('match view.state:\n    case "failed" | "errored":\n        pass', {"failed", "errored"}),
        ("state == JobState.RUNNING", set()),
        ('state == "disconnected"', set()),
    ],
)
def test_a_literal_state_is_found(code: str, states: set[str]) -> None:
    assert literal_states(ast.parse(code)) == states
