"""`if` and `on` of a workflow file: what a request gets of it."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import JobCondition, JobSpec, Reason, StepCondition
from solstice_orchestrator.workflow.conditions.condition_node import MAX_PATTERNS
from solstice_orchestrator.workflow.conditions.trigger import TriggerEvent
from solstice_orchestrator.workflow.job_plan import PlannedJobs, PlanningRules, PlanRefused, plan_jobs
from tests.builders import job_request

STEP = "step run=x"
REQUESTS: dict[str, dict[str, Any]] = {
    "push": {"ref": "refs/heads/main"},
    "tag": {"ref": "refs/tags/main"},
    "change-request": {"change_number": 7},
    "merge-group": {"ref": "refs/heads/gh-readonly-queue/main/pr-1-a"},
    "release": {"event": "release"},
    "schedule": {"event": "schedule", "source": "manual"},
    "manual": {"event": "dispatch"},
}


def plan(text: str, **fields: Any) -> PlannedJobs | PlanRefused:
    files = {".solstice/workflow.kdl": text.encode()}
    return plan_jobs(job_request(**fields), files, PlanningRules())


def jobs(text: str, **fields: Any) -> dict[str, JobSpec]:
    decision = plan(text, **fields)
    assert isinstance(decision, PlannedJobs), decision
    return {job.name: job for job in decision.jobs}


def test_a_job_is_left_out_by_its_expression_and_says_which() -> None:
    text = f"""job test {{ {STEP} }}; job deploy if="event == 'push' && branch == 'main'" {{ needs test; {STEP} }}"""
    assert [each.unmet for each in jobs(text).values()] == ["", ""]
    beside = jobs(text, ref="refs/heads/next")
    assert [each.unmet for each in beside.values()] == ["", "event == 'push' && branch == 'main'"]
    assert beside["deploy"].condition is JobCondition.SUCCESS


@pytest.mark.parametrize(
    ("written", "condition", "unmet"),
    [
        ("success", JobCondition.SUCCESS, ""),
        ("always", JobCondition.ALWAYS, ""),
        ("always && event == 'tag'", JobCondition.ALWAYS, "event == 'tag'"),
        ("success&&event == 'tag' || branch == ''", JobCondition.SUCCESS, "event == 'tag' || branch == ''"),
        ("  always  ", JobCondition.ALWAYS, ""),
    ],
)
def test_what_needs_came_to_stands_before_the_expression(
    written: str, condition: JobCondition, unmet: str
) -> None:
    (spec,) = jobs(f'job a if="{written}" {{ {STEP} }}').values()
    assert (spec.condition, spec.unmet) == (condition, unmet)


def test_jobs_of_a_matrix_are_left_out_one_by_one() -> None:
    text = f"""job a if="branch == '{{matrix.of}}'" {{ matrix {{ of main next }}; {STEP} }}"""
    assert [name for name, spec in jobs(text).items() if not spec.unmet] == ["a-main"]


@pytest.mark.parametrize("event", REQUESTS)
def test_on_builds_the_events_that_it_names_and_what_a_person_asks_for(event: str) -> None:
    named = {
        name
        for name, fields in REQUESTS.items()
        if isinstance(
            plan(f"on {{ {event if event != 'manual' else 'push'} }}; job a {{ {STEP} }}", **fields),
            PlannedJobs,
        )
    }
    assert named == {event if event != "manual" else "push", "manual"}


def test_an_event_that_is_not_named_is_no_mistake_of_the_file() -> None:
    refused = plan(f'on {{ push "release/**" }}; job a {{ {STEP} }}')
    assert isinstance(refused, PlanRefused)
    assert (refused.reason, refused.detail) == (
        Reason.EVENT_NOT_BUILT,
        ".solstice/workflow.kdl: 'on' does not name push of the branch main",
    )


def test_a_file_without_on_is_built_for_each_event() -> None:
    assert all(isinstance(plan(f"job a {{ {STEP} }}", **fields), PlannedJobs) for fields in REQUESTS.values())


def test_a_request_for_the_same_again_is_built_though_on_does_not_name_it() -> None:
    text = f"on {{ tag }}; job a {{ {STEP} }}"
    assert isinstance(plan(text), PlanRefused)
    assert isinstance(plan(text, event="rerun"), PlannedJobs)


def test_a_mistake_is_named_also_where_on_does_not_name_the_event() -> None:
    refused = plan("on { tag }; job a { stop run=x }")
    assert isinstance(refused, PlanRefused)
    assert refused.reason is Reason.INVALID_WORKFLOW


@pytest.mark.parametrize(("target", "is_built"), [("main", True), ("next", False), (None, True)])
def test_a_change_request_is_chosen_by_its_target_where_that_is_known(
    target: str | None, is_built: bool
) -> None:
    decision = plan(
        f"on {{ change-request main }}; job a {{ {STEP} }}", change_number=7, target_branch=target
    )
    assert isinstance(decision, PlannedJobs) is is_built


NAMED = {TriggerEvent.PUSH: "refs/heads/{}", TriggerEvent.TAG: "refs/tags/{}"}
PATTERNS = {"main": {"main"}, "v*": {"v1", "v2"}, "*": {"main", "v1", "v2"}, "a/**": {"a/b"}}


@given(
    st.dictionaries(st.sampled_from(list(NAMED)), st.lists(st.sampled_from(list(PATTERNS)), max_size=3)),
    st.sampled_from(list(product(NAMED, ["main", "v1", "v2", "a/b"]))),
)
def test_patterns_choose_branches_and_tags(
    named: dict[TriggerEvent, list[str]], pushed: tuple[TriggerEvent, str]
) -> None:
    nodes = "; ".join(
        " ".join([event, *(f'"{each}"' for each in patterns)]) for event, patterns in named.items()
    )
    event, name = pushed
    decision = plan(f"on {{ schedule; {nodes} }}; job a {{ {STEP} }}", ref=NAMED[event].format(name))
    patterns = named.get(event)
    expected = patterns is not None and (not patterns or any(name in PATTERNS[each] for each in patterns))
    assert isinstance(decision, PlannedJobs) is expected


def test_patterns_are_bounded() -> None:
    decision = plan(f"on {{ push {' a' * (MAX_PATTERNS + 1)} }}; job a {{ {STEP} }}")
    assert isinstance(decision, PlanRefused)
    assert f"at most {MAX_PATTERNS} patterns" in decision.detail


STEP_IFS = {
    "failed": (StepCondition.FAILED,) * 2,
    "always": (StepCondition.ALWAYS,) * 2,
    "success": (StepCondition.SUCCESS,) * 2,
    "event == 'push'": (StepCondition.SUCCESS, StepCondition.NEVER),
    "failed && event == 'push'": (StepCondition.FAILED, StepCondition.NEVER),
    "failed || event == 'push'": (StepCondition.ALWAYS, StepCondition.FAILED),
    "always && event != 'push'": (StepCondition.NEVER, StepCondition.ALWAYS),
    "!failed": (StepCondition.SUCCESS,) * 2,
    "branch != 'failed'": (StepCondition.SUCCESS,) * 2,
}


@pytest.mark.parametrize(("written", "expected"), STEP_IFS.items(), ids=list(STEP_IFS))
def test_a_step_runs_after_what_its_expression_says(
    written: str, expected: tuple[StepCondition, StepCondition]
) -> None:
    text = f'job a {{ step run=x; step run=y if="{written}" continue=#true }}'
    for fields, when in zip((REQUESTS["push"], REQUESTS["tag"]), expected, strict=True):
        first, second = jobs(text, **fields)["a"].steps
        assert first.is_plain
        assert (second.when, second.condition, second.may_fail) == (when, written, True)


@pytest.mark.parametrize("text", ['if="failde"', "if=\"result('a') == 'failed'\"", 'continue="yes"'])
def test_a_mistake_in_a_step_is_named(text: str) -> None:
    refused = plan(f"job a {{ step run=x {text} }}")
    assert isinstance(refused, PlanRefused)
    assert refused.detail.startswith(".solstice/workflow.kdl: line 1, column ")
