"""The API calls that each forge gets, and the meaning of their answers."""

from types import ModuleType
from typing import Any

import pytest

from solstice_forge.remote import gitea_family_calls, github_calls, gitlab_calls
from solstice_forge.remote.protocol import (
    ChangeRequestHead,
    CommitStatus,
    ForgeAccount,
    ForgeCall,
    Unreadable,
)

SHA, OTHER = "a1" * 20, "b2" * 20
ADA = ForgeAccount(login="a/da", id=7)
FORK = "https://forge.example/dora/app.git"


def reported(call: ForgeCall[Any] | None) -> dict[str, Any]:
    """The parts of the call that differ from their defaults."""
    assert call is not None
    parts = ("query", "body", "repository", "permissions", "unread", "as_app", "linked")
    given = {name: getattr(call, name) for name in parts if getattr(call, name)}
    return {
        "call": f"{call.method} {call.path}",
        **{name: value if isinstance(value, str | bool) else dict(value) for name, value in given.items()},
    }


def status(**changes: Any) -> CommitStatus:
    fields: dict[str, Any] = {
        "repository": "river/app",
        "commit_sha": SHA,
        "context": "solstice/build",
        "state": "running",
        "description": "Runs",
        "occurred_at": "2026-03-01T12:00:00.000Z",
        "target_url": "https://ci.example/jobs/1",
        "external_id": "j1",
        **changes,
    }
    return CommitStatus(**fields)


def test_status_names_job_state_words_and_page() -> None:
    shown = {"description": "Runs", "target_url": "https://ci.example/jobs/1"}
    assert reported(github_calls.set_status(status())) == {
        "call": f"POST /repos/river/app/statuses/{SHA}",
        "body": {"context": "solstice/build", "state": "pending", **shown},
        "repository": "river/app",
        "permissions": {"statuses": "write"},
        "unread": True,
    }
    assert reported(gitea_family_calls.set_status(status())) == {
        "call": f"POST /repos/river/app/statuses/{SHA}",
        "body": {"context": "solstice/build", "state": "pending", **shown},
        "unread": True,
    }
    assert reported(gitlab_calls.set_status(status())) == {
        "call": f"POST /projects/river%2Fapp/statuses/{SHA}",
        "body": {"name": "solstice/build", "state": "running", **shown},
        "unread": True,
    }


@pytest.mark.parametrize(
    ("forge", "longest"), [(github_calls, 1024), (gitea_family_calls, 2048), (gitlab_calls, 255)]
)
def test_page_that_is_too_long_for_a_forge_is_left_out(forge: ModuleType, longest: int) -> None:
    url = "https://ci.example/".ljust(longest, "x")
    assert forge.set_status(status(target_url=url)).body["target_url"] == url
    assert "target_url" not in forge.set_status(status(target_url=url + "x")).body
    assert "target_url" not in forge.set_status(status(target_url=None)).body


@pytest.mark.parametrize(
    ("forge", "longest"), [(github_calls, 140), (gitea_family_calls, 255), (gitlab_calls, 255)]
)
def test_text_is_cut_where_a_forge_would_refuse_it(forge: ModuleType, longest: int) -> None:
    body = forge.set_status(status(description="x" * longest)).body
    assert body["description"] == "x" * longest
    body = forge.set_status(status(description="x" * (longest + 1), context="c" * 256)).body
    assert body["description"] == "x" * (longest - 1) + "…"
    assert body.get("context", body.get("name")) == "c" * 254 + "…"


@pytest.mark.parametrize(
    ("ref", "named"),
    [
        ("refs/heads/main", "main"),
        ("refs/tags/v1", "v1"),
        ("refs/merge-requests/7/head", None),
        (None, None),
        ("refs/heads/" + "x" * 255, "x" * 255),
        ("refs/heads/" + "x" * 256, None),
    ],
    ids=["branch", "tag", "merge request", "none", "longest", "too long"],
)
def test_gitlab_gets_the_branch_or_tag(ref: str | None, named: str | None) -> None:
    body = gitlab_calls.set_status(status(ref=ref)).body
    assert body is not None
    assert body.get("ref") == named


def test_check_run_is_made_once_and_then_changed() -> None:
    output = {"title": "Runs", "summary": "Runs"}
    shown = {
        "name": "solstice/build",
        "external_id": "j1",
        "output": output,
        "details_url": "https://ci.example/jobs/1",
    }
    rights = {"repository": "river/app", "permissions": {"checks": "write"}}
    at = "2026-03-01T12:00:00.000Z"
    made = github_calls.set_check(status(), None)
    assert reported(made) == {
        "call": "POST /repos/river/app/check-runs",
        "body": {**shown, "status": "in_progress", "started_at": at, "head_sha": SHA},
        **rights,
    }
    assert made.read({"id": 7}) == 7
    ended = {"status": "completed", "conclusion": "success", "completed_at": at}
    assert reported(github_calls.set_check(status(state="succeeded"), 7)) == {
        "call": "PATCH /repos/river/app/check-runs/7",
        "body": {**shown, **ended},
        **rights,
    }
    queued = github_calls.set_check(status(state="waiting", target_url=None), 7).body
    assert queued is not None
    assert queued["status"] == "queued"
    assert not {"details_url", "started_at", "completed_at"} & queued.keys()


@pytest.mark.parametrize(
    ("code", "detail", "forbids"),
    [
        (403, "Resource not accessible by integration", True),
        (422, "You need the checks permission", True),
        (403, "API rate limit exceeded", False),
        (404, "Resource not accessible by integration", False),
    ],
)
def test_app_without_the_right_to_checks_is_distinguished_from_other_refusals(
    code: int, detail: str, forbids: bool
) -> None:
    assert github_calls.forbids_checks(code, detail) is forbids


@pytest.mark.parametrize(
    ("forge", "ref", "call", "answer"),
    [
        (github_calls, "refs/heads/a/b", "GET /repos/river/app/commits/heads/a/b", {"sha": SHA}),
        (github_calls, "refs/tags/v 1", "GET /repos/river/app/commits/tags/v%201", {"sha": SHA}),
        (gitea_family_calls, "refs/heads/a/b", "GET /repos/river/app/branches/a/b", {"commit": {"id": SHA, "sha": OTHER}}),
        (gitea_family_calls, "refs/tags/v1", "GET /repos/river/app/tags/v1", {"id": OTHER, "commit": {"id": OTHER, "sha": SHA}}),
        (gitlab_calls, "refs/heads/a/b", "GET /projects/river%2Fapp/repository/branches/a%2Fb", {"commit": {"id": SHA}}),
        (gitlab_calls, "refs/tags/v1", "GET /projects/river%2Fapp/repository/tags/v1", {"target": OTHER, "commit": {"id": SHA}}),
    ],
)  # fmt: skip
def test_commit_of_a_ref_is_asked_for_where_the_forge_keeps_it(
    forge: ModuleType, ref: str, call: str, answer: dict[str, Any]
) -> None:
    question = forge.find_commit("river/app", ref)
    assert reported(question)["call"] == call
    assert question.read(answer) == SHA


def test_question_to_github_asks_for_no_more_rights_than_it_needs() -> None:
    whose = {"repository": "river/app"}
    path = "GET /repos/river/app"
    assert reported(github_calls.find_commit("river/app", "refs/heads/main")) == {
        "call": f"{path}/commits/heads/main",
        "permissions": {"contents": "read"},
        **whose,
    }
    assert reported(github_calls.find_head("river/app", 7)) == {
        "call": f"{path}/pulls/7",
        "permissions": {"pull_requests": "read"},
        **whose,
    }
    assert reported(github_calls.is_on_branch("river/app", SHA, "a/b c")) == {
        "call": f"{path}/compare/{SHA}...a/b%20c",
        "query": {"per_page": "1"},
        "permissions": {"contents": "read"},
        **whose,
    }
    assert reported(github_calls.may_write("river/app", ADA)) == {
        "call": f"{path}/collaborators/a%2Fda/permission",
        "permissions": {"metadata": "read"},
        **whose,
    }


@pytest.mark.parametrize(
    ("status_word", "is_on"),
    [("ahead", True), ("identical", True), ("behind", False), ("diverged", False)],
)
def test_branch_that_is_ahead_of_a_commit_holds_it(status_word: str, is_on: bool) -> None:
    call = github_calls.is_on_branch("river/app", SHA, "main")
    assert call.read({"status": status_word}) is is_on
    assert call.already(404, "Not Found")
    assert not call.already(403, "Forbidden")
    assert call.read(None) is False


@pytest.mark.parametrize(
    ("forge", "answers"),
    [
        (github_calls, {"admin": True, "write": True, "maintain": False, "read": False, "none": False}),
        (gitea_family_calls, {"owner": True, "admin": True, "write": True, "read": False, "none": False}),
    ],
    ids=["github", "gitea_family"],
)
def test_right_to_push_is_a_word_at_other_forges(forge: ModuleType, answers: dict[str, bool]) -> None:
    call = forge.may_write("river/app", ADA)
    assert reported(call)["call"] == "GET /repos/river/app/collaborators/a%2Fda/permission"
    assert {word: call.read({"permission": word}) for word in answers} == answers
    assert call.already(404, "")
    assert call.read(None) is False
    assert forge.may_write("river/app", ForgeAccount(login=None, id=7)) is None


def test_right_to_push_is_a_level_at_gitlab() -> None:
    call = gitlab_calls.may_write("river/app", ADA)
    assert call is not None
    assert reported(call)["call"] == "GET /projects/river%2Fapp/members/all/7"
    assert [call.read({"access_level": level}) for level in (10, 29, 30, 40)] == [False, False, True, True]
    assert call.already(404, "")
    assert call.read(None) is False
    assert gitlab_calls.may_write("river/app", ForgeAccount(login="ada", id=None)) is None


def pull(head_name: str | None = "river/app", *, number: int | None = 1, **head: Any) -> dict[str, Any]:
    own = {"full_name": "river/app", "clone_url": "https://forge.example/river/app.git"}
    repo = head_name and {"full_name": head_name, "clone_url": f"https://forge.example/{head_name}.git"}
    return {
        "state": "open",
        "head": {"ref": "spring", "sha": SHA, "repo": repo, "repo_id": number, **head},
        "base": {"ref": "main", "sha": OTHER, "repo": own, "repo_id": 1},
    }


def read(forge: ModuleType, answer: dict[str, Any]) -> ChangeRequestHead:
    head = forge.find_head("river/app", 7).read(answer)
    assert isinstance(head, ChangeRequestHead)
    return head


OWN = ChangeRequestHead(commit_sha=SHA, is_fork=False, is_open=True, base_ref="main", head_ref="spring")
FORKED = ChangeRequestHead(
    commit_sha=SHA, is_fork=True, is_open=True, base_ref="main", head_ref="spring", head_repo_url=FORK
)
GONE = ChangeRequestHead(commit_sha=SHA, is_fork=True, is_open=True, base_ref="main", head_ref="spring")


def test_head_at_github_is_a_forks_unless_both_repositories_are_one() -> None:
    assert read(github_calls, pull()) == OWN
    assert read(github_calls, pull("dora/app")) == FORKED
    assert read(github_calls, pull(None)) == GONE
    assert not read(github_calls, {**pull(), "state": "closed"}).is_open


def test_head_at_gitea_is_a_forks_unless_both_numbers_are_one() -> None:
    assert reported(gitea_family_calls.find_head("river/app", 7))["call"] == "GET /repos/river/app/pulls/7"
    assert read(gitea_family_calls, pull()) == OWN
    assert read(gitea_family_calls, pull("dora/app", number=2)) == FORKED
    assert read(gitea_family_calls, pull(None)) == GONE
    assert read(gitea_family_calls, pull(number=None)).is_fork is True
    assert read(gitea_family_calls, pull(number=2)).is_fork is True
    assert not read(gitea_family_calls, {**pull(), "state": "closed"}).is_open


def test_head_at_gitea_that_was_pushed_to_refs_for_has_an_unknown_origin() -> None:
    head = read(gitea_family_calls, pull(ref="refs/pull/7/head"))
    assert (head.is_fork, head.head_repo_url) == (None, None)


@pytest.mark.parametrize(
    ("source", "state", "is_fork", "is_open"),
    [(1, "opened", False, True), (2, "opened", True, True), (None, "merged", True, False)],
)
def test_head_at_gitlab_is_a_forks_unless_both_projects_are_one(
    source: int | None, state: str, is_fork: bool, is_open: bool
) -> None:
    question = gitlab_calls.find_head("river/app", 7)
    assert reported(question)["call"] == "GET /projects/river%2Fapp/merge_requests/7"
    answer = {
        "sha": SHA,
        "state": state,
        "source_project_id": source,
        "target_project_id": 1,
        "source_branch": "spring",
        "target_branch": "main",
    }
    assert question.read(answer) == ChangeRequestHead(
        commit_sha=SHA, is_fork=is_fork, is_open=is_open, base_ref="main", head_ref="spring"
    )


@pytest.mark.parametrize("given", [None, 7, "", SHA.upper(), SHA[:-1], SHA + "0", "main"])
@pytest.mark.parametrize(
    "forge", [github_calls, gitea_family_calls, gitlab_calls], ids=["github", "gitea_family", "gitlab"]
)
def test_answer_without_a_full_commit_id_cannot_be_read(forge: ModuleType, given: Any) -> None:
    call = forge.find_commit("river/app", "refs/heads/main")
    with pytest.raises(Unreadable, match="commit id"):
        call.read({"sha": given, "commit": {"id": given}})


def test_credentials_go_where_each_forge_looks_for_them() -> None:
    assert github_calls.headers("t")["authorization"] == "Bearer t"
    assert github_calls.headers("t")["x-github-api-version"] == "2022-11-28"
    assert github_calls.headers("t")["accept"] == "application/vnd.github+json"
    assert gitea_family_calls.headers("t") == {"accept": "application/json", "authorization": "token t"}
    assert gitlab_calls.headers("t") == {"accept": "application/json", "private-token": "t"}


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://www.github.com", "https://api.github.com"),
        ("https://api.github.com", "https://api.github.com"),
        ("https://api.acme.ghe.com/", "https://api.acme.ghe.com"),
    ],
)
def test_address_of_githubs_api_may_be_given_itself(url: str, api: str) -> None:
    assert github_calls.api_url(url) == api


@pytest.mark.parametrize(
    ("event", "state"),
    [
        ("enqueue", "pending"),
        ("run", "running"),
        ("success", "success"),
        ("drop", "failed"),
        ("cancel", "canceled"),
    ],
)
def test_gitlab_refuses_each_state_that_it_shows_already(event: str, state: str) -> None:
    already = gitlab_calls.set_status(status()).already
    assert already(400, f"Cannot transition status via :{event} from :{state}")
    assert not already(400, f"Cannot transition status via :{event} from :skipped")
    assert not already(409, f"Cannot transition status via :{event} from :{state}")
    assert not already(400, f"via :{event} from :{state}")
