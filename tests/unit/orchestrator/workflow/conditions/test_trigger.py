"""What caused a run, by the fields of its request."""

from typing import Any

import pytest

from solstice_orchestrator.workflow.conditions.trigger import Trigger, TriggerEvent, trigger_of
from tests.builders import job_request

CHANGE = {"event": "change_request", "change_number": 7, "ref": "refs/pull/7/head"}
CASES: dict[str, tuple[dict[str, Any], Trigger]] = {
    "push": ({}, Trigger(event=TriggerEvent.PUSH, branch="main", repository="lantern/harbour")),
    "push of a branch with slashes": (
        {"ref": "refs/heads/release/1/x", "default_branch": "trunk", "repo_full_name": None},
        Trigger(event=TriggerEvent.PUSH, branch="release/1/x", default_branch="trunk"),
    ),
    "tag": (
        {"ref": "refs/tags/v1.0", "repo_full_name": None},
        Trigger(event=TriggerEvent.TAG, tag="v1.0"),
    ),
    "change request": ({**CHANGE, "repo_full_name": None}, Trigger(event=TriggerEvent.CHANGE_REQUEST)),
    "change request with its target": (
        {**CHANGE, "target_branch": "release/1", "repo_full_name": None},
        Trigger(event=TriggerEvent.CHANGE_REQUEST, target_branch="release/1"),
    ),
    "change request whose branch is its ref": (
        {**CHANGE, "ref": "refs/heads/main", "repo_full_name": None},
        Trigger(event=TriggerEvent.CHANGE_REQUEST),
    ),
    "merge queue": (
        {"ref": "refs/heads/gh-readonly-queue/a/b/pr-7-abc", "repo_full_name": None},
        Trigger(event=TriggerEvent.MERGE_GROUP, branch="a/b"),
    ),
    "release": (
        {"event": "release", "ref": "refs/tags/v2", "repo_full_name": None},
        Trigger(event=TriggerEvent.RELEASE, tag="v2"),
    ),
    "schedule": (
        {"event": "schedule", "source": "manual", "repo_full_name": None},
        Trigger(event=TriggerEvent.SCHEDULE, branch="main"),
    ),
    "by hand": (
        {"event": None, "source": "manual", "repo_full_name": None},
        Trigger(event=TriggerEvent.MANUAL, branch="main", is_requested=True),
    ),
    "by hand for a change request": (
        {"event": None, "source": "manual", "change_number": 7, "repo_full_name": None},
        Trigger(event=TriggerEvent.CHANGE_REQUEST),
    ),
    "dispatch": (
        {"event": "dispatch", "repo_full_name": None},
        Trigger(event=TriggerEvent.MANUAL, branch="main", is_requested=True),
    ),
    "push again": (
        {"event": "rerun", "repo_full_name": None},
        Trigger(event=TriggerEvent.PUSH, branch="main", is_requested=True),
    ),
    "change request again": (
        {**CHANGE, "event": "rerun", "repo_full_name": None},
        Trigger(event=TriggerEvent.CHANGE_REQUEST, is_requested=True),
    ),
    "a request that says nothing": (
        {"event": None, "ref": None, "repo_full_name": None},
        Trigger(event=TriggerEvent.PUSH),
    ),
}


@pytest.mark.parametrize(("fields", "expected"), CASES.values(), ids=CASES.keys())
def test_what_caused_a_run(fields: dict[str, Any], expected: Trigger) -> None:
    assert trigger_of(job_request(**fields)) == expected


def test_words_for_people_name_the_branch_or_the_tag() -> None:
    words = [trigger_of(job_request(**CASES[name][0])).described() for name in ("push", "tag", "merge queue")]
    assert words == ["push of the branch main", "tag v1.0", "merge-group of the branch a/b"]
    assert trigger_of(job_request(ref=None, event=None)).described() == "push"
    assert trigger_of(job_request(**CHANGE)).described() == "change-request"
