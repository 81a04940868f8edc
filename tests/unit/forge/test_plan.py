from dataclasses import replace

import pytest

from solstice_common.messages import JobRequestV1
from solstice_common.messages import Source as Origin
from solstice_forge.events import ChangeRequest, Event, Malformed, Push
from solstice_forge.plan import Wanted, content_key, plan
from solstice_forge.sources import FORGES, Source

SHA = "a" * 40
PUSH = Push(
    repo_full_name="tide-club/almanac",
    repo_url="https://gitea.example/tide-club/almanac.git",
    ref="refs/heads/main",
    commit_sha=SHA,
    before_sha=None,
    sender="cleo",
)
CHANGE = ChangeRequest(
    repo_full_name="tide-club/almanac",
    repo_url="https://gitea.example/tide-club/almanac.git",
    number=3,
    action="opened",
    ref="refs/pull/3/head",
    commit_sha=SHA,
    base_ref="main",
    head_ref="spring",
    is_fork=False,
    head_repo_full_name="tide-club/almanac",
    head_repo_url="https://gitea.example/tide-club/almanac.git",
    draft=False,
    sender="dora",
)
TRACE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def source(name: str = "gitea", origin: Origin = Origin.GITEA) -> Source:
    return Source(name=name, forge=FORGES[origin], secrets=("s",))


def planned(event: Event, delivery_id: str = "d-1", of: Source | None = None) -> Wanted | Malformed:
    return plan(
        event, source=of or source(), delivery_id=delivery_id, received_at=1_790_000_000.25, traceparent=TRACE
    )


def wanted(event: Event, delivery_id: str = "d-1", of: Source | None = None) -> JobRequestV1:
    outcome = planned(event, delivery_id, of)
    assert isinstance(outcome, Wanted)
    assert outcome.request.encode() == outcome.body
    return outcome.request


def test_push_asks_for_its_commit() -> None:
    request = wanted(PUSH)
    assert request.model_dump(exclude_unset=True, exclude={"request_id", "idempotency_key"}) == {
        "schema_version": "jobrequest.v1",
        "source": Origin.GITEA,
        "source_name": "gitea",
        "delivery_id": "d-1",
        "submitted_at": "2026-09-21T14:13:20.250Z",
        "repo_url": PUSH.repo_url,
        "repo_full_name": PUSH.repo_full_name,
        "commit_sha": SHA,
        "ref": "refs/heads/main",
        "event": "push",
        "trusted": True,
        "sender": "cleo",
        "traceparent": TRACE,
    }


@pytest.mark.parametrize(("is_fork", "trusted"), [(True, False), (None, False), (False, True)])
def test_change_request_is_trusted_only_when_known_to_be_no_fork(is_fork: bool | None, trusted: bool) -> None:
    request = wanted(replace(CHANGE, is_fork=is_fork))
    assert request.trusted is trusted
    assert (request.event, request.change_number) == ("change_request", 3)


def test_same_delivery_is_the_same_request() -> None:
    assert wanted(PUSH) == wanted(PUSH)
    assert wanted(PUSH, "d-2").request_id != wanted(PUSH, "d-1").request_id
    assert wanted(PUSH, of=source("second")).request_id != wanted(PUSH).request_id


def test_two_hooks_that_see_one_event_have_one_key() -> None:
    assert wanted(PUSH, "d-1").idempotency_key == wanted(PUSH, "d-2", source("second")).idempotency_key


@pytest.mark.parametrize(
    "other",
    [
        replace(PUSH, commit_sha="b" * 40),
        replace(PUSH, ref="refs/heads/other"),
        replace(PUSH, ref="refs/tags/main"),
        replace(PUSH, repo_url="https://another.example/tide-club/almanac.git"),
        CHANGE,
    ],
    ids=["commit", "branch", "tag", "repository", "kind"],
)
def test_another_event_has_another_key(other: Event) -> None:
    assert content_key(other, source()) != content_key(PUSH, source())


def test_reopened_change_request_is_asked_for_anew() -> None:
    assert content_key(replace(CHANGE, action="reopened"), source()) != content_key(CHANGE, source())
    assert content_key(replace(CHANGE, number=4), source()) != content_key(CHANGE, source())


def test_two_kinds_of_forge_are_never_one_key() -> None:
    assert content_key(PUSH, source()) != content_key(PUSH, source("forgejo", Origin.FORGEJO))


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c x",
        "-oProxyCommand=x",
        "https://user:pass@h/r.git",
        "git@h:r.git",
        "ftp://h/r",
        "https:///r",
    ],
)
def test_url_that_the_message_refuses_is_malformed(url: str) -> None:
    outcome = planned(replace(PUSH, repo_url=url))
    assert isinstance(outcome, Malformed)
    assert outcome.detail.startswith("repo_url: ")
    assert "user:pass" not in outcome.detail


def test_overlong_ref_is_malformed() -> None:
    outcome = planned(replace(PUSH, ref="refs/heads/" + "x" * 300))
    assert isinstance(outcome, Malformed)
    assert outcome.detail.startswith("ref: ")
