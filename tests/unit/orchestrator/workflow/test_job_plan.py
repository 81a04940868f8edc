"""The choice of files, trust, and the fields that a request adds to a workflow."""

from typing import Any

import pytest

from solstice_common.messages import JobRequestV1, Priority
from solstice_orchestrator.domain.jobs import JobSpec, Reason, RunSpec
from solstice_orchestrator.domain.trust import awaits_approval, is_trusted, is_vouched_for, parse_sources
from solstice_orchestrator.workflow.job_plan import (
    RUN_SCRIPT,
    PlannedJobs,
    PlanningRules,
    PlanRefused,
    plan_jobs,
    runs_untrusted,
    untrusted,
    workflow_paths,
)
from tests.builders import job_request

RULES = PlanningRules(default_runs_on="linux")
WORKFLOW = (
    b"job lint { step run=a }\njob test runs-on=illumos { needs lint; step run=b }\njob docs { step run=c }"
)
BOTH = {".solstice/workflow.kdl": WORKFLOW, ".solstice/job.sh": b"#!/bin/sh\n"}


def planned(request: JobRequestV1, files: dict[str, bytes]) -> dict[str, JobSpec]:
    decision = plan_jobs(request, files, RULES)
    assert isinstance(decision, PlannedJobs)
    return {job.name: job for job in decision.jobs}


def refused(request: JobRequestV1, files: dict[str, bytes]) -> PlanRefused:
    decision = plan_jobs(request, files, RULES)
    assert isinstance(decision, PlanRefused)
    return decision


def test_the_workflow_wins_over_the_script() -> None:
    assert list(planned(job_request(), BOTH)) == ["lint", "test", "docs"]


def test_a_script_alone_is_one_job_of_one_step() -> None:
    (job,) = planned(job_request(), {".solstice/job.sh": b""}).values()
    assert (job.name, job.runs_on, [step.run for step in job.steps]) == ("job", "linux", [RUN_SCRIPT])


def test_a_named_workflow_path_is_the_only_one_looked_at() -> None:
    request = job_request(workflow_path="ci/other.kdl")
    assert workflow_paths(request) == ("ci/other.kdl",)
    assert list(planned(request, {"ci/other.kdl": b"job x { step run=y }"})) == ["x"]
    assert "ci/other.kdl" in refused(request, {}).detail


def test_the_error_names_the_file_that_a_commit_has_to_add() -> None:
    decision = refused(job_request(), {})
    assert decision.reason is Reason.INVALID_WORKFLOW
    assert ".solstice/workflow.kdl" in decision.detail
    assert ".solstice/job.sh" in decision.detail


def test_a_bad_workflow_is_refused_with_file_line_and_column() -> None:
    decision = refused(job_request(), {".solstice/workflow.kdl": b"job a {\n stop run=x\n}"})
    assert decision.reason is Reason.INVALID_WORKFLOW
    assert decision.detail.startswith(".solstice/workflow.kdl: line 2, column 2: 'stop' is not known")


def test_the_label_of_the_request_holds_for_jobs_that_name_none() -> None:
    jobs = planned(job_request(runs_on="freebsd"), BOTH)
    assert [job.runs_on for job in jobs.values()] == ["freebsd", "illumos", "freebsd"]


def test_the_label_of_the_request_holds_for_a_script() -> None:
    assert planned(job_request(runs_on="freebsd"), {".solstice/job.sh": b""})["job"].runs_on == "freebsd"


def test_a_picked_job_comes_with_what_it_needs() -> None:
    assert list(planned(job_request(workflow_job_id="test"), BOTH)) == ["lint", "test"]


def test_a_picked_job_that_is_not_there_is_refused() -> None:
    assert "'deploy'" in refused(job_request(workflow_job_id="deploy"), BOTH).detail
    assert "'deploy'" in refused(job_request(workflow_job_id="deploy"), {".solstice/job.sh": b""}).detail


def test_what_the_workflow_says_of_the_run_is_planned_with_its_jobs() -> None:
    decision = plan_jobs(job_request(), {".solstice/workflow.kdl": b'timeout "2h"\n' + WORKFLOW}, RULES)
    assert isinstance(decision, PlannedJobs)
    assert decision.run == RunSpec(timeout_seconds=7200)


def test_the_priority_is_the_requests() -> None:
    jobs = planned(job_request(priority="high"), BOTH)
    assert {job.priority for job in jobs.values()} == {Priority.HIGH}
    assert {job.priority for job in planned(job_request(), BOTH).values()} == {Priority.DEFAULT}


@pytest.mark.parametrize(
    ("source", "trusted", "expected"),
    [
        ("github", True, True),
        ("github", False, False),
        ("github", None, False),
        ("manual", None, True),
        ("manual", False, False),
    ],
)
def test_code_is_trusted_only_when_it_is_known_to_be(
    source: str, trusted: bool | None, expected: bool
) -> None:
    request = job_request(source=source, trusted=trusted)
    assert is_trusted(request) is expected
    refusal = untrusted(request, RULES)
    assert (refusal is None) is expected
    assert refusal is None or refusal.reason is Reason.NOT_TRUSTED
    assert untrusted(request, PlanningRules(run_untrusted=True)) is None


@pytest.mark.parametrize(
    ("operator", "fields", "expected"),
    [
        ("manual", {"source": "github"}, False),
        ("manual,github", {"source": "github"}, True),
        ("github", {"source": "manual"}, False),
        ("github", {"source": "gitlab"}, False),
        ("", {"source": "manual"}, False),
        ("github", {"source": "github", "trusted": False}, False),
        ("github", {"source": "github", "change_number": 3}, False),
        ("github", {"source": "github", "head_repo_url": "https://git.example/fork"}, False),
        ("github", {"source": "github", "needs_approval": True}, False),
    ],
)
def test_a_request_that_does_not_say_is_trusted_by_the_operators_word(
    operator: str, fields: dict[str, Any], *, expected: bool
) -> None:
    request = job_request(**{"trusted": None, "change_number": None, "head_repo_url": None, **fields})
    trust = parse_sources(operator)
    assert is_trusted(request, trust) is expected
    assert (untrusted(request, PlanningRules(v1_trust=trust)) is None) is expected


def test_an_unknown_source_is_a_mistake_in_the_setting() -> None:
    with pytest.raises(ValueError, match="'githbu' is no source"):
        parse_sources("manual, githbu")


VOUCHED = {
    "a stranger's": ({}, False, False),
    "to be approved": ({"needs_approval": True}, True, True),
    "approved by its own word": ({"approves": True}, False, True),
    "the word counts more": ({"needs_approval": True, "approves": True}, False, True),
    "said to need nothing": ({"needs_approval": False, "approves": False}, False, False),
}


@pytest.mark.parametrize(("fields", "awaits", "vouched"), VOUCHED.values(), ids=VOUCHED)
def test_strangers_run_where_the_operator_wants_them_approved(
    fields: dict[str, bool], *, awaits: bool, vouched: bool
) -> None:
    request = job_request(trusted=False, **fields)
    assert (awaits_approval(request), is_vouched_for(request)) == (awaits, vouched)
    assert not is_trusted(request)
    assert (untrusted(request, PlanningRules(run_approved=True)) is None) is vouched
    assert untrusted(request, PlanningRules(run_untrusted=True)) is None
    refusal = untrusted(request, RULES)
    assert refusal is not None
    assert "UNTRUSTED_RUNS=approved" in refusal.detail


@pytest.mark.parametrize(
    ("setting", "executor", "isolates", "expected"),
    [
        ("refuse", "podman", True, False),
        ("approved", "podman", True, False),
        ("isolated", "podman", True, True),
        ("isolated", "process", False, False),
        ("run", "podman", True, True),
        ("run", "process", False, True),
        ("refuse", "scripted", True, True),
    ],
)
def test_strangers_run_by_the_operators_word_alone_also_where_jobs_are_isolated(
    setting: str, executor: str, *, isolates: bool, expected: bool
) -> None:
    assert runs_untrusted(setting, executor, isolates=isolates) is expected


def test_strangers_run_only_on_labels_where_jobs_are_isolated() -> None:
    rules = PlanningRules(run_untrusted=True, isolates=lambda label: label == "illumos")
    stranger = job_request(trusted=False)
    decision = plan_jobs(stranger, BOTH, rules)
    assert isinstance(decision, PlanRefused)
    assert decision.reason is Reason.NOT_TRUSTED
    assert "jobs of the label linux are not isolated" in decision.detail
    isolated = {".solstice/workflow.kdl": b"job a runs-on=illumos { step run=a }"}
    assert isinstance(plan_jobs(stranger, isolated, rules), PlannedJobs)
    assert isinstance(plan_jobs(job_request(trusted=True), BOTH, rules), PlannedJobs)
