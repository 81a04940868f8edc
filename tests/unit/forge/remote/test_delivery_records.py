"""Requests for deliveries (GitHub, GitLab) and heads (Gitea), and reading any answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Source
from solstice_forge.decisions.sources import FORGES, WebhookSource
from solstice_forge.forges.events import ChangeRequest, Ignored, Malformed, Push
from solstice_forge.inbox.reconcile_state import KnownRepository
from solstice_forge.reconcile.missed_heads import changed, pushed
from solstice_forge.remote import github_hooks, gitlab_hooks
from solstice_forge.remote.gitea_heads import (
    GiteaBranch,
    GiteaRepository,
    OpenChange,
    find_branches,
    find_changes,
    find_repository,
)
from solstice_forge.remote.hooks import Attempt, Hook, HookDialect
from solstice_forge.remote.protocol import ForgeCall, LinkedPage, Page, Unreadable

SHA = "a1" * 20
NAMES = {"full_name": "river/app", "clone_url": "https://forge.example/river/app.git"}
SIDE = {"ref": "main", "sha": SHA, "repo": NAMES, "repo_id": 1}
GITHUB = {
    "id": 7,
    "guid": "g",
    "delivered_at": "2026-01-31T12:00:00Z",
    "status": "OK",
    "status_code": 200,
    "event": "push",
}
GITLAB = {
    "id": 7,
    "trigger": "push_hooks",
    "request_headers": {"Idempotency-Key": "g", "X-Gitlab-Event": "Push Hook"},
    "response_status": "200",
}
GITHUB_HOOK = {"id": 1, "config": {"url": "https://ci.example/webhooks/acme"}}
GITLAB_HOOK = {"id": 1, "url": "https://ci.example/webhooks/acme"}
BRANCH = {"name": "main", "commit": {"id": SHA, "message": "m"}}
PULL = {"number": 7, "draft": False, "updated_at": "2026-01-31T12:00:00Z", "head": SIDE, "base": SIDE}
REPOSITORY = {**NAMES, "default_branch": "main", "has_pull_requests": True}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(SHA),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def damaged(draw: st.DrawFn, good: dict[str, Any]) -> Any:
    """The object with one of its values replaced or removed, at some depth."""
    name = draw(st.sampled_from(sorted(good)))
    if isinstance(good[name], dict) and draw(st.booleans()):
        return {**good, name: draw(damaged(good[name]))}
    if draw(st.booleans()):
        return {each: value for each, value in good.items() if each != name}
    return {**good, name: draw(ODD)}


def outcome(call: ForgeCall[Any], document: Any) -> Any:
    try:
        return call.read(LinkedPage(document=document, next=None) if call.linked else document)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # `Remote` treats this as an answer that cannot be read


def hook_of(dialect: HookDialect, document: dict[str, Any]) -> Hook:
    (hook,) = outcome(dialect.find_hooks(dialect.hook_owners("river/app")[0]), [document]).items
    assert isinstance(hook, Hook)
    return hook


def test_places_and_paths_are_those_of_the_documentation() -> None:
    hook_owners = github_hooks.hook_owners("river/app")
    assert [each.path for each in hook_owners] == ["/repos/river/app/hooks", "/orgs/river/hooks"]
    hook = hook_of(github_hooks, GITHUB_HOOK)
    (attempt,) = outcome(github_hooks.find_attempts(hook), [GITHUB]).items
    assert github_hooks.find_attempts(hook).path == "/repos/river/app/hooks/1/deliveries"
    again = github_hooks.send_again(hook, attempt)
    assert (again.method, again.path) == ("POST", "/repos/river/app/hooks/1/deliveries/7/attempts")
    assert dict(again.permissions) == {"repository_hooks": "write"}
    hook_owners = gitlab_hooks.hook_owners("a/b/app")
    assert [each.path for each in hook_owners] == [
        "/projects/a%2Fb%2Fapp/hooks",
        "/groups/a%2Fb/hooks",
        "/groups/a/hooks",
    ]
    hook = hook_of(gitlab_hooks, GITLAB_HOOK)
    (attempt,) = outcome(gitlab_hooks.find_attempts(hook), [GITLAB]).items
    assert gitlab_hooks.find_attempts(hook).path == "/projects/river%2Fapp/hooks/1/events"
    assert gitlab_hooks.send_again(hook, attempt).path == "/projects/river%2Fapp/hooks/1/events/7/resend"


@pytest.mark.parametrize(
    ("dialect", "good", "hook", "changes", "succeeded"),
    [
        (github_hooks, GITHUB, GITHUB_HOOK, {"status_code": 202}, True),
        (github_hooks, GITHUB, GITHUB_HOOK, {"status_code": 302}, False),
        (github_hooks, GITHUB, GITHUB_HOOK, {"status_code": 0}, False),
        (github_hooks, GITHUB, GITHUB_HOOK, {"status_code": None}, False),
        (gitlab_hooks, GITLAB, GITLAB_HOOK, {"response_status": "302"}, True),
        (gitlab_hooks, GITLAB, GITLAB_HOOK, {"response_status": 200}, True),
        (gitlab_hooks, GITLAB, GITLAB_HOOK, {"response_status": "500"}, False),
        (gitlab_hooks, GITLAB, GITLAB_HOOK, {"response_status": "internal error"}, False),
    ],
)
def test_what_each_forge_takes_for_success(
    dialect: HookDialect,
    good: dict[str, Any],
    hook: dict[str, Any],
    changes: dict[str, Any],
    *,
    succeeded: bool,
) -> None:
    found = outcome(dialect.find_attempts(hook_of(dialect, hook)), [{**good, **changes}])
    assert [each.succeeded for each in found.items] == [succeeded]


def test_next_page_is_the_same_question_with_the_query_that_the_forge_names() -> None:
    call = github_hooks.find_attempts(hook_of(github_hooks, GITHUB_HOOK))
    page = call.read(LinkedPage(document=[], next={"cursor": "v1_5"}))
    assert page.next is not None
    assert (page.next.path, dict(page.next.query)) == (call.path, {"cursor": "v1_5"})
    assert page.next.permissions == call.permissions


def test_a_page_without_a_link_is_the_last() -> None:
    assert find_changes("river/app").read(LinkedPage(document=[PULL], next=None)).next is None


def test_github_is_asked_with_the_rights_of_the_owner_of_the_hook() -> None:
    own, organisation = github_hooks.hook_owners("river/app")
    assert (own.name, own.shared, dict(own.permissions)) == (
        "river/app",
        False,
        {"repository_hooks": "write"},
    )
    assert (organisation.name, organisation.shared) == ("organisation river", True)
    assert dict(organisation.permissions) == {"organization_hooks": "write"}
    for owner in (own, organisation):
        listed = github_hooks.find_hooks(owner)
        assert (listed.method, listed.path, dict(listed.query)) == ("GET", owner.path, {"per_page": "100"})
        (hook,) = outcome(listed, [GITHUB_HOOK]).items
        assert hook == Hook(owner=owner, path=f"{owner.path}/1", url="https://ci.example/webhooks/acme")
        attempts = github_hooks.find_attempts(hook)
        assert (attempts.method, dict(attempts.query)) == ("GET", {"per_page": "100"})
        (attempt,) = outcome(attempts, [GITHUB]).items
        for call in (listed, attempts, github_hooks.send_again(hook, attempt)):
            assert (call.repository, call.permissions, call.as_app) == ("river/app", owner.permissions, False)


def test_hook_of_the_app_is_asked_for_as_the_app() -> None:
    call = github_hooks.find_app_hook()
    assert (call.method, call.path, call.as_app) == ("GET", "/app/hook/config", True)
    hook = call.read({"url": "https://ci.example/webhooks/acme"})
    assert (hook.path, hook.url, hook.as_app) == ("/app/hook", "https://ci.example/webhooks/acme", True)
    assert call.read({}).url == ""
    attempts = github_hooks.find_attempts(hook)
    assert (attempts.path, attempts.as_app) == ("/app/hook/deliveries", True)
    (attempt,) = outcome(attempts, [GITHUB]).items
    again = github_hooks.send_again(hook, attempt)
    assert (again.path, again.as_app, again.unread) == ("/app/hook/deliveries/7/attempts", True, True)


def test_gitlab_lists_the_project_and_every_group_above_it() -> None:
    owners = gitlab_hooks.hook_owners("a/b/app")
    assert [(each.name, each.shared, each.repository) for each in owners] == [
        ("a/b/app", False, "a/b/app"),
        ("group a/b", True, "a/b/app"),
        ("group a", True, "a/b/app"),
    ]
    assert [dict(each.permissions) for each in owners] == [{}, {}, {}]
    listed = gitlab_hooks.find_hooks(owners[0])
    assert (listed.method, listed.path, dict(listed.query)) == ("GET", owners[0].path, {"per_page": "100"})
    hook = hook_of(gitlab_hooks, GITLAB_HOOK)
    assert (hook.path, hook.url) == ("/projects/river%2Fapp/hooks/1", "https://ci.example/webhooks/acme")
    attempts = gitlab_hooks.find_attempts(hook)
    assert (attempts.method, dict(attempts.query)) == ("GET", {"per_page": "20"})
    (attempt,) = outcome(attempts, [GITLAB]).items
    again = gitlab_hooks.send_again(hook, attempt)
    assert (again.method, again.unread) == ("POST", True)


def test_attempt_at_github_has_its_time_and_result() -> None:
    def read(**changes: Any) -> Attempt:
        (attempt,) = outcome(
            github_hooks.find_attempts(hook_of(github_hooks, GITHUB_HOOK)), [{**GITHUB, **changes}]
        ).items
        assert isinstance(attempt, Attempt)
        return attempt

    assert read() == Attempt(
        id=7, delivery_id="g", event="push", succeeded=True, why="200 OK", delivered_at=1769860800.0
    )
    assert read(status_code=299).succeeded
    assert not read(status_code=199).succeeded
    assert not read(status_code=300).succeeded
    assert read(status_code=502, status=None).why == "502"
    assert read(status_code=None, status="timed out").why == "0 timed out"


def test_attempt_at_github_without_a_zone_cannot_be_read() -> None:
    call = github_hooks.find_attempts(hook_of(github_hooks, GITHUB_HOOK))
    with pytest.raises(Unreadable, match="no moment"):
        call.read(LinkedPage(document=[{**GITHUB, "delivered_at": "2026-01-31T12:00:00"}], next=None))


def test_attempt_at_gitlab_has_no_time_and_an_older_id() -> None:
    def read(**headers: str) -> Attempt:
        given = {"request_headers": {name.replace("_", "-"): value for name, value in headers.items()}}
        (attempt,) = outcome(
            gitlab_hooks.find_attempts(hook_of(gitlab_hooks, GITLAB_HOOK)), [{**GITLAB, **given}]
        ).items
        assert isinstance(attempt, Attempt)
        return attempt

    assert read(Idempotency_Key="g", X_Gitlab_Event_UUID="u", X_Gitlab_Event="Push Hook") == Attempt(
        id=7, delivery_id="g", event="Push Hook", succeeded=True, why="200", delivered_at=None
    )
    older = read(X_Gitlab_Event_UUID="u")
    assert (older.delivery_id, older.event) == ("u", "push_hooks")
    call = gitlab_hooks.find_attempts(hook_of(gitlab_hooks, GITLAB_HOOK))
    nameless = {name: value for name, value in GITLAB.items() if name != "trigger"}
    headers = {"X-Gitlab-Event-UUID": "u"}
    (attempt,) = outcome(call, [{**nameless, "request_headers": headers}]).items
    assert attempt.event == ""
    with pytest.raises(Unreadable, match="no delivery id"):
        call.read(LinkedPage(document=[{**GITLAB, "request_headers": {}}], next=None))


@pytest.mark.parametrize(
    ("code", "succeeded"), [("199", False), ("200", True), ("399", True), ("400", False), ("²", False)]
)
def test_redirect_counts_as_success_at_gitlab(code: str, *, succeeded: bool) -> None:
    call = gitlab_hooks.find_attempts(hook_of(gitlab_hooks, GITLAB_HOOK))
    (attempt,) = outcome(call, [{**GITLAB, "response_status": code}]).items
    assert attempt.succeeded is succeeded


def test_heads_of_gitea_are_listed_fifty_at_a_time() -> None:
    calls = (find_repository("river/app"), find_branches("river/app"), find_changes("river/app"))
    assert [(each.method, each.path, dict(each.query)) for each in calls] == [
        ("GET", "/repos/river/app", {}),
        ("GET", "/repos/river/app/branches", {"limit": "50"}),
        ("GET", "/repos/river/app/pulls", {"state": "open", "limit": "50"}),
    ]


def test_repository_of_gitea_is_described_as_its_webhook_would() -> None:
    read = find_repository("river/app").read
    assert read(REPOSITORY) == GiteaRepository(
        full_name="river/app",
        clone_url="https://forge.example/river/app.git",
        default_branch="main",
        has_changes=True,
    )
    assert read(NAMES).default_branch is None
    assert read(NAMES).has_changes
    assert not read({**REPOSITORY, "has_pull_requests": False}).has_changes


def test_branch_of_gitea_has_its_commit_and_message() -> None:
    def read(**commit: Any) -> GiteaBranch:
        (branch,) = outcome(
            find_branches("river/app"), [{"name": "main", "commit": {"id": SHA, **commit}}]
        ).items
        assert isinstance(branch, GiteaBranch)
        return branch

    assert read(message="m") == GiteaBranch(name="main", commit_sha=SHA, message="m")
    assert read().message == read(message=None).message == ""


def test_open_change_of_gitea_holds_what_its_webhook_would() -> None:
    def read(**changes: Any) -> OpenChange:
        (change,) = outcome(find_changes("river/app"), [{**PULL, **changes}]).items
        assert isinstance(change, OpenChange)
        return change

    assert read() == OpenChange(
        number=7,
        commit_sha=SHA,
        document={"draft": False, "updated_at": PULL["updated_at"], "head": SIDE, "base": SIDE},
    )
    odd = read(draft="no", updated_at=7, head={"ref": "x", "sha": SHA}).document
    assert (odd["draft"], odd["updated_at"]) == (None, None)
    assert (odd["head"]["repo"], odd["head"]["repo_id"]) == (None, None)


@pytest.mark.parametrize("number", [True, 0, -1, 2**53, "7", 7.0, None])
def test_change_of_gitea_without_a_number_cannot_be_read(number: Any) -> None:
    with pytest.raises(Unreadable, match="no number"):
        find_changes("river/app").read(LinkedPage(document=[{**PULL, "number": number}], next=None))


@pytest.mark.parametrize("number", [1, 2**53 - 1])
def test_change_of_gitea_may_have_the_least_and_the_greatest_number(number: int) -> None:
    page = find_changes("river/app").read(LinkedPage(document=[{**PULL, "number": number}], next=None))
    assert page.items[0].number == number


def test_change_whose_fork_was_deleted_is_listed_as_a_forks() -> None:
    """Gitea gives a deleted repository the number -1, and the base repository's ref."""
    gone = {**PULL, "head": {"ref": "refs/pull/7/head", "sha": SHA, "repo": None, "repo_id": -1}}
    page = find_changes("river/app").read(LinkedPage(document=[gone, PULL], next=None))
    source = WebhookSource(name="acme", forge=FORGES[Source.GITEA], secrets=("s",))
    known = KnownRepository(kinds=frozenset(), compared=frozenset(), heads={})
    events = [
        changed(source, find_repository("river/app").read(REPOSITORY), each, known).event
        for each in page.items
    ]
    assert [each.is_fork for each in events if isinstance(each, ChangeRequest)] == [True, False]


def test_answer_that_is_no_list_cannot_be_read() -> None:
    with pytest.raises(Unreadable, match="no list"):
        find_changes("river/app").read(LinkedPage(document={}, next=None))


@given(damaged(GITHUB), damaged(GITLAB))
def test_any_record_is_attempts_or_cannot_be_read(github: Any, gitlab: Any) -> None:
    for dialect, hook, document in (
        (github_hooks, GITHUB_HOOK, github),
        (gitlab_hooks, GITLAB_HOOK, gitlab),
    ):
        found = outcome(dialect.find_attempts(hook_of(dialect, hook)), [document])
        assert found is None or (isinstance(found, Page) and isinstance(found.items[0], Attempt))


@pytest.mark.parametrize("origin", [Source.GITEA, Source.FORGEJO])
@given(branch=damaged(BRANCH), pull=damaged(PULL), repository=damaged(REPOSITORY))
def test_any_heads_become_events_or_cannot_be_read(
    origin: Source, branch: Any, pull: Any, repository: Any
) -> None:
    source = WebhookSource(name="acme", forge=FORGES[origin], secrets=("s",))
    known = KnownRepository(kinds=frozenset(), compared=frozenset(), heads={})
    whose = outcome(find_repository("river/app"), repository)
    if whose is None:
        return
    pushes, changes = (
        outcome(find_branches("river/app"), [branch]),
        outcome(find_changes("river/app"), [pull]),
    )
    if pushes is not None:
        assert isinstance(pushed(source, whose, pushes.items[0], known).event, Push | Ignored | Malformed)
    if changes is not None:
        event = changed(source, whose, changes.items[0], known).event
        assert isinstance(event, ChangeRequest | Ignored | Malformed)
