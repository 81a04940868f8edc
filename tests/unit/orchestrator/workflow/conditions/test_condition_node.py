"""`if` and `on` of a workflow file: what a request gets of it."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.domain.jobs import JobCondition, JobSpec, Reason, StepCondition
from solstice_orchestrator.workflow.conditions.condition_node import MAX_PATTERNS
from solstice_orchestrator.workflow.conditions.facts import ChangedPaths
from solstice_orchestrator.workflow.conditions.trigger import TriggerEvent
from solstice_orchestrator.workflow.job_plan import (
    PlannedJobs,
    PlanningRules,
    PlanRefused,
    WorkflowWithPaths,
    plan_jobs,
)
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


def plan(text: str, **fields: Any) -> PlannedJobs | PlanRefused | WorkflowWithPaths:
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


FILES = ("src/a.py", "src/b/c.py", "docs/a.md", "pyproject.toml")
PATHS = {
    "src/**": {"src/a.py", "src/b/c.py"},
    "src/*": {"src/a.py"},
    "docs/**": {"docs/a.md"},
    "*.toml": {"pyproject.toml"},
    "**": set(FILES),
}


@given(
    paths=st.lists(st.sampled_from(list(PATHS)), max_size=3),
    ignored=st.lists(st.sampled_from(list(PATHS)), max_size=2),
    changed=st.sets(st.sampled_from(FILES)),
    known=st.booleans(),
)
def test_changed_paths_choose_runs_and_jobs(
    paths: list[str], ignored: list[str], changed: set[str], *, known: bool
) -> None:
    block = "".join(
        " ".join([name, *(f'"{each}"' for each in patterns)]) + ";"
        for name, patterns in (("paths", paths), ("ignore-paths", ignored))
        if patterns
    )
    text = f"""on {{ push {{ {block} }} }}; job a {{ {STEP} }}; job b if="changed('src/**', '*.toml')" {{ {STEP} }}"""
    open_plan = plan(text)
    assert isinstance(open_plan, WorkflowWithPaths)
    decision = open_plan.planned(ChangedPaths(paths=changed, unknown="" if known else "a new ref"))
    counted = changed - set().union(*(PATHS[each] for each in ignored))
    is_built = not block or not known or any(counted & PATHS[each] for each in paths or ["**"])
    assert isinstance(decision, PlannedJobs) is is_built
    if isinstance(decision, PlannedJobs):
        meant = not known or bool(changed & (PATHS["src/**"] | PATHS["*.toml"]))
        assert [not job.unmet for job in decision.jobs] == [True, meant]
        assert all(bool(job.notice) is not known for job in decision.jobs)


def test_paths_are_not_fetched_where_nothing_compares_them() -> None:
    text = f"""on {{ push main paths="src/**"; tag; change-request }}; job a {{ {STEP} }}"""
    named = {name for name, fields in REQUESTS.items() if isinstance(plan(text, **fields), WorkflowWithPaths)}
    assert named == {"push"}


@pytest.mark.parametrize(
    "node", ["tag paths=x", "push paths='['", "push { paths }", "push { files x }", "schedule { paths x }"]
)
def test_a_mistake_about_paths_is_named(node: str) -> None:
    refused = plan(f"on {{ {node} }}; job a {{ {STEP} }}")
    assert isinstance(refused, PlanRefused)
    assert refused.detail.startswith(".solstice/workflow.kdl: line 1, column ")


def test_a_rerun_is_built_though_on_does_not_name_its_event() -> None:
    files = {".solstice/workflow.kdl": f"on {{ tag }}; job a {{ {STEP} }}".encode()}
    assert isinstance(plan_jobs(job_request(), files, PlanningRules()), PlanRefused)
    assert isinstance(plan_jobs(job_request(), files, PlanningRules(), is_rerun=True), PlannedJobs)


def test_a_job_is_decided_later_by_the_results_of_its_needs() -> None:
    text = f"""
    job test {{ matrix {{ os linux illumos }}; {STEP} }}
    job report if="result('test') != 'succeeded' && event == 'push'" {{ needs test; {STEP} }}
    job deploy if="success && result('test') == 'succeeded'" {{ needs test; {STEP} }}
    """
    planned = jobs(text)
    assert planned["report"].condition is JobCondition.ALWAYS
    assert json.loads(planned["report"].later) == [
        "result('test') != 'succeeded' && event == 'push'",
        ["not", ["equal", ["result", "test-linux", "test-illumos"], "succeeded"]],
    ]
    assert planned["deploy"].condition is JobCondition.SUCCESS
    assert jobs(text, ref="refs/tags/v1")["report"].unmet


@pytest.mark.parametrize(
    ("needs", "expression", "sentence"),
    [
        ("", "result('test') == 'failed'", "there is no needed job 'test' here"),
        ("needs test", "result('tset') == 'failed'", "(did you mean 'test'?); known: test"),
        (
            "needs test",
            "result('test') == 'failure'",
            "there is no result 'failure' (did you mean 'failed'?)",
        ),
        ("needs test", "result('test')", "'result' alone is neither true nor false"),
    ],
)
def test_a_mistake_about_results_is_named(needs: str, expression: str, sentence: str) -> None:
    refused = plan(f"""job test {{ {STEP} }}; job a if="{expression}" {{ {needs}; {STEP} }}""")
    assert isinstance(refused, PlanRefused)
    assert sentence in refused.detail
