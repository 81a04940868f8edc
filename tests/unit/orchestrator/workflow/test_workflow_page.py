"""The examples and rules of docs/workflow.md are true."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import JobSpec
from solstice_orchestrator.worker.executors.job_environment import environment
from solstice_orchestrator.worker.workspaces import Workspace
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.builders import execution, job, job_request

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "workflow.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```kdl\n(.*?)```", PAGE, re.DOTALL)
MESSAGES = re.findall(r"^\.solstice/workflow\.kdl: (.*)$", PAGE, re.MULTILINE)

WRONG = (
    'job "a" {\n    step run=x\n    stpe run=y\n}',
    'job "linux" runs_on=x',
    "job build { step run=x }\n\n\n\n\njob test {\n    needs biuld\n    step run=x\n}",
    'job a {\n        step run="one\ntwo"\n}',
)


def parse(text: str) -> tuple[JobSpec, ...]:
    return parse_workflow(text.encode(), default_runs_on="linux").jobs


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    assert parse(text)


def test_the_complete_example_shows_every_node() -> None:
    lint, test = parse(EXAMPLES[1])
    assert (lint.runs_on, lint.timeout_seconds, test.needs) == ("linux", 1800, ("lint",))
    assert test.steps[2].run.splitlines()[0].startswith("echo ")


def test_the_matrix_becomes_the_jobs_that_the_page_names() -> None:
    whole, chosen = [text for text in EXAMPLES if "matrix {" in text]
    names = [job.name for job in parse(whole)]
    assert len(names) == 5
    assert all(f"`{name}`" in PAGE for name in names)
    assert [job.name for job in parse(chosen)] == [
        *("test-linux-3.11", "test-linux-3.12", "test-illumos-3.12", "test-linux-3.14"),
    ]


def test_parallel_jobs_have_the_names_and_variables_of_the_page() -> None:
    (example,) = [text for text in EXAMPLES if "parallel=" in text]
    first, *_, last = parse(example)
    assert f"`{first.name}` to `{last.name}`" in PAGE
    assert all(f"${name}" in example for name in first.env)


@pytest.mark.parametrize(("text", "message"), list(zip(WRONG, MESSAGES, strict=True)))
def test_errors_are_reported_as_the_page_says(text: str, message: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse(text)
    assert str(caught.value) == message


def test_every_variable_of_a_step_is_reported(tmp_path: Path) -> None:
    place = Workspace(root=tmp_path, source=tmp_path, home=tmp_path, temporary=tmp_path, scripts=tmp_path)
    traced = replace(execution(job("true"), job_request(change_number=7)), traceparent="00-...")
    found = environment(traced, place, "/bin")
    table = PAGE.partition("### What a step finds")[2].partition("\n## ")[0]
    reported = set(re.findall(r"`([A-Z][A-Z_]+)`", table)) - {"JOB_PATH", "EXECUTOR", "UNTRUSTED_RUNS"}
    assert reported == {*found, "SOLSTICE_STEP"}


def test_without_traces_a_step_has_no_traceparent_and_a_workflow_may_replace_it(tmp_path: Path) -> None:
    place = Workspace(root=tmp_path, source=tmp_path, home=tmp_path, temporary=tmp_path, scripts=tmp_path)
    assert "TRACEPARENT" not in environment(execution(job("true")), place, "/bin")
    traced = replace(execution(job("true", env={"TRACEPARENT": "own"})), traceparent="00-...")
    assert environment(traced, place, "/bin")["TRACEPARENT"] == "own"


def test_our_own_workflow_is_valid() -> None:
    assert parse((ROOT / ".solstice" / "workflow.kdl").read_text(encoding="utf-8"))
