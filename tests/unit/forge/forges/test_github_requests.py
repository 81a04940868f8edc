"""GitHub's re-runs and dispatches: their commit or ref, sender and check."""

import json
from typing import Any

import pytest

from solstice_forge.forges import github
from solstice_forge.forges.events import Dispatch, Event, Ignored, Malformed, Rerun

SHA, OTHER = "a1" * 20, "b2" * 20
REPOSITORY = {"full_name": "river/otter", "clone_url": "https://github.com/river/otter.git"}


def parsed(event_name: str, **document: Any) -> Event | Ignored | Malformed:
    whole = {"repository": REPOSITORY, "sender": {"login": "ada"}, **document}
    return github.parse(event_name, json.dumps(whole).encode())


def rerun(event_name: str, **document: Any) -> Rerun:
    event = parsed(event_name, action="rerequested", **document)
    assert isinstance(event, Rerun)
    return event


def pull(number: int, sha: str | None) -> dict[str, Any]:
    return {"number": number, "head": sha and {"sha": sha}}


def test_rerun_of_a_check_names_the_check_and_its_branch() -> None:
    run = {"head_sha": SHA, "name": "solstice/test", "check_suite": {"head_branch": "main"}}
    assert rerun("check_run", check_run=run) == Rerun(
        repo_full_name="river/otter",
        repo_url="https://github.com/river/otter.git",
        commit_sha=SHA,
        branch="main",
        number=None,
        check="solstice/test",
        action="rerequested",
        sender="ada",
    )


def test_rerun_of_all_checks_names_none() -> None:
    event = rerun("check_suite", check_suite={"head_sha": SHA, "head_branch": "main"})
    assert (event.commit_sha, event.branch, event.check, event.sender) == (SHA, "main", None, "ada")
    assert event.action == "rerequested"


def test_rerun_of_a_forks_commit_names_no_branch() -> None:
    assert rerun("check_run", check_run={"head_sha": SHA}).branch is None
    assert rerun("check_suite", check_suite={"head_sha": SHA, "head_branch": None}).branch is None


@pytest.mark.parametrize(
    ("pulls", "number"),
    [
        pytest.param([], None, id="none"),
        pytest.param([pull(3, OTHER), pull(4, SHA)], 4, id="the one with this head"),
        pytest.param([pull(3, OTHER)], None, id="another head"),
        pytest.param([pull(3, None)], None, id="head not told"),
    ],
)
@pytest.mark.parametrize("of", ["check_run", "check_suite"])
def test_rerun_is_of_the_pull_request_that_has_this_head(
    of: str, pulls: list[dict[str, Any]], number: int | None
) -> None:
    assert rerun(of, **{of: {"head_sha": SHA, "pull_requests": pulls}}).number == number


@pytest.mark.parametrize("sender", [None, {"login": ""}])
def test_sender_without_a_name_is_unknown(sender: dict[str, str] | None) -> None:
    assert rerun("check_run", check_run={"head_sha": SHA}, sender=sender).sender is None


@pytest.mark.parametrize(
    ("given", "ref"),
    [("main", "refs/heads/main"), ("refs/heads/main", "refs/heads/main"), ("refs/tags/v1", "refs/tags/v1")],
)
def test_dispatch_of_a_workflow_is_of_the_ref_that_it_names(given: str, ref: str) -> None:
    assert parsed("workflow_dispatch", ref=given, workflow=".solstice/nightly.kdl") == Dispatch(
        repo_full_name="river/otter",
        repo_url="https://github.com/river/otter.git",
        ref=ref,
        commit_sha=None,
        action=None,
        workflow_path=".solstice/nightly.kdl",
        sender="ada",
    )


def test_dispatch_of_a_program_is_of_a_branch_and_says_its_own_word() -> None:
    event = parsed("repository_dispatch", action="deploy", branch="main")
    assert isinstance(event, Dispatch)
    assert (event.ref, event.action, event.workflow_path) == ("refs/heads/main", "deploy", None)


def test_dispatch_of_a_ref_that_git_allows_not_is_malformed() -> None:
    assert isinstance(parsed("workflow_dispatch", ref="a b"), Malformed)
    assert isinstance(parsed("repository_dispatch", action="x", branch="-x"), Malformed)
