"""How GitHub and GitLab are asked for their deliveries, Gitea for its heads, and that any answer is read or is unreadable."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_common.messages import Source as Origin
from solstice_forge.decisions.sources import FORGES, Source
from solstice_forge.forges.events import ChangeRequest, Ignored, Malformed, Push
from solstice_forge.inbox.reconcile_state import KnownRepository
from solstice_forge.reconcile.missed_heads import changed, pushed
from solstice_forge.remote import github_hooks, gitlab_hooks
from solstice_forge.remote.gitea_heads import find_branches, find_changes, find_repository
from solstice_forge.remote.hooks import Attempt, Hook, HookDialect
from solstice_forge.remote.protocol import ForgeCall, LinkedPage, Page

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
def spoiled(draw: st.DrawFn, good: dict[str, Any]) -> Any:
    """The object with one of its values replaced or removed, at some depth."""
    name = draw(st.sampled_from(sorted(good)))
    if isinstance(good[name], dict) and draw(st.booleans()):
        return {**good, name: draw(spoiled(good[name]))}
    if draw(st.booleans()):
        return {each: value for each, value in good.items() if each != name}
    return {**good, name: draw(ODD)}


def outcome(call: ForgeCall[Any], document: Any) -> Any:
    try:
        return call.read(LinkedPage(document=document, next=None) if call.linked else document)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # what `Remote` takes for an answer that cannot be read


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


@given(spoiled(GITHUB), spoiled(GITLAB))
def test_any_record_is_attempts_or_cannot_be_read(github: Any, gitlab: Any) -> None:
    for dialect, hook, document in (
        (github_hooks, GITHUB_HOOK, github),
        (gitlab_hooks, GITLAB_HOOK, gitlab),
    ):
        found = outcome(dialect.find_attempts(hook_of(dialect, hook)), [document])
        assert found is None or (isinstance(found, Page) and isinstance(found.items[0], Attempt))


@pytest.mark.parametrize("origin", [Origin.GITEA, Origin.FORGEJO])
@given(branch=spoiled(BRANCH), pull=spoiled(PULL), repository=spoiled(REPOSITORY))
def test_any_heads_become_events_or_cannot_be_read(
    origin: Origin, branch: Any, pull: Any, repository: Any
) -> None:
    source = Source(name="acme", forge=FORGES[origin], secrets=("s",))
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
