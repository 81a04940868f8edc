"""Manual inputs: what a file names, what a request gives, and what jobs find."""

from typing import Any

import pytest

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.domain.jobs import JobSpec, Reason
from solstice_orchestrator.workflow.job_plan import (
    PlannedJobs,
    PlanningRules,
    PlanRefused,
    WorkflowWithPaths,
    plan_jobs,
)
from solstice_orchestrator.workflow.reader import parse_workflow
from tests.builders import job_request

FILE = """
job deploy if="input('dry-run') || glob(input('version'), '2.*')" { step run=x }
job here if="input('target') == 'staging'" { step run=x }
input version required=#true description="What to release."
input target type=choice default=staging { choices staging production }
input dry-run type=boolean
"""


def plan(text: str, **fields: Any) -> PlannedJobs | PlanRefused | WorkflowWithPaths:
    return plan_jobs(job_request(**fields), {".solstice/workflow.kdl": text.encode()}, PlanningRules())


def by_hand(text: str = FILE, **inputs: str) -> dict[str, JobSpec]:
    decision = plan(
        text, event="dispatch", inputs={name.replace("_", "-"): each for name, each in inputs.items()}
    )
    assert isinstance(decision, PlannedJobs), decision
    return {job.name: job for job in decision.jobs}


def refusal(text: str = FILE, **fields: Any) -> str:
    decision = plan(text, **{"event": "dispatch", **fields})
    assert isinstance(decision, PlanRefused)
    assert decision.reason is Reason.INVALID_WORKFLOW
    return decision.detail


def test_each_job_finds_every_input_in_a_variable() -> None:
    assert by_hand(version="2.0", dry_run="true")["here"].env == {
        "SOLSTICE_INPUT_VERSION": "2.0",
        "SOLSTICE_INPUT_TARGET": "staging",
        "SOLSTICE_INPUT_DRY_RUN": "true",
    }


@pytest.mark.parametrize(
    ("inputs", "left"),
    [
        ({"version": "1.0"}, ["here"]),
        ({"version": "1.0", "dry_run": "true"}, ["deploy", "here"]),
        ({"version": "2.1", "target": "production"}, ["deploy"]),
        ({"version": "' || event != '"}, ["here"]),
    ],
    ids=["defaults", "boolean", "choice", "text that looks like an expression"],
)
def test_jobs_are_chosen_by_inputs(inputs: dict[str, str], left: list[str]) -> None:
    assert [job.name for job in by_hand(**inputs).values() if not job.unmet] == left


def test_other_events_find_the_defaults_though_an_input_is_required() -> None:
    decision = plan(FILE)
    assert isinstance(decision, PlannedJobs)
    assert decision.jobs[0].env["SOLSTICE_INPUT_VERSION"] == ""


REFUSED = {
    "does not give the required input 'version': solstice enqueue --input version=...": {},
    "the input 'target' is one of staging, production, not 'stagin' (did you mean 'staging'?)": {
        "version": "1",
        "target": "stagin",
    },
    "the input 'dry-run' is one of true, false, not 'yes'": {"version": "1", "dry-run": "yes"},
    "gives the input 'versoin', which this workflow does not have (did you mean 'version'?); known: version, target,": {
        "versoin": "1"
    },
}


@pytest.mark.parametrize(("sentence", "inputs"), REFUSED.items(), ids=range(len(REFUSED)))
def test_a_request_is_refused_that_gives_what_the_workflow_does_not_take(
    sentence: str, inputs: dict[str, str]
) -> None:
    assert sentence in refusal(inputs=inputs)


def test_a_script_takes_no_inputs() -> None:
    request = job_request(event="dispatch", inputs={"a": "1"})
    decision = plan_jobs(request, {".solstice/job.sh": b""}, PlanningRules())
    assert isinstance(decision, PlanRefused)
    assert "which this workflow does not have" in decision.detail


WRONG = {
    'input "1st"': "line 1, column 7: '1st' cannot name an input",
    "input a; input A": "there is an input of that name already: both are SOLSTICE_INPUT_A",
    "input a-b; input a_b": "both are SOLSTICE_INPUT_A_B",
    "input a type=number": 'type is "text" or "choice" or "boolean", not \'number\'',
    "input a type=choice": 'an input with type="choice" has choices',
    "input a { choices x }": 'choices belong to an input with type="choice"',
    "input a type=choice { choices x x }": "'x' is a choice already",
    "input a type=choice default=z { choices x y }": "the default is one of the choices, not 'z'",
    "input a type=boolean default=yes": "the default of a boolean input is #true or #false",
    "input a required=#true default=x": "a required input has no default",
    "; ".join(f"input a{number}" for number in range(33)): "a workflow may have 32 inputs, no more",
    """job b if="input('a') == 'x'" { step run=x }""": "there is no input 'a' here",
    """input a; job b if="input('a')" { step run=x }""": "'input' alone is neither true nor false",
    """input a type=boolean; job b if="input('a') == 'on'" { step run=x }""": "there is no value of the input 'a' 'on'",
    """input a type=choice { choices x y }; job b if="input('a') == 'z'" { step run=x }""": "known: x, y",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=range(len(WRONG)))
def test_a_mistake_is_named(text: str, sentence: str) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow(f"{text}; job test {{ step run=x }}".encode(), default_runs_on="linux")
    assert sentence in str(caught.value)
