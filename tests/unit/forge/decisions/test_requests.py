"""Events become requests: commits, trust and idempotency keys."""

import pytest
from msgspec.structs import replace

from solstice_common.messages import JobRequestV1, Priority, Source
from solstice_common.tracing.request_trace import message_traceparent
from solstice_common.tracing.samplers import Sampler
from solstice_common.values.times import parse_timestamp
from solstice_forge.decisions.requests import PlannedCancel, PlannedRun, build_request, content_key, kind_of
from solstice_forge.decisions.rules import BUILT, Ruling
from solstice_forge.decisions.sources import FORGES, WebhookSource, traced_sources
from solstice_forge.forges.events import (
    ChangeRequest,
    Command,
    CommandKind,
    Dispatch,
    Event,
    Malformed,
    Push,
    Release,
    Rerun,
)

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


AFTER_ANOTHER = replace(PUSH, before_sha="b" * 40, default_branch="main")


def source(name: str = "gitea", origin: Source = Source.GITEA) -> WebhookSource:
    return WebhookSource(name=name, forge=FORGES[origin], secrets=("s",))


def planned(
    event: Event, delivery_id: str = "d-1", of: WebhookSource | None = None
) -> PlannedRun | PlannedCancel | Malformed:
    return build_request(
        event, source=of or source(), delivery_id=delivery_id, received_at=1_790_000_000.25, traceparent=TRACE
    )


def key(event: Event, delivery_id: str = "d-1", of: WebhookSource | None = None) -> str:
    return content_key(event, of or source(), delivery_id)


def request_of(event: Event, delivery_id: str = "d-1", of: WebhookSource | None = None) -> JobRequestV1:
    outcome = planned(event, delivery_id, of)
    assert isinstance(outcome, PlannedRun)
    assert outcome.request.encode() == outcome.body
    return outcome.request


def test_push_asks_for_its_commit() -> None:
    request = request_of(PUSH)
    assert request.model_dump(exclude_unset=True, exclude={"request_id", "idempotency_key"}) == {
        "schema_version": "jobrequest.v1",
        "source": Source.GITEA,
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


def test_a_traced_source_names_the_span_of_the_publishing_and_changes_nothing_else() -> None:
    sampler = Sampler(ratio=1.0, follows_parent=True)
    traced = request_of(PUSH, of=traced_sources({"gitea": source()}, sampler)["gitea"])
    assert traced.traceparent == message_traceparent(TRACE, traced.request_id, sampler) != TRACE
    assert traced.model_copy(update={"traceparent": TRACE}) == request_of(PUSH)


@pytest.mark.parametrize(("is_fork", "trusted"), [(True, False), (None, False), (False, True)])
def test_change_request_is_trusted_only_when_known_to_be_no_fork(is_fork: bool | None, trusted: bool) -> None:
    request = request_of(replace(CHANGE, is_fork=is_fork))
    assert request.trusted is trusted
    assert (request.event, request.change_number) == ("change_request", 3)


def test_same_delivery_is_the_same_request() -> None:
    assert request_of(PUSH) == request_of(PUSH)
    assert request_of(PUSH, "d-2").request_id != request_of(PUSH, "d-1").request_id
    assert request_of(PUSH, of=source("second")).request_id != request_of(PUSH).request_id


def test_two_hooks_that_see_one_event_have_one_key() -> None:
    assert (
        request_of(PUSH, "d-1").idempotency_key == request_of(PUSH, "d-2", source("second")).idempotency_key
    )


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
    assert key(other) != key(PUSH)


def test_reopened_change_request_is_requested_again() -> None:
    assert key(replace(CHANGE, action="reopened")) != key(CHANGE)
    assert key(replace(CHANGE, number=4)) != key(CHANGE)


def test_two_kinds_of_forge_are_never_one_key() -> None:
    assert key(PUSH) != key(PUSH, of=source("forgejo", Source.FORGEJO))


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


def test_a_push_names_its_previous_commit_and_the_default_branch() -> None:
    request_of = build_request(
        AFTER_ANOTHER, source=source(), delivery_id="d", received_at=0.0, traceparent=None
    )
    assert isinstance(request_of, PlannedRun)
    assert request_of.request.before_sha == "b" * 40
    assert request_of.request.default_branch == "main"


RERUN = Rerun(
    repo_full_name=PUSH.repo_full_name,
    repo_url=PUSH.repo_url,
    commit_sha=SHA,
    branch="main",
    number=None,
    check="solstice/test",
    action="rerequested",
    sender="cleo",
)
COMMAND = Command(
    word=CommandKind.RETEST,
    repo_full_name=PUSH.repo_full_name,
    repo_url=PUSH.repo_url,
    number=3,
    ref="refs/pull/3/head",
    action="created",
    commit_sha=SHA,
    is_fork=True,
    head_repo_url="https://gitea.example/dora/almanac.git",
    asked="11",
    permitted=True,
    sender="cleo",
    sender_id=None,
)
RELEASE = Release(
    repo_full_name=PUSH.repo_full_name,
    repo_url=PUSH.repo_url,
    ref="refs/tags/v1",
    commit_sha=SHA,
    action="published",
    asked="7 2026-01-01T00:00:00Z",
    sender="cleo",
)
DISPATCH = Dispatch(
    repo_full_name=PUSH.repo_full_name,
    repo_url=PUSH.repo_url,
    ref="refs/heads/main",
    commit_sha=SHA,
    action=None,
    workflow_path=".solstice/nightly.kdl",
    sender="cleo",
)


@pytest.mark.parametrize("event", [COMMAND, RELEASE], ids=["comment", "release"])
def test_one_request_is_one_run_from_any_hook(event: Event) -> None:
    assert key(event, "d-1") == key(event, "d-2", source("second"))


@pytest.mark.parametrize(
    ("event", "again"),
    [
        (COMMAND, replace(COMMAND, asked="12")),
        (RELEASE, replace(RELEASE, asked="7 2026-01-02T00:00:00Z")),
    ],
    ids=["second comment", "published again"],
)
def test_what_is_asked_for_again_is_another_run(event: Event, again: Event) -> None:
    assert key(event) != key(again)


@pytest.mark.parametrize("event", [RERUN, DISPATCH], ids=["rerun", "dispatch"])
def test_what_bears_no_mark_of_its_own_is_distinguished_by_its_delivery(event: Event) -> None:
    assert key(event, "d-1") == key(event, "d-1", source("second"))
    assert key(event, "d-1") != key(event, "d-2")


def test_what_a_lookup_adds_changes_no_key() -> None:
    assert key(replace(COMMAND, commit_sha=None, is_fork=None, permitted=False)) == key(COMMAND)
    assert key(replace(RELEASE, commit_sha=None)) == key(RELEASE)
    assert key(replace(DISPATCH, commit_sha=None)) == key(DISPATCH)


def test_retest_is_a_run_of_the_change_request_as_its_next_push_will_be() -> None:
    request = request_of(COMMAND)
    assert (request.event, request.change_number, request.ref) == ("change_request", 3, "refs/pull/3/head")
    assert request.head_repo_url == "https://gitea.example/dora/almanac.git"
    assert request.trusted is False
    assert request_of(replace(COMMAND, is_fork=False)).trusted is True


def test_rerun_of_a_jobs_check_is_of_that_job_and_untrusted() -> None:
    request = request_of(RERUN)
    assert (request.event, request.workflow_job_id, request.trusted) == ("rerun", "test", False)
    for check in (None, "solstice", "solstice/", "another"):
        assert request_of(replace(RERUN, check=check)).workflow_job_id is None


def test_rerun_is_trusted_once_the_forge_named_the_owner_of_the_commit() -> None:
    assert request_of(replace(RERUN, is_fork=False)).trusted is True
    assert request_of(replace(RERUN, is_fork=True)).trusted is False


def test_change_request_has_its_previous_head() -> None:
    assert request_of(replace(CHANGE, before_sha="b" * 40)).before_sha == "b" * 40


@pytest.mark.parametrize(
    ("seconds_before", "believed"),
    [(None, False), (-3600.0, False), (0.0, False), (9.0, False), (11.0, True), (86400.0, True)],
    ids=["not told", "the forge's clock is ahead", "at once", "soon", "late", "a day late"],
)
@pytest.mark.parametrize("event", [PUSH, CHANGE], ids=["push", "change request"])
def test_late_delivery_is_as_old_as_its_event(
    event: Push | ChangeRequest, seconds_before: float | None, believed: bool
) -> None:
    received_at = 1_790_000_000.25
    occurred_at = None if seconds_before is None else received_at - seconds_before
    request = request_of(replace(event, occurred_at=occurred_at))
    submitted_seconds = parse_timestamp(request.submitted_at).timestamp()
    assert submitted_seconds == (occurred_at if believed else received_at)


def test_event_dated_before_the_epoch_is_as_old_as_the_epoch() -> None:
    """No message can carry an earlier time."""
    assert request_of(replace(PUSH, occurred_at=-5.0)).submitted_at == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (PUSH, "push"),
        (CHANGE, "change_request"),
        (COMMAND, "comment"),
        (replace(COMMAND, word=CommandKind.CANCEL), "cancel"),
        (RERUN, "rerun"),
        (RELEASE, "release"),
        (DISPATCH, "dispatch"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_each_event_has_the_kind_that_operators_read(event: Event, kind: str) -> None:
    assert kind_of(event) == kind
    assert key(event).startswith(f"{kind}:")


def test_dispatch_names_its_workflow_only_when_it_is_one_of_ours() -> None:
    assert request_of(DISPATCH).workflow_path == ".solstice/nightly.kdl"
    assert request_of(replace(DISPATCH, workflow_path=".github/workflows/x.yml")).workflow_path is None


def test_a_request_is_built_as_the_ruling_says() -> None:
    def ruled(ruling: Ruling) -> JobRequestV1:
        outcome = build_request(
            PUSH,
            source=source(),
            delivery_id="d-1",
            received_at=1_790_000_000.25,
            traceparent=TRACE,
            ruling=ruling,
        )
        assert isinstance(outcome, PlannedRun)
        return outcome.request

    request = ruled(Ruling(rule="r", priority=Priority.HIGH, runs_on="arm", needs_approval=True))
    assert (request.priority, request.runs_on, request.needs_approval) == (Priority.HIGH, "arm", True)
    assert ruled(Ruling(rule="r", approves=True)).approves
    plain = ruled(BUILT)
    assert not plain.needs_approval
    assert not plain.approves
